"""First use with recorded times instead of a card: `python -m bench.any_kernel.first_use [--spaces DIR] [--out FILE]`.

The decorator meets the launches of a space in order, with two seconds of timing, each launch answered by a random round
of the recording and 230 µs more for the flush. Decisions are timed on this machine. `--jobs 8` replays eight kernels at
a time, each on a core of its own. No GPU; `--card` measures on the one at hand, and scores by its records;
`--search 2` adds `triton.autotune`'s search at two launches.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.any_kernel import record
from bench.any_kernel.__main__ import rounded
from bench.any_kernel.baselines import exhaustive, spread_out
from bench.any_kernel.listed import subjects
from bench.any_kernel.paper import on_paper
from bench.any_kernel.subjects import Call, Shape, Subject
from pipewave.tune.own import spaces
from pipewave.tune.own.device import Built, Launch
from pipewave.tune.own.leaderboard import peaks_of_space

SPACES = Path("data/recordings/any_kernel/h200")
FLUSH_US = 230.0


class Recorded:
    """A device that answers with what was recorded at the launch last made."""

    def __init__(self, space: spaces.Space) -> None:
        self.space, self.peaks, self.env = space, peaks_of_space(space), dict(space.meta["env"])
        self.row, self.now_s, self._pick = 0, 0.0, random.Random(0)

    def clock(self) -> float:
        """Seconds of timing so far."""
        return self.now_s

    def idle(self) -> bool:
        """No graph is captured."""
        return True

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        """What did not compile there does not here."""
        us = self.space.us()[self.row]
        return {index: Built(error="" if us[index] == us[index] else "recorded as invalid") for index in configs}

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        """A round of each."""
        us = [self._pick.choice(self.space.runs[self.row][index]) for index in order]
        self.now_s += sum(each + FLUSH_US for each in us) / 1e6
        return us


def replayed(subject: Subject, space: spaces.Space) -> dict[str, Any]:
    """Figures of `record.first_use`."""
    device, rows = Recorded(space), {tuple(shape.values()): i for i, shape in enumerate(space.shapes)}

    def launch(torch: Any, shape: Shape) -> Call:
        device.row = rows.get(tuple(shape.values()), 0)
        return subject.launch(torch, shape)

    return record.first_use(replace(subject, launch=launch), device, on_paper(), space)


def on_card(subject: Subject, space: spaces.Space, searched: int) -> dict[str, Any]:
    """Figures of `record.first_use` on the GPU at hand, which the space must be of; beside them `triton.autotune`'s
    own search at some launches.
    """  # fmt: skip
    import torch

    from pipewave.tune.own import gpu

    device = gpu.current()
    if device is None or device.peaks != peaks_of_space(space):
        raise SystemExit(f"{space.meta['kernel']} was recorded on {space.meta['env'].get('gpu')}: run on that card")
    found = record.first_use(subject, device, torch, space)
    return found | ({"exhaustive": exhaustive(subject, torch, space, spread_out(space, searched))} if searched else {})


def one(name: str, folder: Path, *, card: bool = False, searched: int = 0) -> dict[str, Any]:
    """Figures of one kernel."""
    subject = next(each for each in subjects() if each.name == name)
    space = spaces.read(folder / f"{name}{spaces.SUFFIX}")
    found: dict[str, Any] = rounded(on_card(subject, space, searched) if card else replayed(subject, space))
    print(name, json.dumps(found), flush=True)
    return found


def alone(cores: Any) -> None:
    """Keep this process on a core that no other one takes."""
    os.sched_setaffinity(0, {cores.get()})


def in_turn(names: Sequence[str], folder: Path, jobs: int) -> dict[str, Any]:
    """Figures of kernels, so many at a time."""
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)
    with ProcessPoolExecutor(jobs, context, alone, (cores,)) as pool:
        return dict(zip(names, pool.map(one, names, [folder] * len(names)), strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", type=Path, default=SPACES)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--card", action="store_true")
    parser.add_argument("--search", type=int, default=0, help="launches that `triton.autotune` searches at (--card)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    wanted = [name for name in options.only.split(",") if name]
    names = [each.name for each in subjects() if (options.spaces / f"{each.name}{spaces.SUFFIX}").exists()
             and (not wanted or each.name in wanted)]  # fmt: skip
    if options.card:
        found = {name: one(name, options.spaces, card=True, searched=options.search) for name in wanted or names}
    else:
        found = in_turn(names, options.spaces, options.jobs)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
