"""Kernels that were recorded after the method stood, to see how those fare that nothing had been decided with.

What they showed was mended since, so that they are no longer blind (docs/studies/tune-user-kernels.md).
Sizes that are constants, loops over data, locks, packed weights: kinds of kernels that the others of the comparison do
not have. No `trips=` is given, as a newcomer gives none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from lab.any_kernel.subjects import Call, Shape, Subject, bf16, cut, first, product_shape, sequences, spread, tiles

HEAD = 128  # width of a head
MOST_VALUES = 2**28  # of any tensor of a launch
MOST_WORK = 2**39  # multiplications of a launch: about a millisecond
SPLITS = 8  # of a sequence's keys, SGLang's default
CHUNK = 256  # tokens of a chunk of Mamba 2
VOCABULARIES = 32_000, 50_304, 65_536, 102_400, 128_256, 151_936


def unmet() -> Iterator[Subject]:
    """Each with the author's configuration first, where they have a fixed one."""
    attend = tuple({"BLOCK_M": m, "BLOCK_N": n, "num_warps": w, "num_stages": s}
                   for m, n, w, s in product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)))  # fmt: skip
    decode = tuple({"BLOCK_N": n, "num_warps": w, "num_stages": s}
                   for n, w, s in product((16, 32, 64, 128), (2, 4, 8), (1, 2, 3)))  # fmt: skip
    states = tuple({"BV": v, "num_warps": w, "num_stages": s} for w, s, v in product((2, 4), (2, 3, 4), (32, 64)))
    scans = tuple({"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "num_warps": w, "num_stages": s}
                  for m, n, k, w, s in product((32, 64, 128), (32, 64), (32, 64), (2, 4), (2, 4)))  # fmt: skip
    packed = tuple({"cxpr_block_size_m": m, "cxpr_block_size_n": n, "cxpr_block_size_k": k, "cxpr_group_size_m": 16,
                    "num_warps": w, "num_stages": s}
                   for m, n, k, w, s in product((16, 64, 128), (64, 128), (64, 128), (4, 8), (2, 3)))  # fmt: skip
    rows = (32, 32), (64, 32), (64, 64), (128, 32), (128, 64)
    gates = tuple({"siz_b_LQ": q, "siz_b_LKV": kv, "siz_b_DHQK": 64, "siz_b_DHHV": v, "num_warps": w, "num_stages": 1}
                  for (q, kv), v, w in product(rows, (64, 128), (4, 8)))  # fmt: skip
    yield from (
        Subject("sage_attention", "SageAttention", cut("sage_attention", "_attn_fwd"),
                first({"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 4}, attend),
                ("qo_len", "kv_len"), sequences, sage_call),
        Subject("sglang_decode", "SGLang", cut("sglang_decode", "_fwd_grouped_kernel_stage1"),
                first({"BLOCK_N": 32, "num_warps": 4, "num_stages": 2}, decode), ("kv_group_num",), cached,
                decode_call),
        Subject("cut_cross_entropy", "cut-cross-entropy", cut("cut_cross_entropy", "_cce_lse_forward_kernel"),
                first({"BLOCK_B": 256, "BLOCK_V": 128, "BLOCK_D": 32, "num_warps": 8, "num_stages": 3},
                      tiles_of_vocabulary()), ("V", "D", "B_BIN"), vocabulary_shape, vocabulary_call),
        Subject("fla_delta_state", "flash-linear-attention",
                cut("fla_delta_state", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64"), states, ("H", "HV"),
                partial(batches, heads=(8, 16, 32)), state_call),
        Subject("sglang_mamba_scan", "SGLang", cut("sglang_mamba_scan", "_chunk_scan_fwd_kernel"),
                first({"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "num_warps": 4, "num_stages": 4},
                      scans), ("seqlen", "batch"), partial(batches, heads=(24, 64, 128)), scan_call),
        Subject("conch_w4a16", "Conch", cut("conch_w4a16", "_gemm_kernel"),
                first({"cxpr_block_size_m": 128, "cxpr_block_size_n": 64, "cxpr_block_size_k": 64,
                       "cxpr_group_size_m": 16, "num_warps": 8, "num_stages": 2}, packed),
                ("m_dim", "k_dim", "n_dim"), partial(product_shape, step=128), packed_call),
        Subject("mlstm", "mlstm_kernels", cut("mlstm", "mlstm_chunkwise__parallel_fw_Hintra_kernel"), gates,
                ("S", "DHQK"), gates_shape, gates_call),
    )  # fmt: skip


def tiles_of_vocabulary() -> tuple[dict[str, int], ...]:
    """Tiles of a product under the names of cut-cross-entropy."""
    names = {"BLOCK_M": "BLOCK_B", "BLOCK_N": "BLOCK_V", "BLOCK_K": "BLOCK_D"}
    found = tiles((64, 128), (64, 128, 256), (32, 64))
    return tuple({names.get(name, name): value for name, value in one.items()} for one in found)


def cached(pick: random.Random) -> Shape:
    """Requests of one context each, as far as their cache stays small."""
    while True:
        batch, length, heads = spread(pick, 1, 256), spread(pick, 128, 32_768), pick.choice((8, 16, 32, 64))
        if batch * length * heads * HEAD // 4 <= MOST_VALUES:
            return {"batch": batch, "length": length, "heads": heads}


def vocabulary_shape(pick: random.Random) -> Shape:
    """Tokens against a vocabulary."""
    while True:
        b, v, d = spread(pick, 64, 16_384), pick.choice(VOCABULARIES), pick.choice((1024, 1536, 2048, 3072, 4096))
        if b * v * d <= MOST_WORK:
            return {"b": b, "v": v, "d": d}


def batches(pick: random.Random, heads: tuple[int, ...]) -> Shape:
    """A batch of sequences of one length, a whole number of chunks."""
    while True:
        batch, length, count = spread(pick, 1, 16), spread(pick, CHUNK, 16_384, CHUNK), pick.choice(heads)
        if batch * length * count * HEAD <= MOST_VALUES:
            return {"batch": batch, "length": length, "heads": count}


def gates_shape(pick: random.Random) -> Shape:
    """Sequences under matrix memories; widths of keys are half of those of values."""
    shape = batches(pick, heads=(4, 8))
    return shape | {"chunk": pick.choice((128, 256)), "keys": pick.choice((64, 128, 256))}


def sage_call(torch: Any, s: Shape) -> Call:
    """Attention of 8-bit queries and keys; scales of the smallest blocks."""
    batch, heads, length = s["batch"], s["heads"], s["length"]
    q, k = (torch.randint(-64, 64, (batch, heads, length, HEAD), dtype=torch.int8, device="cuda") for _ in range(2))
    v = torch.empty(batch, heads, length, HEAD, dtype=torch.float16, device="cuda").normal_(0, 0.5)
    q_scale, k_scale = (torch.full((batch * heads * -(-length // block),), 1e-4, device="cuda") for block in (64, 32))
    strides = (heads * length * HEAD, length * HEAD, HEAD) * 4
    grid = lambda meta: (-(-length // meta["BLOCK_M"]), heads, batch)  # noqa: E731
    return grid, (q, k, v, q_scale, k_scale, torch.empty_like(v), *strides, length, length), {
        "H": heads, "num_kv_groups": 1, "HEAD_DIM": HEAD, "STAGE": 1}  # fmt: skip


def decode_call(torch: Any, s: Shape) -> Call:
    """One token of each request over keys that an index lists; eight queries share a head of keys."""
    batch, length, heads = s["batch"], s["length"], s["heads"]
    shared, tokens = heads // 8, batch * length
    q = bf16(torch, batch, heads, HEAD)
    k, v = (bf16(torch, tokens, shared, HEAD) for _ in range(2))
    starts = torch.arange(0, tokens + 1, length, dtype=torch.int32, device="cuda")
    places = torch.randperm(tokens, device="cuda").to(torch.int32)
    out, lse = torch.empty(batch, heads, SPLITS, HEAD, device="cuda"), torch.empty(batch, heads, SPLITS, device="cuda")
    splits = torch.full((batch,), SPLITS, dtype=torch.int32, device="cuda")
    wide = shared * HEAD
    strides = (heads * HEAD, HEAD, wide, HEAD, wide, HEAD, heads * SPLITS * HEAD, SPLITS * HEAD, HEAD)
    return (batch, shared, SPLITS), (q, k, v, 0.0884, starts, places, out, lse, splits, *strides), {
        "kv_group_num": 8, "q_head_num": heads, "BLOCK_DMODEL": HEAD, "BLOCK_DPE": 0, "BLOCK_DV": HEAD, "BLOCK_H": 16,
        "MIN_BLOCK_KV": 32, "logit_cap": 0.0, "xai_temperature_len": -1, "Lk": HEAD, "Lv": HEAD}  # fmt: skip


def vocabulary_call(torch: Any, s: Shape) -> Call:
    """Log-sum-exp of tokens over a vocabulary, added up under locks; it may grow from launch to launch."""
    b, v, d = s["b"], s["v"], s["d"]
    e, c = bf16(torch, b, d), bf16(torch, v, d)
    lse, locks = torch.zeros(b, device="cuda"), torch.zeros(-(-b // 128), dtype=torch.int32, device="cuda")
    grid = lambda meta: (-(-b // meta["BLOCK_B"]) * -(-v // meta["BLOCK_V"]),)  # noqa: E731
    some = 1024 if b >= 1024 else 128 if b <= 128 else 512
    return grid, (e, c, lse, None, locks, None, None, b, v, d, d, 1, d, 1, 1, 1, locks.numel(), some), {
        "HAS_VALIDS": False, "GROUP_B": 8, "EVEN_D": True, "HAS_SOFTCAP": False, "HAS_LA": False,
        "DOT_PRECISION": "ieee"}  # fmt: skip


def state_call(torch: Any, s: Shape) -> Call:
    """States of a gated delta net at the end of every chunk of 64 tokens."""
    batch, length, heads = s["batch"], s["length"], s["heads"]
    k, v, w = (bf16(torch, batch, length, heads, HEAD) * 0.1 for _ in range(3))
    g = torch.zeros(batch, length, heads, device="cuda")
    h = torch.empty(batch, -(-length // 64), heads, HEAD, HEAD, dtype=torch.bfloat16, device="cuda")
    last = torch.empty(batch, heads, HEAD, HEAD, device="cuda")
    grid = lambda meta: (-(-HEAD // meta["BV"]) * batch * heads,)  # noqa: E731
    return grid, (k, v, w, torch.empty_like(v), g, None, h, None, last, None, None, length), {
        "H": heads, "HV": heads, "K": HEAD, "V": HEAD, "BT": 64, "STATE_V_FIRST": False}  # fmt: skip


def scan_call(torch: Any, s: Shape) -> Call:
    """Mamba 2's scan within chunks: heads of 64, states of 128, one group."""
    batch, length, heads = s["batch"], s["length"], s["heads"]
    chunks, wide, states = length // CHUNK, 64, 128
    cb = torch.zeros(batch, chunks, 1, CHUNK, CHUNK, device="cuda")
    x, out = bf16(torch, batch, length, heads, wide), bf16(torch, batch, length, heads, wide)
    dt, decay = (torch.zeros(batch, heads, chunks, CHUNK, device="cuda") for _ in range(2))
    c, d = bf16(torch, batch, length, 1, states), torch.ones(heads, device="cuda")
    before = torch.zeros(batch, chunks, heads, wide, states, device="cuda")
    by_chunk = dt.stride(0), dt.stride(2), dt.stride(1), dt.stride(3)
    strides = (*cb.stride(), *x.stride(), 0, 0, 0, 0, *out.stride(), *by_chunk, *by_chunk, 0, 0, *c.stride(),
               *before.stride(), 0, 0, 0, 0, 1)  # fmt: skip
    grid = lambda meta: (  # noqa: E731
        -(-CHUNK // meta["BLOCK_SIZE_M"]) * -(-wide // meta["BLOCK_SIZE_N"]), batch * chunks, heads)  # fmt: skip
    given = (cb, x, None, out, None, dt, decay, None, c, before, d, None, None, None, 0, CHUNK, wide, states, batch,
             length, heads)  # fmt: skip
    return grid, (*given, *strides), {
        "IS_CAUSAL": True, "HAS_D": True, "D_HAS_HDIM": False, "HAS_Z": False, "HAS_SEQ_IDX": False,
        "BLOCK_SIZE_DSTATE": states, "IS_TRITON_22": True, "HAS_INITSTATES": False}  # fmt: skip


def packed_call(torch: Any, s: Shape) -> Call:
    """A product with weights of four bits, a scale for each 128 of them."""
    import triton.language as tl

    m, n, k = s["m"], s["n"], s["k"]
    a, c, scales = bf16(torch, m, k), bf16(torch, m, n), bf16(torch, k // 128, n)
    b = torch.randint(-(2**31), 2**31 - 1, (k // 8, n), dtype=torch.int32, device="cuda")
    zeros = torch.zeros(1, dtype=torch.int32, device="cuda")
    grid = lambda meta: (  # noqa: E731
        -(-m // meta["cxpr_block_size_m"]) * -(-n // meta["cxpr_block_size_n"]),)  # fmt: skip
    named = {
        "a_ptr": a, "b_ptr": b, "c_ptr": c, "scales_ptr": scales, "zeros_ptr": zeros, "scales_a_ptr": None,
        "m_dim": m, "k_dim": k, "n_dim": n, "cxpr_w_nbits": 4, "cxpr_weight_bias": 8, "cxpr_group_size": 128,
        "cxpr_unpack_mask": 15, "cxpr_elements_per_sample": 8, "matrix_a_stride_m": k, "matrix_a_stride_k": 1,
        "matrix_b_stride_k": n, "matrix_b_stride_n": 1, "matrix_c_stride_m": n, "matrix_c_stride_n": 1,
        "meta_stride_g": n, "meta_stride_n": 1, "cxpr_input_dtype": tl.bfloat16, "cxpr_output_dtype": tl.bfloat16,
        "cxpr_acc_dtype": tl.float32, "cxpr_meta_dtype": tl.bfloat16, "cxpr_channel_scale_mode": 0,
        "cxpr_w_group_mode": 2, "cxpr_zero_is_scalar": False, "cxpr_data_contiguous": True,
        "cxpr_matrix_a_load_order": 2, "cxpr_matrix_a_eviction_policy": "evict_last",
        "cxpr_matrix_b_eviction_policy": "evict_first", "cxpr_meta_eviction_policy": "", "cxpr_swizzle_pid": True,
        "cxpr_block_size_scale_a": 1, "cxpr_block_size_scale_b": 1}  # fmt: skip
    return grid, (), named


def gates_call(torch: Any, s: Shape) -> Call:
    """Outputs of an mLSTM within its chunks: every size and stride is a constant."""
    import triton.language as tl

    batch, heads, length, chunk, keys = s["batch"], s["heads"], s["length"], s["chunk"], s["keys"]
    values, chunks = 2 * keys, length // chunk
    q, k = (bf16(torch, batch, heads, length, keys) for _ in range(2))
    v, out = (bf16(torch, batch, heads, length, values) for _ in range(2))
    memory = torch.zeros(batch, heads, (chunks + 1) * keys, values, device="cuda")
    norm = torch.zeros(batch, heads, (chunks + 1) * keys, device="cuda")
    most = torch.zeros(batch, heads, chunks + 1, device="cuda")
    gate, forget = (torch.zeros(batch, heads, chunks, chunk, device="cuda") for _ in range(2))
    n_out, m_out = (torch.empty(batch, heads, length, device="cuda") for _ in range(2))
    grid = lambda meta: (  # noqa: E731
        -(-values // meta["siz_b_DHHV"]), -(-chunk // meta["siz_b_LQ"]), chunks * batch * heads)  # fmt: skip
    sizes = {
        "qk_scale": keys**-0.5, "str_matQK_B_NH": length * keys, "str_matQK_S": keys, "str_matQK_DHQK": 1,
        "str_matHV_B_NH": length * values, "str_matHV_S": values, "str_matHV_DHHV": 1,
        "str_matCstates_B_NH": memory.stride(1), "str_matCstates_NCDHQK": values, "str_matCstates_DHHV": 1,
        "str_vecNstates_B_NH": norm.stride(1), "str_vecNstates_NCDHQK": 1, "str_scaMinterstates_B_NH": chunks + 1,
        "str_vecBI_B_NH": length, "str_vecBI_NC": chunk, "str_vecBI_L": 1, "str_vecMN_B_NH": length, "str_vecMN_S": 1,
        "B": batch, "NH": heads, "S": length, "DHQK": keys, "DHHV": values, "NC": chunks, "L": chunk,
        "DTYPE": tl.bfloat16, "OUTPUT_DTYPE": tl.float32, "EPS": 1e-6, "MINIMUM_MAX_VAL": -10.0}  # fmt: skip
    return grid, (q, k, v, memory, norm, most, gate, forget, out, n_out, m_out), sizes
