"""How fast a host launches SGLang's prompts, over time: `python -m lab.sglang_hosts --out DIR --seconds 180`.

Engines of several models share one GPU and are timed in turns, round after round, so that a point is seen at many
moments; the others are stopped meanwhile. In every other round the scheduler has a core to itself and the rest of the
engine keeps off it and its sibling. Beside each row stands what the kernel of the machine says of the scheduler's
thread: how long it ran and how long it waited for a core. Needs SGLang and a GPU with room for all models.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab.in_turns import Served
from lab.sglang_engine import rows
from lab.sglang_engine.plan import Arrival
from lab.sglang_served import started
from lab.vllm_engine.launch import Setup

MODELS = ("Llama-3.2-3B", "Llama-3.1-8B", "Qwen3-14B")
LENGTHS = ((1, 128), (1, 256), (1, 512), (1, 1024), (1, 2048), (1, 4096), (4, 512), (8, 512), (16, 128))
TIMES = 4
PORT = 30_000
KV_TOKENS = 12_288
# graphs for as many as the largest point has: the step behind its prompts is launched before they are noted as done
GRAPHS = max(batch for batch, _ in LENGTHS)
SHARED = {"mem_fraction_static": 0.92, "max_total_tokens": KV_TOKENS, "cuda_graph_max_bs_decode": GRAPHS}
PLACEMENTS = ("free", "own core")
CPUS = Path("/sys/devices/system/cpu")
Row = dict[str, Any]


class Engine(Served):
    """An engine in a process group of its own, which answers a point with a row: how many prompts, and how long."""

    def __init__(self, model: str, port: int, log: Path) -> None:
        command = [sys.executable, "-m", "lab.sglang_hosts", "--serve", str(port), "--models", model]
        super().__init__(model, command, {}, log, own_group=True)

    def signal(self, number: int) -> None:
        """Signal all of its processes."""
        os.killpg(self._process.pid, number)

    def threads(self) -> Iterable[int]:
        """All threads of its processes."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                group = int(stat.read_text().rpartition(")")[2].split()[2])
                if group == self._process.pid:
                    yield from (int(task.name) for task in (stat.parent / "task").iterdir())
            except OSError:  # it has ended
                continue


def siblings(core: int) -> set[int]:
    """The logical processors of a core."""
    text = (CPUS / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip()
    parts = [part.split("-") for part in text.split(",")]
    return {one for part in parts for one in range(int(part[0]), int(part[-1]) + 1)}


def place(engine: Engine, thread: int, own: int | None) -> None:
    """Give the scheduler's thread a core and keep all others off it; None: any core to all."""
    every = set(range(os.cpu_count() or 1))
    rest = every - siblings(own) if own is not None else every
    for one in engine.threads():
        try:
            os.sched_setaffinity(one, {own} if own is not None and one == thread else rest)
        except OSError:  # it has ended
            continue


def waited(thread: int) -> tuple[float, float, int]:
    """Milliseconds that a thread ran and that it waited for a core so far, and the core it ran on last."""
    ran, waiting, _ = Path(f"/proc/{thread}/schedstat").read_text().split()
    core = Path(f"/proc/{thread}/stat").read_text().rpartition(")")[2].split()[36]
    return int(ran) / 1e6, int(waiting) / 1e6, int(core)


def stolen_s() -> float:
    """Seconds that the machine's processors were taken away so far."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def serve(port: int, model: str) -> None:
    """Start an engine, say so, and answer points until the input ends. Answers go to the standard output alone."""
    with started(model, None, port, SHARED) as (run, say):
        for text in sys.stdin:
            point = Arrival(*json.loads(text))
            found = [run._generate(point.batch, point.input_len, [1] * point.batch) for _ in range(1 + TIMES)]
            row = rows.prefill_row(point, [batches for batches, _, _ in found], [taken for _, _, taken in found])
            say(row | run._sample())


def turn(engine: Engine, thread: int, placement: str, own: int) -> Iterable[Row]:
    """One round of an engine's points."""
    engine.signal(signal.SIGCONT)
    place(engine, thread, own if placement == "own core" else None)
    for arrival in LENGTHS:
        ran, waiting, _ = waited(thread)
        before = stolen_s()
        row = engine.ask(arrival)
        after = waited(thread)
        yield row | {"placement": placement, "ran_ms": after[0] - ran, "waited_ms": after[1] - waiting,
                     "core": after[2], "stolen_s": stolen_s() - before}  # fmt: skip
    engine.signal(signal.SIGSTOP)


def measure(engines: Sequence[Engine], out: Path, until: float, own: int) -> None:
    """Rounds of all engines' points until time is up."""
    facts = {}
    for engine in engines:
        facts[engine.name] = engine.line()
        print(f"{engine.name} is up", flush=True)
    files = {one.name: (out / f"sglang-{Setup(one.name).name}-tp1-rounds.jsonl").open("a") for one in engines}
    common = {"engine": "sglang", "tp": 1, "layers": None, "mode": "graph"}
    for engine in engines:
        row = {"kind": "engine", "model": engine.name, **common, "cpus": os.cpu_count(), **facts[engine.name]}
        files[engine.name].write(json.dumps(row) + "\n")
        engine.signal(signal.SIGSTOP)
    number = 0
    while time.monotonic() < until:
        for engine in engines:
            for row in turn(engine, facts[engine.name]["pid"], PLACEMENTS[number % 2], own):
                whole = {"kind": "step", "model": engine.name, **common, "round": number, **row}
                files[engine.name].write(json.dumps(whole) + "\n")
            files[engine.name].flush()
        print(f"round {number} done, {until - time.monotonic():.0f} s left", flush=True)
        number += 1


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=180.0, help="in all, starting included; a round ends late")
    parser.add_argument("--core", type=int, default=4, help="the scheduler's own")
    parser.add_argument("--serve", type=int, help="what each engine's process runs, beside this port")
    options = parser.parse_args(argv)
    models = options.models.split(",")
    if options.serve:
        serve(options.serve, models[0])
        return
    if options.out is None:
        parser.error("--out is needed")
    until = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    engines = [Engine(model, PORT + 2000 * i, options.out / f"{model}.log") for i, model in enumerate(models)]
    try:
        measure(engines, options.out, until, options.core)
    finally:
        for engine in engines:
            engine.signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
