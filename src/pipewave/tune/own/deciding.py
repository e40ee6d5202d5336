"""A short list as one function of a launch's numbers: counts of its candidates, their laws, the least of them.

The same sums as `wave.predict_us` over `Formula.one`. What candidates share (a grid of the same tiles, bytes of the
same tensors) is computed once, and terms that a law does not have are not computed at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.tune import wave
from pipewave.tune.own.anchors import Floats
from pipewave.tune.reading.formula import Formula
from pipewave.tune.reading.joined import Joined, Part
from pipewave.tune.reading.traced import plain, same

MOST_KEPT = 4096  # numbers of blocks whose steps a law remembers
LOCAL = ("at", "trip", "each", "chain")  # of a launch, by the blocks of its busiest SM


class Steps(dict[int, tuple[float, ...]]):
    """What a law makes of the blocks of the busiest SM: µs, µs a trip, a trip and block, and a longest trip if it may
    differ from the mean. Worked out when first asked for."""  # fmt: skip

    def __init__(self, law: Floats, sms: int, resident: int, *, is_even: bool) -> None:
        super().__init__()
        self._of, self._is_even = (law.tolist(), sms, resident), is_even
        columns = self._columns(np.arange(wave.MOST + 1))
        rows = zip(*(np.broadcast_to(each, wave.MOST + 1).tolist() for each in columns), strict=True)
        self.update(enumerate(rows))

    def __missing__(self, busiest: int) -> tuple[float, ...]:
        found = self._columns(busiest)
        if len(self) < MOST_KEPT:
            self[busiest] = found
        return found

    def _columns(self, busiest: Any) -> tuple[Any, ...]:
        at, trip, each, chain = wave.steps(busiest, *self._of)
        return (at, trip + chain, each) if self._is_even else (at, trip, each, chain)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Number of a configuration, its counts, its law [terms] and how many of its blocks an SM holds."""

    index: int
    counted: Formula
    law: Floats
    resident: int


def decision(candidates: Sequence[Candidate], inputs: Sequence[str], sms: int) -> Callable[..., int | None]:
    """A function (a correction of each candidate …, the inputs …) → the fastest candidate's number, the first of
    equals; None for a launch that takes turns which were not read."""  # fmt: skip
    corrections = [f"by{i}" for i in range(len(candidates))]
    text, steps = Joined(), dict[str, Any]({"int": int})
    for i, one in enumerate(candidates):
        if len(candidates) > 1:
            steps[f"steps{i}"] = _write(text, one, i, sms)
    text.lines.append(f"return {'index' if len(candidates) > 1 else candidates[0].index}")
    return text.function(inputs, steps, corrections)


def _write(text: Joined, one: Candidate, i: int, sms: int) -> Steps:
    """Write what a candidate takes, and that it is chosen if that is the least so far."""
    trace, (blocks, trips, longest, least, moved, _) = one.counted.traced
    text.guard(trace, trace.guards)
    part, law = Part(text, trace), one.law
    grid, turns, is_even = part.number(blocks), part.number(trips), same(trips, longest)
    busiest = text.name(f"-(-{grid} // {sms})")
    if type(plain(blocks)) is not int:
        busiest = text.name(f"int({busiest})")
    names = LOCAL[: 3 if is_even else 4]
    text.lines.append(f"{', '.join(names)} = steps{i}[{busiest}]")
    us = f"at + {turns}*(trip + {grid}*each)" + ("" if is_even else f" + {part.number(longest)}*chain")
    us += (
        _per(grid, law[11] / sms) + _per_bytes(part, least, law[13] * 2.5e-7) + _per_bytes(part, moved, law[14] * 1e-7)
    )
    if law[16] and not is_even:
        more = f"({part.number(longest)} - {turns})*{busiest}*(1.0 - {sms}*({busiest} - 1)/{grid})"
        us += f" + ({float(law[16])!r}*{more} if {busiest} <= {one.resident} else 0.0)"
    if i == 0:
        text.lines.append(f"best, index = by0*({us}), {one.index}")
    else:
        text.lines += [f"us = by{i}*({us})", f"if us < best: best = us; index = {one.index}"]
    return Steps(law, sms, one.resident, is_even=is_even)


def _per(number: str, us: float) -> str:
    return f" + {number}*{float(us)!r}" if us else ""


def _per_bytes(part: Part, value: Any, us: float) -> str:
    return _per(part.number(value), us) if us else ""
