"""First use with recorded times, no card: `python -m studies.any_kernel.first_use [--spaces DIR] [--out FILE]`.

The decorator meets the launches of a space in order, with two seconds of timing, each launch answered by a random round
of the recording and 230 µs more for the flush. Decisions are timed on this machine. `--jobs 8` replays eight kernels at
a time, each on a core of its own. No GPU; `--card` measures on the one at hand, and scores by its records;
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.any_kernel import record
from lab.any_kernel.listed import subjects
from lab.any_kernel.subjects import Call, Shape, Subject
from pipewave.tune.user_kernels.device import Built, Launch
from studies.any_kernel import spaces
from studies.any_kernel.__main__ import rounded
from studies.any_kernel.paper import on_paper
from studies.any_kernel.selectors import peaks_of_space

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


def on_card(subject: Subject, space: spaces.Space) -> dict[str, Any]:
    """Figures of `record.first_use` on the GPU at hand, which the space must be of."""
    import torch

    from pipewave.tune.user_kernels import gpu

    device = gpu.current()
    if device is None or device.peaks != peaks_of_space(space):
        raise SystemExit(f"{space.meta['kernel']} was recorded on {space.meta['env'].get('gpu')}: run on that card")
    return record.first_use(subject, device, torch, space)


def one(name: str, folder: Path, *, card: bool = False) -> dict[str, Any]:
    """Figures of one kernel."""
    subject = next(each for each in subjects() if each.name == name)
    space = spaces.read(folder / f"{name}{spaces.SUFFIX}")
    found: dict[str, Any] = rounded(on_card(subject, space) if card else replayed(subject, space))
    print(name, json.dumps(found), flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", type=Path, default=SPACES)
    parser.add_argument("--only", default="")
    parser.add_argument("--card", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    wanted = [name for name in options.only.split(",") if name]
    names = [each.name for each in subjects() if (options.spaces / f"{each.name}{spaces.SUFFIX}").exists()
             and (not wanted or each.name in wanted)]  # fmt: skip
    found = {name: one(name, options.spaces, card=options.card) for name in names}
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
