"""Processes killed while they write: `python -m qa.chaos.kills [--count 300]`.

`measure` (on the fake device), profiling of our kernels (on a made-up one), `calibrate` over an older calibration,
and `predict` and `serve --out` run in child processes that are sent SIGKILL at a random moment: a third of them after
their start, the others after they began to write, however long a busy machine takes to get there. What a reader saw
before has to be there afterwards, whole, and the next run goes on from it; kills of which no reader saw a record tell
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa.chaos import made
from qa.chaos.inputs import SERVE

GEMM = {"kernel": "gemm", "m": 64, "n": 4096, "k": 4096, "gpu": "H200"}
EARLY, WAITING_S = 1 / 3, 60.0  # of the kills: whether anything was written or not; and the longest wait for a record
CASES = {"predict": 80_000, "serve": 20_000}  # lines: `predict` writes some 30,000 at a time

Keys = frozenset[str]


@dataclass(frozen=True, slots=True)
class Victim:
    """`work` writes, `seen` reads what is there: the keys of whole records. `longest_s`: how late a kill comes after
    the start or after a record more; `grows`: there will be more.
    """

    work: Callable[[], object]
    seen: Callable[[], Keys]
    longest_s: float
    grows: bool = True


def measuring(folder: Path) -> Victim:
    """`pipewave measure` on the device that answers with rough latencies."""
    from pipewave.files import store
    from pipewave.measure import supervise

    path = folder / "rows"
    options = supervise.Options(store=str(path), plan="standard", device="fake", quiet=True, batch=8)
    return Victim(lambda: supervise.measure(options), lambda: frozenset(store.done_keys(store.read(path))), 0.7)


def profiling(folder: Path) -> Victim:
    """Profiling of our kernels with a launcher whose times are a formula."""
    from lab.own_kernels.profile import plan, profile
    from lab.own_kernels.space import space
    from pipewave.files import store
    from qa.chaos.launcher import Formula

    of, path = space("gemm"), folder / "gemm.profile"
    jobs = plan(of, range(len(of.configs)), seed=1, tests=0, anchors=4000)
    device = Formula(of)
    return Victim(
        lambda: profile(of, jobs, device, device.time, path, 1e9),
        lambda: frozenset(str(row["job"]) for row in store.read(path).records),
        0.3,
    )


def calibrating(folder: Path) -> Victim:
    """`pipewave calibrate` over a calibration that is in use."""
    from pipewave.calibrate.run import calibrate
    from pipewave.nets.calibration.corrections import load

    rows, out = made.measurements(folder / "rows", factor=1.2), made.calibration(folder / "h200.safetensors")
    return Victim(
        lambda: [calibrate(rows, made.GPU, out=out) for _ in range(1000)],
        lambda: frozenset(map(str, load(out).corrections)),
        0.3,
        grows=False,
    )


def answering(command: str, case: dict[str, Any], longest_s: float) -> Callable[[Path], Victim]:
    """`pipewave predict` or `serve --cases FILE --out FILE --resume`: the lines that a next run keeps."""

    def victim(folder: Path) -> Victim:
        from pipewave.cli import build

        cases, out = folder / "cases.jsonl", folder / "answers.jsonl"
        cases.write_text("".join(json.dumps(case | {"id": number}) + "\n" for number in range(CASES[command])))
        words = [command, "--cases", str(cases), "--out", str(out), "--resume"]

        def seen() -> Keys:
            texts = [_text(path) for path in (*folder.glob(f".{out.name}.*.partial"), out)]  # renamed between: in both
            lines = [line for text in texts for line in text.rpartition("\n")[0].splitlines()]
            return frozenset(str(json.loads(line)["id"]) for line in lines)

        return Victim(lambda: build().run(words), seen, longest_s)

    return victim


def _text(path: Path) -> str:
    """What is in a file that may not be there, or no more."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


VICTIMS = {
    "measure": measuring,
    "profile": profiling,
    "calibrate": calibrating,
    "predict --out": answering("predict", GEMM, 0.2),
    "serve --out": answering("serve", SERVE, 1.2),
}


def kill(victim: Victim, pick: random.Random) -> tuple[int, int, bool]:
    """(records seen, of them lost, whether the child still ran) of one child that is killed."""
    pid = os.fork()
    if pid == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            victim.work()
        finally:
            os._exit(0)
    begin, before = time.monotonic(), (first := victim.seen())
    waits, late_s = victim.grows and pick.random() >= EARLY, pick.uniform(0.01, victim.longest_s)
    while time.monotonic() < begin + (WAITING_S if waits else late_s):
        before |= victim.seen()
        if waits and (before - first or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            begin, waits = time.monotonic(), False
        time.sleep(pick.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    running = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    return len(before), len(before - victim.seen()), running


def _start_afresh(folder: Path) -> None:
    for name in ("rows", "gemm.profile", "answers.jsonl"):
        (folder / name).unlink(missing_ok=True)


def run(count: int, seed: int) -> dict[str, Any]:
    """Figures of `count` kills, shared out over the commands."""
    pick, found = random.Random(seed), {}
    for name, make in VICTIMS.items():
        with tempfile.TemporaryDirectory() as folder:
            victim = make(Path(folder))
            done = []
            for _ in range(count // len(VICTIMS)):
                done.append(kill(victim, pick))
                if not done[-1][2]:  # all was done: the next starts afresh
                    _start_afresh(Path(folder))
        found[name] = {
            "kills": len(done),
            "while_running": sum(running for *_, running in done),
            "records_seen": max(seen for seen, *_ in done),
            "lost": sum(lost for _, lost, _ in done),
        }
    return found


def main() -> int:
    """Print the figures; 1 where anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    found = run(options.count, options.seed)
    print(json.dumps(found, indent=1))
    return 1 if any(one["lost"] for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
