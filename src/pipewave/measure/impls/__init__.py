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
from pipewave.measure.job import Case, Job
from pipewave.measure.pools import Pools


class Skip(Exception):
    """The case is not worth a row, for the reason given."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A ready call and what the row should say beside the case (a Triton configuration, a routing summary)."""

    call: Callable[[], object]
    extra: dict[str, Any] = field(default_factory=dict)


Builder = Callable[[Case, Pools], Prepared]

# (family, implementation) → (module of this package, builder, software measured)
REGISTRY: dict[tuple[str, str], tuple[str, str, str]] = {
    ("gemm", "cublas"): ("torch_gemm", "linear", "torch"),
    ("gemm", "torch_scaled_mm"): ("torch_gemm", "scaled_mm", "torch"),
    ("gemm", "torch_scaled_mm_rowwise"): ("torch_gemm", "scaled_mm_rowwise", "torch"),
    ("gemm", "cutlass"): ("vllm_gemm", "cutlass", "vllm"),
    ("gemm", "triton"): ("own_triton", "matmul", "triton"),
    ("attention", "fa3"): ("vllm_attention", "fa3", "vllm"),
    ("attention", "triton"): ("own_triton", "attention", "triton"),
    ("attention", "sdpa_flash"): ("sdpa", "flash", "torch"),
    ("attention", "sdpa_cudnn"): ("sdpa", "cudnn", "torch"),
    ("attention", "flashinfer_fa2"): ("flashinfer", "fa2", "flashinfer"),
    ("fused_moe", "triton"): ("vllm_moe", "as_served", "vllm"),
    ("fused_moe", "triton_default"): ("vllm_moe", "default_config", "vllm"),
    ("rmsnorm", "vllm"): ("vllm_pointwise", "rmsnorm", "vllm"),
    ("silu_and_mul", "vllm"): ("vllm_pointwise", "silu_and_mul", "vllm"),
    ("rope", "vllm"): ("vllm_pointwise", "rope", "vllm"),
    ("kv_write", "vllm"): ("vllm_pointwise", "kv_write", "vllm"),
}
COLLECTIVE_STACKS = {"nccl": "torch", "custom": "vllm"}


def builder(job: Job) -> Builder:
    """The builder of a job's implementation; BadInput names the known ones."""
    try:
        module, name, _ = REGISTRY[job.family, job.impl]
    except KeyError:
        known = [impl for family, impl in REGISTRY if family == job.family]
        raise BadInput(f"impl: {job.impl!r} of {job.family} is none of {known}", field="impl") from None
    found: Builder = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found


def prepare(job: Job, pools: Pools) -> Prepared:
    """Set up one job over the pools; where its operands lie in the pools is drawn from its key."""
    pools.begin(job.key, job.pages)
    return builder(job)(job.case, pools)


def stack(job: Job) -> str:
    """The library a job measures: `torch`, `vllm`, `flashinfer` or `triton`."""
    return COLLECTIVE_STACKS.get(job.impl) or REGISTRY[job.family, job.impl][2]
