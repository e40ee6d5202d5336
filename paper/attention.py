"""FlashInfer attention: which published kernel runs a call, and the checks both share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paper import fa2, fa3
from paper.demand import Array, Demand
from paper.hardware import Hardware
from pipewave.errors import BadInput

Ints = NDArray[np.int64]
IMPLS = ("fa2_ragged", "fa2_paged", "fa3_ragged", "fa3_paged")


def demand(
    hw: Hardware,
    *,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    heads: Array,
    kv_heads: Array,
    head_dim: Array,
    impl: str | None = None,
    causal: bool = True,
    schedule: fa2.Schedule = "lock_step",
    kv_split_unit: fa2.KvSplitUnit = "tokens",
) -> Demand:
    """Demand of one bf16 call over a ragged batch (the lists belong to one call: its requests).

    `schedule` and `kv_split_unit` choose between FA2 as published (with two bugs) and as FlashInfer really does it.
    """
    q, kv = _lengths(q_lens, kv_lens)
    query_heads, groups, dim = _one("heads", heads), _one("kv_heads", kv_heads), _one("head_dim", head_dim)
    if query_heads % groups:
        raise BadInput(f"heads={query_heads} is not a multiple of kv_heads={groups}", field="heads")
    name = impl or default_impl(hw, q)
    if name not in IMPLS:
        raise BadInput(f"impl={name!r}: the paper models {', '.join(IMPLS)}", field="impl")
    paged = name.endswith("paged")
    if name.startswith("fa3"):
        return fa3.demand(hw, q, kv, heads=query_heads, head_dim=dim, paged=paged, causal=causal)
    if not causal:
        raise BadInput("causal=False: the paper's FA2 model is causal only; use impl='fa3_ragged'", field="causal")
    options = fa2.Options(schedule=schedule, kv_split_unit=kv_split_unit)
    return fa2.demand(hw, q, kv, heads=query_heads, kv_heads=groups, head_dim=dim, paged=paged, options=options)


def _one(field: str, value: Array) -> int:
    if value.ndim:
        raise BadInput(f"{field} must be one number: the lists are the requests of a single call", field=field)
    return int(value)


def default_impl(hw: Hardware, q_lens: Ints) -> str:
    """What the paper's end-to-end workloads use: FA3 for prefill on Hopper, FA2 elsewhere and for all decode."""
    if np.all(q_lens == 1):
        return "fa2_paged"
    return "fa3_ragged" if hw.architecture == "hopper" else "fa2_ragged"


def _lengths(q_lens: Sequence[int], kv_lens: Sequence[int]) -> tuple[Ints, Ints]:
    q, kv = np.asarray(q_lens, dtype=np.int64), np.asarray(kv_lens, dtype=np.int64)
    if q.ndim != 1 or q.shape != kv.shape or not q.size:
        raise BadInput(f"q_lens {q.shape} and kv_lens {kv.shape} must be lists of one same length", field="kv_lens")
    if np.any(q < 1) or np.any(kv < q):
        raise BadInput("every q_len must be at least 1 and at most its kv_len", field="q_lens")
    return q, kv
