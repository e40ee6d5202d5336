"""Answers in the order that physics demands: more work takes no less time, a faster GPU no more.

A net that answers beyond its rows may say otherwise, so there an answer is held against its neighbours: the same call
with one size halved (`Family.grows`), answered by the same kernel, is a least; the GPU that a what-if was made of is a
least or a most where all its changed rates point one way. Where the GPU was measured, nothing is compared: rows
decide there, and a call costs no more than before. Nor are sizes halved on a copy of such a GPU: with nothing changed
that matters it is the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import UnknownGPU
from pipewave.gpus import GPU, find
from pipewave.gpus.spec import VALUE_FIELDS
from pipewave.kernels.base import Columns, Family
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.demand import Array
from pipewave.prediction import batch, scalar
from pipewave.prediction.batch import FLOOR, Answers
from pipewave.prediction.columns import taken
from pipewave.prediction.resolve import Source
from pipewave.prediction.scalar import ScalarAnswer

RATES = frozenset((
    "boost_clock_mhz", "sustained_clock_mhz", "fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops",
    "int8_tops", "fp4_tflops", "dram_gbps", "dram_pin_gbps", "dram_measured_gbps", "l2_gbps", "link_gbps", "pcie_gbps",
    "tdp_w",
))  # fmt: skip
MORE, LESS = 1, -1  # a what-if is nowhere slower, nowhere faster than its original
SHORT_S = 2e-3  # above, the work itself decides, which grows with every size


def answer(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """As `batch.answer`, in order."""
    found = batch.answer(family, cols, key, gpu, protocol)
    if _measured(found.source):
        return found
    latency = found.seconds[0].copy()
    for rows, less in _halved_columns(family, cols, key, latency) if not found.source.near else ():
        smaller = batch.answer(family, less, key, gpu, protocol).seconds[0]
        latency[rows] = np.maximum(latency[rows], smaller)
    if (made_of := _made_of(gpu)) is not None:
        original, side = made_of
        latency = _beside(latency, answer(family, cols, key, original, protocol).seconds[0], side, ARRAY)
    return replace(found, seconds=np.array(_at(latency, found.seconds, ARRAY)))


def answer_scalar(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> ScalarAnswer | None:
    """As `scalar.answer_scalar`, in order."""
    found = scalar.answer_scalar(family, case, key, gpu, protocol)
    if found is None or _measured(found.source):
        return found
    latency = found.seconds[0]
    for less in _halved(family, case, key, latency) if not found.source.near else ():
        smaller = scalar.answer_scalar(family, less, key, gpu, protocol)
        latency = max(latency, smaller.seconds[0] if smaller else 0.0)
    if (made_of := _made_of(gpu)) is not None:
        original, side = made_of
        other = answer_scalar(family, case, key, original, protocol)
        if other is None:  # the original is calibrated: only a batch can say
            return None
        latency = _beside(latency, other.seconds[0], side, SCALAR)
    return found if latency == found.seconds[0] else found._replace(seconds=_at(latency, found.seconds, SCALAR))


def _measured(source: Source) -> bool:
    return source.basis == "measured_gpu"


def _sizes(family: Family, key: Sequence[Any]) -> Mapping[str, int]:
    """Sizes that may be halved, and how often; none where a list in the key counts them (tokens of each expert)."""
    return {} if any(isinstance(option, tuple | list) for option in key) else family.grows


def _halved(family: Family, case: Mapping[str, Any], key: Sequence[Any], latency: float) -> Iterator[Mapping[str, Any]]:
    for name, halvings in _sizes(family, key).items() if latency < SHORT_S else ():
        size = case.get(name) or 0
        for ways in (2 ** (i + 1) for i in range(halvings)):
            if size and size % ways == 0:
                yield {**case, name: size // ways}


def _halved_columns(
    family: Family, cols: Columns, key: Sequence[Any], latency: Array
) -> Iterator[tuple[NDArray[np.intp], Columns]]:
    """Numbers of the calls of which a size can be halved, with their columns so."""
    short = latency < SHORT_S
    for name, halvings in _sizes(family, key).items():
        for ways in (2 ** (i + 1) for i in range(halvings)):
            rows = np.flatnonzero(short & (cols[name] % ways == 0) & (cols[name] > 0))
            if len(rows):
                less = taken(cols, rows)
                yield rows, less | {name: less[name] / ways}


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
