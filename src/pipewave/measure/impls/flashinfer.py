"""FlashInfer's paged attention (its FlashAttention-2 kernels)."""

from __future__ import annotations

import numpy as np

from pipewave.measure.impls import Prepared
from pipewave.measure.impls.vllm_attention import placed
from pipewave.measure.job import Case
from pipewave.measure.pools import Pools

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
    q_start, page_start, page_ids, last_page = (
        torch.from_numpy(np.asarray(v, np.int32)).to(pools.device) for v in starts
    )
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
