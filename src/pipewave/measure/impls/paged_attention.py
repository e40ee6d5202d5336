"""Attention over a paged cache: FlashAttention-3 and Triton as vLLM calls them, FlashInfer's FlashAttention-2."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipewave.measure.impls import Pools, Prepared
from pipewave.measure.job import Case

Pages = np.ndarray[Any, Any]


def page_table(
    kv_lens: Sequence[int], page: int, seed: int = 0, *, order: str = "random", room: int = 0
) -> tuple[Pages, int]:
    """int32 table [requests, most pages], and the pages of the cache; `order` as `Job.pages`, `room` those of a server.

    Raises ValueError when `scattered` pages do not fit into the room.
    """
    pages = [-(-n // page) for n in kv_lens]
    count, rng = sum(pages), np.random.default_rng(seed)
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


def _arguments(case: Case, pools: Pools, table: Pages) -> dict[str, Any]:
    """What both of vLLM's kernels take beside keys and values."""
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
    arguments = _arguments(case, pools, table)
    k, v = (pools.take(region, case.get("dtype", "bf16"), pages, page, kv_heads, width) for _ in range(2))
    arguments |= {"k": k, "v": v, "causal": case.get("causal", True), "fa_version": 3}
    return Prepared(lambda: flash_attn_varlen_func(**arguments))


def int32(values: Any, device: str) -> Any:
    """Lengths as a tensor on the device."""
    import torch

    return torch.from_numpy(np.asarray(values, np.int32)).to(device)


def unified(case: Case, pools: Pools) -> Prepared:
    """`unified_attention` as the backend TRITON_ATTN calls it; keys and values of a page lie behind one another."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    page, window = case.get("page_size") or 16, case.get("window") or 0
    table, pages, region = placed(case, pools, page)
    arguments = _arguments(case, pools, table)
    k, v = pools.take(region, case.get("dtype", "bf16"), pages, 2, page, case["kv_heads"], case["head_dim"]).unbind(1)
    arguments |= {
        "k": k, "v": v, "causal": True, "softcap": case.get("softcap") or 0.0,
        "window_size": (window - 1, 0) if window else (-1, -1),
        "q_descale": None, "k_descale": None, "v_descale": None,
        "sinks": torch.zeros(case["heads"], device=pools.device) if case.get("sinks") else None,
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
