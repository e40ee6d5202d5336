"""vLLM's Triton attention over a paged cache, one kernel for prompts and decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipewave.measure.impls import Prepared
from pipewave.measure.impls.vllm_attention import int32, placed
from pipewave.measure.job import Case, Job
from pipewave.measure.pools import Pools


def unified(case: Case, pools: Pools) -> Prepared:
    """`unified_attention` as the backend TRITON_ATTN calls it; keys and values of a page lie behind one another."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    q_lens, kv_lens, heads, kv_heads = case["q_lens"], case["kv_lens"], case["heads"], case["kv_heads"]
    width, page, dtype = case["head_dim"], case.get("page_size") or 16, case.get("dtype", "bf16")
    table, pages, region = placed(case, pools, page)
    q, out = (pools.take(name, dtype, sum(q_lens), heads, width) for name in ("activation", "scratch"))
    k, v = pools.take(region, dtype, pages, 2, page, kv_heads, width).unbind(1)
    window = case.get("window") or 0
    arguments = {
        "q": q, "k": k, "v": v, "out": out,
        "max_seqlen_q": max(q_lens), "max_seqlen_k": max(kv_lens),
        "cu_seqlens_q": int32(np.cumsum([0, *q_lens]), pools.device), "seqused_k": int32(kv_lens, pools.device),
        "block_table": torch.from_numpy(table).to(pools.device),
        "softmax_scale": width**-0.5, "causal": True, "softcap": case.get("softcap") or 0.0,
        "window_size": (window - 1, 0) if window else (-1, -1),
        "q_descale": None, "k_descale": None, "v_descale": None,
        "sinks": torch.zeros(heads, device=pools.device) if case.get("sinks") else None,
        **_parts(case, pools.device),
    }  # fmt: skip
    return Prepared(lambda: unified_attention(**arguments))


def _parts(case: Case, device: str) -> dict[str, Any]:
    """Room for the partial results of decode, which is split where the heads of all requests are fewer than a grid."""
    import torch
    from vllm.v1.attention.backends.triton_attn import MIN_LAUNCH_GRID_SIZE_2D, NUM_PAR_SOFTMAX_SEGMENTS

    most = MIN_LAUNCH_GRID_SIZE_2D // case["kv_heads"]
    shape = (most, case["heads"], NUM_PAR_SOFTMAX_SEGMENTS)
    width = 1 << (case["head_dim"] - 1).bit_length()
    return {
        "seq_threshold_3D": most,
        "num_par_softmax_segments": NUM_PAR_SOFTMAX_SEGMENTS,
        "softmax_segm_output": torch.empty((*shape, width), device=device),
        "softmax_segm_max": torch.empty(shape, device=device),
        "softmax_segm_expsum": torch.empty(shape, device=device),
    }


def distinct_kernels(jobs: Sequence[Job]) -> list[Job]:
    """The cheapest job for each kernel that Triton will compile."""
    cheapest: dict[tuple[Any, ...], tuple[int, Job]] = {}
    for job in jobs:
        case = job.case
        decode = max(case["q_lens"]) == 1
        key = (*(case.get(name) for name in ("heads", "kv_heads", "head_dim", "window", "softcap", "sinks", "dtype")),
               decode and len(case["q_lens"]) <= 128 // case["kv_heads"], len(case["q_lens"]) == 1)  # fmt: skip
        size = sum(q * kv for q, kv in zip(case["q_lens"], case["kv_lens"], strict=True))
        if key not in cheapest or size < cheapest[key][0]:
            cheapest[key] = (size, job)
    return [job for _, job in cheapest.values()]


def elements(jobs: Sequence[Job]) -> dict[str, int]:
    """What the pools must hold for these jobs."""
    queries = max(sum(job.case["q_lens"]) * job.case["heads"] * job.case["head_dim"] for job in jobs)
    keys = max(
        2 * (sum(job.case["kv_lens"]) + 16 * len(job.case["kv_lens"])) * job.case["kv_heads"] * job.case["head_dim"]
        for job in jobs
    )
    return {"activation": queries + 8192, "scratch": queries + 8192, "weight": keys + 8192}
