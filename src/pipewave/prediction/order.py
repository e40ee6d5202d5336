"""Answers in the order that physics demands: more work takes no less time, a faster GPU no more.

A net that answers beyond its rows may say otherwise, so there an answer is held against its neighbours: the same call
with its sizes halved (`Family.grows`), answered by the same kernel, is a least; the GPU that a what-if was made of is a
least or a most where all its changed rates point one way. Everywhere, a call that leaves a kernel out (`Family.extra`:
a product of operands that come quantised) takes no longer than the call with it: rows mostly hold one of both only.
Below a size at which libraries run another kernel, often a slow one, a call is no least for others, and the next size
is a most for it. Where the GPU was measured, calls of usual
sizes are not compared: rows decide there (a library may well run a wider product by a faster kernel), and a call costs
no more than before. Nor are they on a copy of such a GPU: with nothing changed that matters it is the GPU. Measured
products are now and then faster than smaller ones, the same ones on kindred GPUs: where a GPU of the generation was
measured, a call may be as far out of order as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import UnknownGPU
from pipewave.gpus import GPU, find
from pipewave.gpus.spec import VALUE_FIELDS
from pipewave.kernels.base import ALL_SIZES, Columns, Family, Grows, Ragged
from pipewave.nets.calibration import corrections
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.demand import Array
from pipewave.prediction import batch, scalar
from pipewave.prediction.batch import FLOOR, Answers
from pipewave.prediction.columns import SHARED, columns, taken
from pipewave.prediction.resolve import Source
from pipewave.prediction.scalar import ScalarAnswer

RATES = frozenset((
    "boost_clock_mhz", "sustained_clock_mhz", "fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops",
    "int8_tops", "fp4_tflops", "dram_gbps", "dram_pin_gbps", "dram_measured_gbps", "l2_gbps", "link_gbps", "pcie_gbps",
    "tdp_w",
))  # fmt: skip
MORE, LESS = 1, -1  # a what-if is nowhere slower, nowhere faster than its original
ENTRIES = 1 << 19  # of lists at a time
PLAIN_ROWS = ("cold", "serving")  # most of their products come quantised (data/measured): a kernel at a time was timed
HALVINGS = 6  # of all sizes of a call together: a net's bumps are narrower


def answer(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """As `batch.answer`, in order."""
    found = _by_size(family, cols, key, gpu, protocol)
    held = _held_by_extra(family, tuple(key), _measured(found.source) and protocol in PLAIN_ROWS)
    if held is None or _calibrated(found):
        return found
    other = _by_size(family, cols, held.key, gpu, protocol).seconds[0]
    moved = _at(_beside(found.seconds[0], other, held.side, ARRAY), found.seconds, ARRAY)
    return replace(found, seconds=np.array(moved))


def _by_size(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """In order among calls of other sizes, and beside the GPU that a what-if was made of."""
    found = batch.answer(family, cols, key, gpu, protocol)
    latency = found.seconds[0]
    asked = _beyond(family, cols) if _rows_decide(family, found) else np.ones(len(latency), np.bool_)
    if asked.any():
        latency = _between(family, cols, key, gpu, protocol, found, asked)
    if not _measured(found.source) and (made_of := _made_of(gpu)) is not None:
        original, side = made_of
        latency = _beside(latency, _by_size(family, cols, key, original, protocol).seconds[0], side, ARRAY)
    return (
        found if latency is found.seconds[0] else replace(found, seconds=np.array(_at(latency, found.seconds, ARRAY)))
    )


def answer_scalar(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> ScalarAnswer | None:
    """As `scalar.answer_scalar`, in order."""
    found = _by_size_scalar(family, case, key, gpu, protocol)
    if found is None:
        return None
    held = _held_by_extra(family, key, _measured(found.source) and protocol in PLAIN_ROWS)
    if held is None:
        return found
    other = _by_size_scalar(family, case, held.key, gpu, protocol)
    if other is None:
        return None
    latency = _beside(found.seconds[0], other.seconds[0], held.side, SCALAR)
    return found if latency == found.seconds[0] else found._replace(seconds=_at(latency, found.seconds, SCALAR))


def _by_size_scalar(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> ScalarAnswer | None:
    """As `_by_size`; None where only a batch can say."""
    found = scalar.answer_scalar(family, case, key, gpu, protocol)
    if found is None:
        return None
    latency = found.seconds[0]
    if not _rows_decide(family, found) or _is_beyond(family, case):
        latency = float(_between(family, columns(family, [case]), key, gpu, protocol, found, np.ones(1, np.bool_))[0])
    if not _measured(found.source) and (made_of := _made_of(gpu)) is not None:
        original, side = made_of
        other = _by_size_scalar(family, case, key, original, protocol)
        if other is None:  # the original is calibrated: only a batch can say
            return None
        latency = _beside(latency, other.seconds[0], side, SCALAR)
    return found if latency == found.seconds[0] else found._replace(seconds=_at(latency, found.seconds, SCALAR))


class Held(NamedTuple):
    """The group key of calls that others are held against, and on which side of these they are."""

    key: tuple[Any, ...]
    side: int


@lru_cache(maxsize=4096)
def _held_by_extra(family: Family, key: tuple[Any, ...], plain_rows: bool) -> Held | None:
    """The same calls with the kernel that they leave out, a most for them; where rows are of calls that leave it out,
    these are a least for calls with it. None where nothing holds them.
    """
    option = family.extra.get(key[0])
    at = len(SHARED) + family.options.index(option) if option else 0
    if not option or bool(key[at]) != plain_rows:
        return None
    return Held((*key[:at], not key[at], *key[at + 1 :]), LESS if plain_rows else MORE)


def _calibrated(found: Answers) -> bool:
    """Whether the user's own rows correct the answers."""
    correction = corrections.of(found.ctx, found.analysis.net)
    return correction is not None and not correction.origin


