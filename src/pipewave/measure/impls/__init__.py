"""Implementations: each builds, for a case, a function that launches its kernels once.

A builder module is imported only when one of its implementations is asked for; a missing library is an ImportError,
which the runner records as that case's reason.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipewave.errors import BadInput
from pipewave.kernels import rows_of
from pipewave.kernels.family_metadata import Runner
from pipewave.measure.job import Case, Job
from pipewave.measure.pools import Pools


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
    """Set up one job over the pools; where its operands lie in the pools is drawn from its key.

    BadInput where there is no such implementation, or only several processes measure it.
    """
    found = runner(job)
    if not found.module:
        hint = "measured by several processes together: python -m lab.collectives"
        raise BadInput(f"impl: {job.impl!r} of {job.family} is {hint}", field="impl")
    build: Callable[[Case, Pools], Prepared] = getattr(importlib.import_module(found.module), found.builder)
    pools.begin(job.key, job.pages)
    return build(job.case, pools)


def stack(job: Job) -> str:
    """The library a job measures: `torch`, `vllm`, `flashinfer` or `triton`."""
    return runner(job).library
