"""Answers in the order that physics demands: more work takes no less time, a faster GPU no more.

A net that answers beyond its rows may say otherwise, so there an answer is held against its neighbours: the same call
with its sizes halved (`Family.grows`), answered by the same kernel, is a least; the GPU that a what-if was made of is a
least or a most where all its changed rates point one way. Where the GPU was measured, calls of usual sizes are not
compared: rows decide there (a library may well run a wider product by a faster kernel), and a call costs no more than
before. Nor are they on a copy of such a GPU: with nothing changed that matters it is the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import UnknownGPU
from pipewave.gpus import GPU, find
from pipewave.gpus.spec import VALUE_FIELDS
from pipewave.kernels.base import ALL_SIZES, Columns, Family, Grows
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.demand import Array
from pipewave.prediction import batch, scalar
from pipewave.prediction.batch import FLOOR, Answers
from pipewave.prediction.columns import columns, taken
from pipewave.prediction.resolve import Source
from pipewave.prediction.scalar import ScalarAnswer

RATES = frozenset((
    "boost_clock_mhz", "sustained_clock_mhz", "fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops",
    "int8_tops", "fp4_tflops", "dram_gbps", "dram_pin_gbps", "dram_measured_gbps", "l2_gbps", "link_gbps", "pcie_gbps",
    "tdp_w",
))  # fmt: skip
MORE, LESS = 1, -1  # a what-if is nowhere slower, nowhere faster than its original
HALVINGS = 6  # of all sizes of a call together: a net's bumps are narrower


def answer(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """As `batch.answer`, in order."""
    found = batch.answer(family, cols, key, gpu, protocol)
    latency = found.seconds[0]
    asked = _beyond(family, cols) if _rows_decide(found.source, gpu) else np.ones(len(latency), np.bool_)
    if asked.any():
        least = _least(family, cols, key, gpu, protocol, np.where(asked, latency, np.inf))
        latency = np.maximum(latency, least)
    if not _measured(found.source) and (made_of := _made_of(gpu)) is not None:
        original, side = made_of
        latency = _beside(latency, answer(family, cols, key, original, protocol).seconds[0], side, ARRAY)
    return (
        found if latency is found.seconds[0] else replace(found, seconds=np.array(_at(latency, found.seconds, ARRAY)))
    )


def answer_scalar(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> ScalarAnswer | None:
    """As `scalar.answer_scalar`, in order."""
    found = scalar.answer_scalar(family, case, key, gpu, protocol)
    if found is None:
        return None
    latency = found.seconds[0]
    if not _rows_decide(found.source, gpu) or _is_beyond(family, case):
        least = _least(family, columns(family, [case]), key, gpu, protocol, np.array([latency]))
        latency = max(latency, float(least[0]))
    if not _measured(found.source) and (made_of := _made_of(gpu)) is not None:
        original, side = made_of
        other = answer_scalar(family, case, key, original, protocol)
        if other is None:  # the original is calibrated: only a batch can say
            return None
        latency = _beside(latency, other.seconds[0], side, SCALAR)
    return found if latency == found.seconds[0] else found._replace(seconds=_at(latency, found.seconds, SCALAR))


def _measured(source: Source) -> bool:
    return source.basis == "measured_gpu"


def _rows_decide(source: Source, gpu: GPU) -> bool:
    """Whether rows of the GPU say what calls of usual sizes take; a correction of another's kernels is no row."""
    return _measured(source) or (source.near and not gpu.traits.stand_in)


@cache
def _usual(family: Family) -> tuple[tuple[str, float, float], ...]:
    """Sizes that have a least or a most in the rows, with both."""
    return tuple((name, *size.usual) for name, size in family.grows.items() if size.usual != ALL_SIZES)


def _is_beyond(family: Family, case: Mapping[str, Any]) -> bool:
    """Whether a size of the call lies outside those of the rows."""
    return any(not low <= case[name] <= high for name, low, high in _usual(family))


