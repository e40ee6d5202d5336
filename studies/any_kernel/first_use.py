"""The decorator as shipped, with recorded times: `python -m studies.any_kernel.first_use [--spaces DIR] [--out FILE]`.

It meets the launches of a space in order, each answered by a random round of the recording and 230 µs more for the
flush. With `--anchors 64` it measures so many launches, whatever they take, and is scored at the test launches beside
the nearest key, one configuration for all, and the author's own; without, two seconds of timing are all it has.
`--no-trips` leaves out what is stated of loops that the source does not tell; `--draw 1` draws other rounds. Decisions
are timed on this machine. No GPU; `--card` measures on the one at hand, and scores by its records.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.any_kernel import record, spaces
from lab.any_kernel.listed import subjects
from lab.any_kernel.subjects import Call, Shape, Subject
from pipewave.tune import autotune
from pipewave.tune.user_kernels.device import Built, Launch
from pipewave.tune.user_kernels.measuring import BLOCK_BYTES
from studies import rounded
from studies.any_kernel.paper import on_paper
from studies.any_kernel.selectors import SELECTORS, figures, peaks_of_space, score

SPACES = Path("data/recordings/any_kernel/h200")
FLUSH_US = 230.0


class Recorded:
    """A device that answers with what was recorded at the launch last made."""

    def __init__(self, space: spaces.Space, draw: int = 0) -> None:
        self.space, self.peaks = space, peaks_of_space(space)
        self.env: Mapping[str, Any] = space.meta["env"]
        self.row, self.now_s, self._pick = 0, 0.0, random.Random(draw)
        self._us, self._held = space.us(), space.held()

    def clock(self) -> float:
        """Seconds of timing so far."""
        return self.now_s

    def idle(self) -> bool:
        """No graph is captured."""
        return True

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        """What did not compile there does not here; shared memory such that as many blocks fit an SM as there."""
        us, held = self._us[self.row], self._held[self.row]
        smem = [int(self.peaks.smem_bytes // blocks) - BLOCK_BYTES for blocks in held.tolist()]
        return {index: Built(smem[index], 16, "" if us[index] == us[index] else "recorded as invalid")
                for index in configs}  # fmt: skip

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        """A round of each."""
        us = [self._pick.choice(self.space.runs[self.row][index]) for index in order]
        self.now_s += sum(each + FLUSH_US for each in us) / 1e6
        return us


def replayed(subject: Subject, space: spaces.Space, draw: int = 0) -> dict[str, Any]:
    """Figures of `record.first_use`."""
    device, rows = Recorded(space, draw), {tuple(shape.values()): i for i, shape in enumerate(space.shapes)}

    def launch(torch: Any, shape: Shape) -> Call:
        device.row = rows.get(tuple(shape.values()), 0)
        return subject.launch(torch, shape)

    return record.first_use(replace(subject, launch=launch), device, on_paper(), space)


def anchored(subject: Subject, space: spaces.Space, count: int, draw: int = 0) -> dict[str, Any]:
    """Figures at the test launches after so many were measured, beside those of simple choices from the same ones."""
    device, torch = Recorded(space, draw), on_paper()
    tests, anchors = np.flatnonzero(space.is_test), np.flatnonzero(~np.array(space.is_test))[:count]
    kernel = autotune(record.configs_of(subject), record.keys_of(subject), budget_s=1e9, trips=subject.trips,
                      cache=False, device=device)(subject.kernel())  # fmt: skip

    def chosen(i: int) -> int:
        device.row = i
        grid, args, kwargs = subject.launch(torch, dict(space.shapes[i]))
        found = kernel.choose(args, kwargs, grid)
        return int(space.default[i]) if found is None else int(found)

    for i in anchors.tolist():
        chosen(i)
    kernel.options = replace(kernel.options, budget_s=0.0)
    kernel.settle()
    us, halves = space.us()[tests], space.halves()[tests]
    picked = np.array([chosen(i) for i in tests.tolist()])
    rows = {"decorator": figures(halves, us, picked, space.default[tests])}
    rows |= {name: score(space, SELECTORS[name], count) for name in ("nearest_key", "one_for_all", "default")}
    return {"kinds": len(kernel.kinds), "reason": kernel.reason, "selectors": rows}


def on_card(subject: Subject, space: spaces.Space) -> dict[str, Any]:
    """Figures of `record.first_use` on the GPU at hand, which the space must be of."""
    import torch

    from pipewave.tune.user_kernels import gpu

    device = gpu.current()
    if device is None or device.peaks != peaks_of_space(space):
        raise SystemExit(f"{space.meta['kernel']} was recorded on {space.meta['env'].get('gpu')}: run on that card")
    return record.first_use(subject, device, torch, space)


def one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one kernel."""
    subject = next(each for each in subjects() if each.name == name)
    if options.no_trips:
        subject = replace(subject, trips=None)
    space = spaces.read(options.spaces / f"{name}{spaces.SUFFIX}")
    if options.anchors:
        made = anchored(subject, space, options.anchors, options.draw)
    else:
        made = on_card(subject, space) if options.card else replayed(subject, space, options.draw)
    found: dict[str, Any] = rounded(made, None)
    print(name, line(found) if options.anchors else json.dumps(found), flush=True)
    return found


def line(found: dict[str, Any]) -> str:
    """Mean / worst regret and share slower than the author's own, in %, of each way to choose."""
    names = "mean_regret", "worst_regret", "slower_share"
    rows = {name: [100 * row[each] for each in names] for name, row in found["selectors"].items()}
    parts = [f"{name} {mean:.2f} / {worst:.1f} ({slower:.0f})" for name, (mean, worst, slower) in rows.items()]
    return "  ".join([*parts, f"kinds {found['kinds']}", found["reason"]])


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", type=Path, default=SPACES)
    parser.add_argument("--only", default="")
    parser.add_argument("--card", action="store_true")
    parser.add_argument("--anchors", type=int, default=0)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--no-trips", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    wanted = [name for name in options.only.split(",") if name]
    names = [each.name for each in subjects() if (options.spaces / f"{each.name}{spaces.SUFFIX}").exists()
             and (not wanted or each.name in wanted)]  # fmt: skip
    found = {name: one(name, options) for name in names}
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
