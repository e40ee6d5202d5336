"""Attention over a paged cache by Triton as vLLM calls it, and by FlashInfer's FlashAttention-2."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.measure.impls import Pools, Prepared
from pipewave.measure.impls.paged_attention import arguments, int32, placed
from pipewave.measure.plan import Case


def unified(case: Case, pools: Pools) -> Prepared:
    """`unified_attention` as the backend TRITON_ATTN calls it; keys and values of a page lie behind one another."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    page, window = case.get("page_size") or 16, case.get("window") or 0
    table, pages, region = placed(case, pools, page)
    given = arguments(case, pools, table)
    k, v = pools.take(region, case.get("dtype", "bf16"), pages, 2, page, case["kv_heads"], case["head_dim"]).unbind(1)
    given |= {
        "k": k, "v": v, "causal": True, "softcap": case.get("softcap") or 0.0,
        "window_size": (window - 1, 0) if window else (-1, -1),
        "q_descale": None, "k_descale": None, "v_descale": None,
        "sinks": torch.zeros(case["heads"], device=pools.device) if case.get("sinks") else None,
        **_parts(case, pools.device),
    }  # fmt: skip
    return Prepared(lambda: unified_attention(**given))


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


WORKSPACE_BYTES = 256 << 20


def fa2(case: Case, pools: Pools) -> Prepared:
    """`BatchPrefillWithPagedKVCacheWrapper`, planned once outside the timed call as serving does once a step."""
    import torch
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    q_lens, kv_lens, page = case["q_lens"], case["kv_lens"], case.get("page_size") or 16
    heads, kv_heads, width = case["heads"], case["kv_heads"], case["head_dim"]
    table, pages, region = placed(case, pools, page)
    counts = [-(-n // page) for n in kv_lens]
    indices = np.concatenate([row[:count] for row, count in zip(table, counts, strict=True)])
    last = [(n - 1) % page + 1 for n in kv_lens]
    starts = (np.cumsum([0, *q_lens]), np.cumsum([0, *counts]), indices, last)
    q_start, page_start, page_ids, last_page = (int32(values, pools.device) for values in starts)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(
        torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=pools.device), "NHD", backend="fa2"
    )
    wrapper.plan(
        q_start, page_start, page_ids, last_page, heads, kv_heads, width, page, causal=case.get("causal", True),
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )  # fmt: skip
    q = pools.take("activation", "bf16", sum(q_lens), heads, width)
    cache = pools.take(region, "bf16", pages, 2, page, kv_heads, width)
    return Prepared(lambda: wrapper.run(q, cache))