def _beyond(family: Family, cols: Columns) -> NDArray[np.bool_]:
    """The same of many calls."""
    outside = [(cols[name] < low) | (cols[name] > high) for name, low, high in _usual(family)]
    return np.logical_or.reduce(outside) if outside else np.zeros(1, np.bool_)


class Way(NamedTuple):
    """By what the sizes of a call are divided, and the longest call that is held against the one that is left."""

    by: Mapping[str, int]
    below_s: float


@cache
def _ways(family: Family) -> tuple[Way, ...]:
    """Each way that a call is held against: the further a smaller call is, the shorter must the call be."""
    grows = family.grows
    below_s = max((size.below_s for size in grows.values()), default=0.0)
    many = product(*(range(size.halvings + 1) for size in grows.values()))
    return tuple(
        Way(
            {name: 2**halvings for name, halvings in zip(grows, each, strict=True) if halvings},
            below_s / 2 ** sum(each),
        )
        for each in many
        if 0 < sum(each) <= HALVINGS
    )


def _least(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str, latency: Array) -> Array:
    """Seconds of the slowest of the smaller calls that each call is held against, 0 where there is none."""
    least = np.zeros(len(latency))
    if any(isinstance(option, tuple | list) for option in key):  # a list that counts the sizes: tokens of each expert
        return least
    which = [(way.by, np.flatnonzero((latency < way.below_s) & _divide(family, cols, way.by))) for way in _ways(family)]
    rows = np.concatenate([np.zeros(0, np.intp), *(rows for _, rows in which)])
    if len(rows):
        less = taken(cols, rows)
        for name in family.grows:
            less[name] = less[name] / np.repeat([by.get(name, 1) for by, _ in which], [len(some) for _, some in which])
        np.maximum.at(least, rows, batch.answer(family, less, key, gpu, protocol).seconds[0])
    return least


def _divide(family: Family, cols: Columns, ways: Mapping[str, int]) -> NDArray[np.bool_]:
    """Of which calls the sizes can be so many times smaller."""
    grows = family.grows
    each = [_divides(grows[name], cols[name], by, cols) for name, by in ways.items()]
    return np.asarray(np.logical_and.reduce(each), np.bool_)


def _divides(size: Grows, value: Array, by: int, cols: Columns) -> NDArray[np.bool_]:
    kept = (value > 0) & (value % (by * size.step) == 0)
    if size.shared:
        each = np.where(cols[size.shared] > 0, cols[size.shared], value)
        kept &= (value % (by * each) == 0) & (value > by * each)
    return np.asarray(kept, np.bool_)


def _beside(latency: Any, other: Any, side: int, xp: Arith) -> Any:
    return xp.minimum(latency, other) if side == MORE else xp.maximum(latency, other)


def _at(latency: Any, seconds: Any, xp: Arith) -> tuple[Any, ...]:
    """Answers moved to another latency, the interval in proportion, nothing below the floor; the ceiling, an answer of
    its own, stays."""
    floor, factor = seconds[FLOOR], latency / seconds[0]
    low, high = (xp.maximum(each * factor, floor) for each in seconds[1:FLOOR])
    return xp.maximum(latency, floor), low, high, floor, seconds[FLOOR + 1]


@lru_cache(maxsize=1024)
def _made_of(gpu: GPU) -> tuple[GPU, int] | None:
    """The GPU that a what-if was made of and on which side of it the what-if is; None for others and mixed changes."""
    if not gpu.origin:
        return None
    try:
        original = find(gpu.origin)
    except UnknownGPU:
        return None
    pairs = {name: (getattr(gpu, name), getattr(original, name)) for name in VALUE_FIELDS}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if not changed or changed.keys() - RATES or any(None in pair for pair in changed.values()):
        return None
    signs = {MORE if mine > theirs else LESS for mine, theirs in changed.values()}
    return (original, signs.pop()) if len(signs) == 1 else None
