"""Speed of this checkout beside another one, in turn within one run: `python -m bench.speed_against CHECKOUT`.

Each checkout answers in a process of its own, one after the other, again and again, so that whatever else the machine
does slows both alike. A figure is the median of the rounds, the ratio the median of each round's own (below 1: this
checkout is faster). Every call has a new shape; both checkouts are asked the same. `--cpu` counts processor time of all
threads instead of the clock's, for a machine on which other programs run. `--gpu MI300X`: this checkout answers for
that GPU, the other one for the H200 as ever. For the first version:

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
from functools import partial
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
CPU, USUAL = "--cpu", "H200"
NAMES = ("GEMM", "attention, 8 prompts of 3.5k", "table of GEMMs", "list of ragged attention")
Round = dict[str, float]  # µs a call


def rounds(gpu: str) -> Iterator[Round]:
    """Figures of the imported pipewave for a GPU, on shapes new in every round and the same in every process."""
    import numpy as np

    import pipewave as pw

    rng = random.Random(0)
    while True:
        shapes = [[rng.randrange(1, 8192) for _ in range(3)] for _ in range(1_000)]
        prompts = [[rng.randrange(3000, 4000) for _ in range(8)] for _ in range(400)]
        sizes = np.random.default_rng(rng.randrange(1 << 30)).integers(64, 32768, (3, 200_000))
        table = {"kernel": "gemm"} | dict(zip("mnk", sizes, strict=True))
        new = [[rng.randrange(1, 2048) for _ in range(rng.randrange(1, 17))] for _ in range(10_000)]
        ragged = [pw.attention(q, [n + rng.randrange(4096) for n in q], 32, 8, 128) for q in new]
        each = (
            statistics.median(_seconds(lambda one=one: pw.predict(pw.gemm(*one), gpu)) for one in shapes),  # type: ignore[misc]
            statistics.median(
                _seconds(lambda one=one: pw.predict(pw.attention(one, one, 40, 8, 128), gpu))  # type: ignore[misc]
                for one in prompts
            ),
            _seconds(partial(pw.predict, table, gpu)) / sizes.shape[1],
            _seconds(partial(pw.predict, ragged, gpu)) / len(ragged),
        )
        yield dict(zip(NAMES, (1e6 * seconds for seconds in each), strict=True))


def _seconds(work: Callable[[], object]) -> float:
    clock = time.process_time if CPU in sys.argv else time.perf_counter
    start = clock()
    work()
    return clock() - start


def started(checkout: Path, gpu: str, *, cpu: bool) -> subprocess.Popen[str]:
    """A process that imports the pipewave of a checkout and answers each line with a round for a GPU."""
    path = str(checkout.resolve() / "src")
    command = [sys.executable, "-P", str(Path(__file__)), "--answer", path, "--gpu", gpu, *([CPU] if cpu else [])]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def asked(side: subprocess.Popen[str]) -> Round:
    """What the next round took."""
    assert side.stdin
    assert side.stdout
    side.stdin.write("\n")
    side.stdin.flush()
    figures: Round = json.loads(side.stdout.readline())
    return figures


def compare(other: Path, count: int, gpu: str, *, cpu: bool = False) -> tuple[list[Round], list[Round]]:
    """Rounds of the other checkout and of this one, after one to warm up; who comes first changes."""
    sides = [started(other, USUAL, cpu=cpu), started(CHECKOUT, gpu, cpu=cpu)]
    taken: tuple[list[Round], list[Round]] = ([], [])
    for turn in range(count + 1):
        for i in (0, 1) if turn % 2 else (1, 0):
            taken[i].append(asked(sides[i]))
    for side in sides:
        side.communicate()
    return taken[0][1:], taken[1][1:]


def main() -> None:
    """Print one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other one")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(CPU, action="store_true", help="processor time in the place of the clock's")
    parser.add_argument("--gpu", default=USUAL, help="that this checkout answers for")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        found = rounds(args.gpu)
        for _ in sys.stdin:
            print(json.dumps(next(found)), flush=True)
        return
    before, now = compare(args.checkout, args.rounds, args.gpu, cpu=args.cpu)
    print("| what | other, µs | this, µs | this, calls/s | time of this over other |\n|---|---|---|---|---|")
    for name in NAMES:
        old, new = ([each[name] for each in side] for side in (before, now))
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        took = statistics.median(new)
        print(f"| {name} | {statistics.median(old):.2f} | {took:.2f} | {1e6 / took:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
