"""Attention over a paged cache: FlashAttention-3 as vLLM calls it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipewave.measure.impls import Pools, Prepared
from pipewave.measure.plan import Case

Pages = np.ndarray[Any, Any]


def page_table(kv_lens: Sequence[int], page: int, *, order: str = "random", room: int = 0) -> tuple[Pages, int]:
    """int32 table [requests, most pages], and the pages of the cache; `order` as `Job.pages`, `room` those of a server.
    Raises ValueError when `scattered` pages do not fit into the room.
    """
    pages = [-(-n // page) for n in kv_lens]
    count, rng = sum(pages), np.random.default_rng(0)
    if order == "scattered":
        order_of = rng.choice(room, count, replace=False)
    else:
        order_of = np.arange(count) if order == "in_order" else rng.permutation(count)
    table = np.zeros((len(pages), max(pages)), np.int32)
    for row, (held, end) in enumerate(zip(pages, itertools.accumulate(pages), strict=True)):
        table[row, :held] = order_of[end - held : end]
    return table, room if order == "scattered" else count


def placed(case: Case, pools: Pools, page: int) -> tuple[Pages, int, str]:
    """The page table of a case as its job places pages, the pages of its cache, and the region for keys and values."""
    region = "cache" if pools.pages == "scattered" else "weight"
    room = pools.room(region, 2) // (page * case["kv_heads"] * case["head_dim"])
    return *page_table(case["kv_lens"], page, order=pools.pages, room=room), region


def arguments(case: Case, pools: Pools, table: Pages) -> dict[str, Any]:
    """What kernels of vLLM take beside keys and values."""
    import torch

    q_lens, kv_lens, width = case["q_lens"], case["kv_lens"], case["head_dim"]
    q, out = (pools.take(name, case.get("dtype", "bf16"), sum(q_lens), case["heads"], width)
              for name in ("activation", "scratch"))  # fmt: skip
    return {
        "q": q, "out": out, "max_seqlen_q": max(q_lens), "max_seqlen_k": max(kv_lens),
        "cu_seqlens_q": int32(np.cumsum([0, *q_lens]), pools.device), "seqused_k": int32(kv_lens, pools.device),
        "block_table": torch.from_numpy(table).to(pools.device), "softmax_scale": width**-0.5,
    }  # fmt: skip


def fa3(case: Case, pools: Pools) -> Prepared:
    """`flash_attn_varlen_func(fa_version=3)`; without scheduler metadata, so its small preparing kernel is included."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    kv_heads, width, page = case["kv_heads"], case["head_dim"], case.get("page_size") or 16
    table, pages, region = placed(case, pools, page)
    given = arguments(case, pools, table)
    k, v = (pools.take(region, case.get("dtype", "bf16"), pages, page, kv_heads, width) for _ in range(2))
    given |= {"k": k, "v": v, "causal": case.get("causal", True), "fa_version": 3}
    return Prepared(lambda: flash_attn_varlen_func(**given))


def int32(values: Any, device: str) -> Any:
    """Lengths as a tensor on the device."""
    import torch

    return torch.from_numpy(np.asarray(values, np.int32)).to(device)
