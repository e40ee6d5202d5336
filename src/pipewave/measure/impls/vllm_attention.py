"""FlashAttention-3 over a paged cache, as vLLM calls it on Hopper."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipewave.measure.impls import Prepared
from pipewave.measure.job import Case
from pipewave.measure.pools import Pools


def page_table(kv_lens: Sequence[int], page: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], int]:
    """int32 table [requests, most pages], filled with pages in random order, and the number of pages."""
    pages = [-(-n // page) for n in kv_lens]
    order = np.random.default_rng(seed).permutation(sum(pages)).astype(np.int32)
    table = np.zeros((len(pages), max(pages)), np.int32)
    for row, (count, end) in enumerate(zip(pages, itertools.accumulate(pages), strict=True)):
        table[row, :count] = order[end - count : end]
    return table, len(order)


def fa3(case: Case, pools: Pools) -> Prepared:
    """`flash_attn_varlen_func(fa_version=3)`; without scheduler metadata, so its small preparing kernel is included."""
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    q_lens, kv_lens = case["q_lens"], case["kv_lens"]
    heads, kv_heads, width, page = case["heads"], case["kv_heads"], case["head_dim"], case.get("page_size") or 16
    table, pages = page_table(kv_lens, page)
    q = pools.take("activation", case.get("dtype", "bf16"), sum(q_lens), heads, width)
    out = pools.take("scratch", case.get("dtype", "bf16"), sum(q_lens), heads, width)
    k, v = (pools.take("weight", case.get("dtype", "bf16"), pages, page, kv_heads, width) for _ in range(2))
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "out": out,
        "max_seqlen_q": max(q_lens),
        "max_seqlen_k": max(kv_lens),
        "cu_seqlens_q": _int32(np.cumsum([0, *q_lens]), pools.device),
        "seqused_k": _int32(kv_lens, pools.device),
        "block_table": torch.from_numpy(table).to(pools.device),
        "softmax_scale": width**-0.5,
        "causal": case.get("causal", True),
        "fa_version": 3,
    }
    return Prepared(lambda: flash_attn_varlen_func(**arguments))


def _int32(values: Any, device: str) -> Any:
    import torch

    return torch.from_numpy(np.asarray(values, np.int32)).to(device)
