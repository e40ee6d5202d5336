"""Every kernel of the comparison: its space with the default first, keys of its launches, sizes and operands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from lab.any_kernel.subjects import (
    MOE_ROWS,
    WARPS,
    Subject,
    attention_call,
    block_fp8_call,
    chunk_call,
    cross_entropy_call,
    cut,
    first,
    flag_gems_call,
    fused_moe_call,
    gated_call,
    grouped_call,
    grouped_trips,
    int8_call,
    l2norm_call,
    layer_norm_call,
    liger_warps,
    matmul_call,
    persistent_call,
    power,
    prefill_call,
    prefill_trips,
    product_shape,
    rms_norm_call,
    rows_shape,
    sequences,
    softmax_call,
    spread,
    swiglu_call,
    tiles,
    tutorial,
)
from lab.any_kernel.unmet import unmet

SQUARE = tiles((16, 64, 128), (32, 64, 128, 256), (32, 64), GROUP_M=(8,))
MATMUL = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3, "GROUP_M": 8}  # the default


def subjects() -> tuple[Subject, ...]:
    """Every kernel of the comparison."""
    return (*_tutorials(), *_of_training(), *_of_serving(), *_of_more(), _chunk(), *unmet())


def _tutorials() -> Iterator[Subject]:
    """Kernels of Triton's tutorials."""
    plain = first({"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
                  tiles((16, 64, 128), (64, 128, 256), (64,)))  # fmt: skip
    blocks = tuple({"BLOCK_SIZE": size, "num_warps": warps}
                   for size in (512, 1024, 2048, 4096, 8192) for warps in (2, 4, 8, 16)
                   if size // warps >= 64)  # fmt: skip
    attend = tuple({"BLOCK_M": m, "BLOCK_N": n, "num_warps": w, "num_stages": s}
                   for m, n, w, s in product((64, 128), (32, 64, 128), (4, 8), (2, 3)))  # fmt: skip
    yield from (
        Subject("matmul", "tutorials", tutorial("matmul"), first(MATMUL, SQUARE), ("M", "N", "K"),
                product_shape, matmul_call),
        Subject("persistent_matmul", "tutorials", tutorial("persistent_matmul"),
                plain,
                ("M", "N", "K"), product_shape, persistent_call),
        Subject("grouped_matmul", "tutorials", tutorial("grouped_matmul"),
                plain,
                ("group",), lambda pick: {"g": pick.choice((4, 8, 16)), "m": spread(pick, 16, 2048),
                "n": spread(pick, 256, 4096, 64), "k": spread(pick, 256, 4096, 64)}, grouped_call, trips=grouped_trips),
        Subject("attention", "tutorials", tutorial("attention"),
                first({"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}, attend), ("N_CTX",),
                sequences, attention_call),
        Subject("layer_norm", "tutorials", tutorial("layer_norm"), blocks, ("N",), rows_shape, layer_norm_call,
                lambda s: {"BLOCK_SIZE": max(512, min(8192, power(s["cols"]))),
                           "num_warps": min(max(power(s["cols"]) // 256, 2), 8)}),
        Subject("softmax", "tutorials", tutorial("softmax"), first({"num_warps": 8}, WARPS), ("rows", "cols"),
                partial(rows_shape, cols=(1000, 1024, 2000, 2048, 3000, 4096, 6000, 8192)), softmax_call),
    )  # fmt: skip


def _of_training() -> Iterator[Subject]:
    """Kernels of Liger."""
    vocab = (32_000, 50_304, 65_536, 102_400, 128_256, 151_936)
    liger_blocks = tuple({"BLOCK_SIZE": size, "num_warps": warps}
                         for size, warps in product((2048, 4096, 8192, 16384, 32768), (4, 8, 16, 32)))  # fmt: skip
    yield from (
        Subject("liger_rms_norm", "Liger", cut("liger_rms_norm", "_rms_norm_forward_kernel"), WARPS,
                ("n_cols",), rows_shape, rms_norm_call, lambda s: {"num_warps": liger_warps(s)}),
        Subject("liger_swiglu", "Liger", cut("liger_swiglu", "_swiglu_forward_kernel"), WARPS, ("n_cols",),
                partial(rows_shape, cols=(2816, 4864, 5504, 8192, 11008, 14336), most=8192), swiglu_call,
                lambda s: {"num_warps": liger_warps(s)}),
        Subject("liger_cross_entropy", "Liger", cut("liger_cross_entropy", "liger_cross_entropy_kernel"),
                first({"BLOCK_SIZE": 32768, "num_warps": 32}, liger_blocks), ("n_cols",),
                partial(rows_shape, cols=vocab, most=4096), cross_entropy_call),
    )  # fmt: skip


def _of_serving() -> Iterator[Subject]:
    """Kernels of FlagGems and vLLM."""
    fp8_tiles = tiles((16, 32, 64, 128), (64, 128), (128,), names="BLOCK_SIZE_{}", each=1, GROUP_SIZE_M=(1, 32))
    moe_tiles = tiles((MOE_ROWS,), (32, 64, 128, 256), (32, 64, 128), names="BLOCK_SIZE_{}", GROUP_SIZE_M=(1, 8))
    yield from (
        Subject("flag_gems_mm", "FlagGems", cut("flag_gems_mm", "mm_kernel_general"), first(MATMUL, SQUARE),
                ("M", "N", "K"), product_shape, flag_gems_call),
        Subject("vllm_fused_moe", "vLLM", cut("vllm_fused_moe", "fused_moe_kernel"),
                first({"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "num_warps": 4,
                       "num_stages": 3}, moe_tiles), ("N", "K", "EM"),
                lambda pick: {"m": spread(pick, 64, 4096), "e": pick.choice((8, 32, 64)),
                              "n": spread(pick, 512, 4096, 64), "k": spread(pick, 512, 4096, 64)}, fused_moe_call),
        Subject("vllm_block_fp8", "vLLM", cut("vllm_block_fp8", "_w8a8_triton_block_scaled_mm"),
                first({"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32,
                       "num_warps": 4, "num_stages": 2}, fp8_tiles), ("M", "N", "K"),
                partial(product_shape, step=128), block_fp8_call),
    )  # fmt: skip


def _of_more() -> Iterator[Subject]:
    """Kernels of flash-linear-attention, SGLang, Unsloth and torchao."""
    norms = tuple({"BT": rows, "num_warps": warps} for warps in (1, 2, 4, 8, 16) for rows in (8, 16, 32, 64, 128))
    blocks = tuple({"BLOCK_SIZE": size, "num_warps": warps}
                   for size, warps in product((512, 1024, 2048, 4096, 8192), (2, 4, 8, 16)))  # fmt: skip
    attend = tuple({"BLOCK_M": m, "BLOCK_N": n, "num_warps": w, "num_stages": s}
                   for m, n, w, s in product((64, 128), (32, 64, 128), (4, 8), (1, 2)))  # fmt: skip
    yield from (
        Subject("fla_l2norm", "flash-linear-attention", cut("fla_l2norm", "l2norm_fwd_kernel"), norms, ("D", "NB"),
                partial(rows_shape, cols=(64, 96, 128, 192, 256, 512), most=131072), l2norm_call),
        Subject("unsloth_swiglu", "Unsloth", cut("unsloth_swiglu", "_fg_kernel"),
                first({"BLOCK_SIZE": 1024, "num_warps": 4}, blocks), ("n_elements",),
                lambda pick: {"n": spread(pick, 1 << 16, 1 << 28, 64)}, gated_call),
        Subject("sglang_prefill", "SGLang", cut("sglang_prefill", "_fwd_kernel"),
                first({"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 1}, attend), ("length",),
                sequences, prefill_call, trips=prefill_trips),
        Subject("torchao_int8_mm", "torchao", cut("torchao_int8_mm", "matmul_kernel_with_block_pointers"),
                first({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2, "GROUP_M": 8},
                      tiles((32, 64, 128), (64, 128, 256), (64, 128), each=1, GROUP_M=(8,))),
                ("M", "N", "K"), partial(product_shape, step=128), int8_call),
    )  # fmt: skip


def _chunk() -> Subject:
    """The chunk scan of flash-linear-attention, with the configurations that the project itself lists for some card.

    Some of them fault on Hopper with Triton 3.6: record it last.
    """
    own = ((128, 128, 8, 3), (64, 64, 4, 3), (32, 32, 2, 3))
    more = tuple((k, v, w, 2) for k, v in ((128, 64), (64, 64), (64, 32), (32, 64), (32, 32)) for w in (4, 8))
    listed = tuple({"BK": k, "BV": v, "num_warps": w, "num_stages": s} for k, v, w, s in (*own, *more))
    return Subject("fla_chunk_o", "flash-linear-attention", cut("fla_chunk_o", "chunk_fwd_kernel_o"), listed,
                   ("H", "K", "V", "BT"), lambda pick: {"batch": spread(pick, 1, 16),
                   "length": spread(pick, 128, 8192, 64), "heads": pick.choice((8, 16))}, chunk_call)  # fmt: skip