def _between(
    family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str, found: Answers | ScalarAnswer,
    asked: NDArray[np.bool_],
) -> Array:  # fmt: skip
    """Seconds of calls, those asked for no less than their smaller ones and no more than the next of the usual kernel,
    or as much less and more as on a kindred GPU that was measured.
    """
    latency = np.atleast_1d(found.seconds[0])
    apart = np.where(asked, latency, np.inf)
    least, most = (_least(family, cols, key, gpu, protocol, apart), _next(family, cols, key, gpu, protocol, asked))
    if found.source.reference_gpu and ((least > latency) | (most < latency)).any():
        like, there = (*key[:1], found.ctx.stack, found.ctx.impl, *key[3:]), find(found.source.reference_gpu)
        same = _by_size(family, cols, like, there, protocol).seconds[0]  # beyond its rows it keeps order as well
        least = _least(family, cols, key, gpu, protocol, apart, Kin(like, there, same))
        most = most * np.maximum(same / _next(family, cols, like, there, protocol, asked), 1.0)
    return np.asarray(np.minimum(np.maximum(latency, least), most))


def _measured(source: Source) -> bool:
    return source.basis == "measured_gpu"


def _rows_decide(family: Family, found: Answers | ScalarAnswer) -> bool:
    """Whether rows of the GPU say what calls of usual sizes take; a correction of another's kernels is no row, and none
    says what rests on an assumption.
    """
    ctx, source = found.ctx, found.source
    assumed = family.assumed is not None and bool(family.assumed(ctx))
    return _measured(source) or (source.near and not ctx.gpu.traits.stand_in and not assumed)


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


class Ways(NamedTuple):
    """The ways that a call is held against a smaller one: [way, size] of how often each size is halved, and [way] of
    the longest call in seconds that is. The further the smaller call is, the shorter must the call be.
    """

    halvings: NDArray[np.intp]
    below_s: Array


@cache
def _ways(family: Family) -> Ways:
    grows = family.grows
    many = product(*(range(size.halvings + 1) for size in grows.values()))
    ways = [each for each in many if 0 < sum(each) <= HALVINGS]
    halvings = np.array(ways, np.intp).reshape(len(ways), len(grows))
    below_s = max((size.below_s for size in grows.values()), default=0.0)
    return Ways(halvings, below_s / 2.0 ** halvings.sum(axis=1))


