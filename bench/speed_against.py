"""Speed of this checkout beside another one, in turn within one run: `python -m bench.speed_against CHECKOUT`.

Each checkout answers in a process of its own, one after the other, again and again, so that whatever else the machine
does slows both alike. A figure is the median of the rounds, the ratio the median of each round's own (below 1: this
checkout is faster). Every call has a new shape; both checkouts are asked the same. `--cpu` counts processor time of all
threads instead of the clock's, for a machine on which other programs run. For the first version:

    git worktree add ../first 9ec87a0 && python -m bench.speed_against ../first
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
CALLS = {"GEMM": 1_000, "attention, 8 prompts of 3.5k": 400}  # a round, one at a time
ROWS = {"table of GEMMs": 200_000, "list of ragged attention": 10_000}
CPU = "--cpu"
Round = dict[str, float]  # µs a call


def rounds() -> Iterator[Round]:
    """Figures of the pipewave that is imported, on shapes that are new in every round and the same in every process."""
    rng = random.Random(0)
    while True:
        yield {name: 1e6 * work(rng) for name, work in WORK.items()}


def _gemm(rng: random.Random) -> float:
    import pipewave as pw

    shapes = [[rng.randrange(1, 8192) for _ in range(3)] for _ in range(CALLS["GEMM"])]
    return _each(lambda shape: pw.predict(pw.gemm(*shape), "H200"), shapes)


def _attention(rng: random.Random) -> float:
    import pipewave as pw

    batches = [[rng.randrange(3000, 4000) for _ in range(8)] for _ in range(CALLS["attention, 8 prompts of 3.5k"])]
    return _each(lambda lens: pw.predict(pw.attention(lens, lens, 40, 8, 128), "H200"), batches)


def _table(rng: random.Random) -> float:
    import numpy as np

    import pipewave as pw

    n, drawn = ROWS["table of GEMMs"], np.random.default_rng(rng.randrange(1 << 30))
    width, k = drawn.integers(64, 65536, (2, n))
    columns = {"kernel": "gemm", "m": drawn.integers(1, 32768, n), "n": width, "k": k}
    return _seconds(lambda: pw.predict(columns, "H200")) / n


def _ragged(rng: random.Random) -> float:
    import pipewave as pw

    calls = []
    for _ in range(ROWS["list of ragged attention"]):
        q = [rng.randrange(1, 2048) for _ in range(rng.randrange(1, 17))]
        calls.append(pw.attention(q, [n + rng.randrange(4096) for n in q], 32, 8, 128))
    return _seconds(lambda: pw.predict(calls, "H200")) / len(calls)


WORK: dict[str, Callable[[random.Random], float]] = {
    "GEMM": _gemm,
    "attention, 8 prompts of 3.5k": _attention,
    "table of GEMMs": _table,
    "list of ragged attention": _ragged,
}


def _each(work: Callable[[Any], object], asked: list[Any]) -> float:
    """Median seconds of one."""
    return statistics.median(_seconds(lambda one=one: work(one)) for one in asked)  # type: ignore[misc]


def _seconds(work: Callable[[], object]) -> float:
    clock = time.process_time if CPU in sys.argv else time.perf_counter
    start = clock()
    work()
    return clock() - start


def answer_rounds() -> None:
    """One line of JSON for each line that is read."""
    found = rounds()
    for _ in sys.stdin:
        print(json.dumps(next(found)), flush=True)


class Side:
    """A process that imports the pipewave of one checkout."""

    def __init__(self, checkout: Path, *, cpu: bool) -> None:
        path = str(checkout.resolve() / "src")
        command = [sys.executable, "-P", str(Path(__file__)), "--answer", path, *([CPU] if cpu else [])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
        )

    def round(self) -> Round:
        """What the next round took."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        figures: Round = json.loads(self.process.stdout.readline())
        return figures

    def end(self) -> None:
        """No more rounds."""
        self.process.communicate()


def compare(other: Path, count: int, *, cpu: bool = False) -> tuple[list[Round], list[Round]]:
    """Rounds of the other checkout and of this one, after one to warm up; who comes first changes."""
    sides = [Side(other, cpu=cpu), Side(CHECKOUT, cpu=cpu)]
    taken: tuple[list[Round], list[Round]] = ([], [])
    for turn in range(count + 1):
        for i in (0, 1) if turn % 2 else (1, 0):
            taken[i].append(sides[i].round())
    for side in sides:
        side.end()
    return taken[0][1:], taken[1][1:]


def main() -> None:
    """Print one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other one")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(CPU, action="store_true", help="processor time in the place of the clock's")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        answer_rounds()
        return
    before, now = compare(args.checkout, args.rounds, cpu=args.cpu)
    print("| what | other, µs | this, µs | this, calls/s | time of this over other |\n|---|---|---|---|---|")
    for name in WORK:
        old, new = ([each[name] for each in side] for side in (before, now))
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        took = statistics.median(new)
        print(f"| {name} | {statistics.median(old):.2f} | {took:.2f} | {1e6 / took:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
