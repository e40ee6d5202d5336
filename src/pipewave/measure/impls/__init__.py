"""Implementations: each builds, for a case, a function that launches its kernels once.

A builder module is imported only when one of its implementations is asked for; a missing library is an ImportError,
which the runner records as that case's reason.

Operands are views of preallocated random pools, so setting a case up costs no allocation and no fill. Values are
standard normal in every dtype of floating point, forty times that in integers: on zeros the same kernels run about 13 %
faster, because nothing toggles.
"""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipewave.errors import BadInput
from pipewave.kernels import rows_of
from pipewave.kernels.family_metadata import Runner
from pipewave.measure.plan import RANDOM, Case, Job

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn", "fp8_block": "float8_e4m3fn",
                "int8": "int8"}  # fmt: skip
SPREAD = {"int8": 40.0}  # standard deviation, where 1 would leave most bits alone
ELEMENTS = {"activation": 1_200_000_000, "weight": 4_400_000_000, "scratch": 1_300_000_000, "cache": 10_000_000_000}
LARGEST = 127.0  # of int8, far beyond what a normal draw reaches elsewhere
FILL = 1 << 27
ALIGN = 1024


class Pools:
    """Regions a dtype: `activation`, `weight` and `cache` are only read, `scratch` may be written by the kernels.
    `cache` is made when a case first asks for pages that are scattered over all of it.
    """

    def __init__(self, device: str = "cuda", elements: dict[str, int] | None = None, *, fill: bool = True) -> None:
        self.device = device
        self._elements = elements or ELEMENTS
        self._fill = fill
        self._buffers: dict[tuple[str, str], Any] = {}
        self._cursors: dict[tuple[str, str], int] = {}
        self._random = random.Random(0)
        self.pages = RANDOM

    def begin(self, seed: str, pages: str = RANDOM) -> None:
        """Start a case: the next views lie at offsets drawn from `seed`, one behind the other; `pages` is the job's."""
        self._random = random.Random(seed)
        self.pages = pages
        self._cursors = {}

    def take(self, region: str, dtype: str, *shape: int) -> Any:
        """A contiguous view of `shape` elements of `dtype`; ValueError when the region is too small."""
        import torch

        name = TORCH_DTYPES[dtype]
        buffer = self._buffers.get((region, name))
        if buffer is None:
            buffer = self._buffers[region, name] = self._make(region, getattr(torch, name), SPREAD.get(dtype, 1.0))
        count = math.prod(shape)
        start = self._place(region, name, count, buffer.numel())
        return buffer[start : start + count].view(shape)

    def room(self, region: str, views: int) -> int:
        """Elements that each of so many equal views of a case may have."""
        size = self._elements[region]
        return (size - size // 8) // views - ALIGN

    def _place(self, region: str, name: str, count: int, size: int) -> int:
        # The first view starts in the first eighth, so that what follows it fits without overlapping it.
        spread = max(0, min(size - count, size // 8))
        cursor = self._cursors.get((region, name), self._random.randrange(spread // ALIGN + 1) * ALIGN)
        if cursor + count > size:
            raise ValueError(f"{region} pool of {size} elements is too small: {count} wanted after {cursor}")
        self._cursors[region, name] = -(-(cursor + count) // ALIGN) * ALIGN
        return cursor

    def _make(self, region: str, dtype: Any, spread: float) -> Any:
        import torch

        buffer = torch.empty(self._elements[region], dtype=dtype, device=self.device)
        for start in range(0, buffer.numel() if self._fill else 0, FILL):
            part = buffer[start : start + FILL]
            drawn = torch.randn(part.numel(), device=self.device, dtype=torch.bfloat16)
            part.copy_(drawn.mul_(spread).clamp_(-LARGEST, LARGEST))
        return buffer


class Skip(Exception):
    """The case is not worth a row, for the reason given."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A ready call and what the row should say beside the case (a Triton configuration, a routing summary)."""

    call: Callable[[], object]
    extra: dict[str, Any] = field(default_factory=dict)


def runner(job: Job) -> Runner:
    """How a job's implementation is run, as its family says; BadInput names the known ones."""
    rows = rows_of().get(job.family)
    known = rows.runners if rows else {}
    if job.impl not in known:
        raise BadInput(f"impl: {job.impl!r} of {job.family} is none of {list(known)}", field="impl")
    return known[job.impl]


def prepare(job: Job, pools: Pools) -> Prepared:
    """Set up one job, its operands at places in the pools drawn from its key. BadInput for no implementation here."""
    found = runner(job)
    if not found.module:
        hint = "measured in a clone: python -m lab.impls, or lab.collectives for several processes together"
        raise BadInput(f"impl: {job.impl!r} of {job.family} is {hint}", field="impl")
    build: Callable[[Case, Pools], Prepared] = getattr(importlib.import_module(found.module), found.builder)
    pools.begin(job.key, job.pages)
    return build(job.case, pools)