class Kin(NamedTuple):
    """The same calls on a kindred GPU: their group key, the GPU, and their seconds."""

    key: Sequence[Any]
    gpu: GPU
    seconds: Array


def _least(
    family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str, latency: Array, kin: Kin | None = None
) -> Array:
    """Seconds of the slowest of the smaller calls that each call is held against, 0 where there is none; each as much
    less as it is slower than the call on a kindred GPU.
    """
    least, grows, (halvings, below_s) = np.zeros(len(latency)), family.grows, _ways(family)
    counted = any(isinstance(option, tuple | list) for option in key)  # a list counts the sizes: tokens of each expert
    if counted or not len(below_s):
        return least
    most = np.array([_halvings(size, cols[name], cols) for name, size in grows.items()])
    which, rows = np.nonzero((latency < below_s[:, None]) & (halvings[:, :, None] <= most).all(axis=1))
    for some in _parts(family, cols, rows):
        less = taken(cols, rows[some])
        for (name, size), times in zip(grows.items(), halvings[which[some]].T, strict=True):
            less[name] = _halved(size, less[name], times, less)
        seconds = batch.answer(family, less, key, gpu, protocol).seconds[0]
        if kin:
            there = _by_size(family, less, kin.key, kin.gpu, protocol).seconds[0]
            seconds = seconds * np.minimum(kin.seconds[rows[some]] / there, 1.0)
        np.maximum.at(least, rows[some], seconds)
    return least


def _next(
    family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str, asked: NDArray[np.bool_]
) -> Array:
    """Seconds of the least call of the usual kernel, of calls asked for that are smaller; infinite for all others."""
    most = np.full(len(asked), np.inf)
    for name, size in family.grows.items():
        rows = np.flatnonzero(asked & (cols[name] < size.least)) if size.least > 1 else ()
        if len(rows):
            more = taken(cols, np.asarray(rows))
            more[name] = np.full(len(rows), float(size.least))
            most[rows] = _by_size(family, more, key, gpu, protocol).seconds[0]
    return most


def _parts(family: Family, cols: Columns, rows: NDArray[np.intp]) -> Iterator[slice]:
    """Slices of many smaller calls, so that the lists of one slice stay small."""
    entries = sum((cols[name].lengths[rows] for name in family.ragged), np.ones(len(rows), np.intp))
    ends = np.flatnonzero(np.diff(np.cumsum(entries) // ENTRIES)) + 1
    for start, end in pairwise((0, *ends.tolist(), len(rows))):
        if end > start:
            yield slice(start, end)


def _halved(size: Grows, value: Any, times: NDArray[np.intp], cols: Columns) -> Any:
    """A size of each call after so many halvings."""
    if isinstance(value, Ragged):
        halves = np.ceil(value.values / 2.0 ** times[value.owner])
        return Ragged(np.maximum(halves, np.minimum(value.values, cols[size.over].values)), value.offsets)
    return value / 2.0**times


def _halvings(size: Grows, value: Any, cols: Columns) -> NDArray[np.intp]:
    """How often a size of each call can be halved."""
    if isinstance(value, Ragged):
        factor = value.max(value.values / (size.step * cols[size.over].values))
        return np.clip(np.floor(np.log2(np.maximum(factor, 1.0))), 0, size.halvings).astype(np.intp)
    by = 2.0 ** np.arange(1, size.halvings + 1)[:, None]
    kept = (value >= by * size.least) & (value % (by * size.step) == 0)
    if size.shared:
        each = by * np.where(cols[size.shared] > 0, cols[size.shared], value)
        kept &= (value % each == 0) & (value > each)
    return np.asarray(kept.sum(axis=0), np.intp)


def _beside(latency: Any, other: Any, side: int, xp: Arith) -> Any:
    return xp.minimum(latency, other) if side == MORE else xp.maximum(latency, other)


def _at(latency: Any, seconds: Any, xp: Arith) -> tuple[Any, ...]:
    """Answers moved to another latency, the interval in proportion, nothing below the floor; the ceiling, an answer of
    its own, stays.
    """
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
