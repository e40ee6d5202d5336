"""vLLM besides attention: fp8 and int8 products, norms, activation, rotary embedding, cache write, and experts, fused
in Triton with its tuned file or its default configuration.
"""

from __future__ import annotations

import zlib
from typing import Any

from pipewave.measure.impls import Pools, Prepared, Skip
from pipewave.measure.plan import Case

BLOCK = 128
EPSILON = 1e-6
PAGE = 16  # tokens of a cache's page
POSITIONS = 65536  # in the table of rotations


def cutlass(case: Case, pools: Pools) -> Prepared:
    """`quantize` adds the dynamic quantisation of the bf16 activations to the call."""
    return _blockwise(case, pools) if case["dtype"] == "fp8_block" else _per_token(case, pools)


def _per_token(case: Case, pools: Pools) -> Prepared:
    import torch
    from vllm import _custom_ops as ops

    m, n, k, dtype = case["m"], case["n"], case["k"], case["dtype"]
    w = pools.take("weight", dtype, n, k).t()
    scale_b = torch.rand((n, 1), device=pools.device) + 0.5

    def quantized(raw: Any) -> tuple[Any, Any]:
        """Activations in `dtype` with a scale a token."""
        found = (
            ops.scaled_int8_quant(raw) if dtype == "int8" else ops.scaled_fp8_quant(raw, use_per_token_if_dynamic=True)
        )
        return found[0], found[1]

    def product(x: Any, scale_a: Any) -> object:
        return ops.cutlass_scaled_mm(x, w, scale_a, scale_b, torch.bfloat16)

    if case.get("quantize"):
        raw = pools.take("activation", "bf16", m, k)
        return Prepared(lambda: product(*quantized(raw)))
    x = pools.take("activation", dtype, m, k)
    scale_a = torch.rand((m, 1), device=pools.device) + 0.5
    return Prepared(lambda: product(x, scale_a))


def _blockwise(case: Case, pools: Pools) -> Prepared:
    import torch
    from vllm.model_executor.kernels.linear.scaled_mm import cutlass as _registers_padded_cutlass  # noqa: F401
    from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8 as quantized

    m, n, k = case["m"], case["n"], case["k"]
    w = pools.take("weight", "fp8", n, k)
    scale_b = torch.rand((n // BLOCK, k // BLOCK), device=pools.device) + 0.5

    def product(x: Any, scale_a: Any) -> object:
        # On Hopper this op pads m to a multiple of 4, copying the activations when it must; the copies are in the call.
        return torch.ops.vllm.padded_cutlass(x, w, scale_a, scale_b, [BLOCK, BLOCK], torch.bfloat16)

    if case.get("quantize"):
        raw = pools.take("activation", "bf16", m, k)
        return Prepared(lambda: product(*quantized(raw, BLOCK, column_major_scales=True, use_ue8m0=False)))
    x = pools.take("activation", "fp8", m, k)
    scale_a = (torch.rand((k // BLOCK, m), device=pools.device) + 0.5).t()
    return Prepared(lambda: product(x, scale_a))


def rmsnorm(case: Case, pools: Pools) -> Prepared:
    """RMSNorm out of place, or fused with the residual addition in place."""
    from vllm import _custom_ops as ops

    rows, dim = case["rows"], case["dim"]
    weight = pools.take("weight", "bf16", dim)
    if case.get("fused_add"):
        x, residual = (pools.take("scratch", "bf16", rows, dim) for _ in range(2))
        return Prepared(lambda: ops.fused_add_rms_norm(x, residual, weight, EPSILON))
    source, out = pools.take("activation", "bf16", rows, dim), pools.take("scratch", "bf16", rows, dim)
    return Prepared(lambda: ops.rms_norm(out, source, weight, EPSILON))


def silu_and_mul(case: Case, pools: Pools) -> Prepared:
    """SiLU of the first half times the second."""
    import torch
    from vllm import _custom_ops as _registers_ops  # noqa: F401

    x = pools.take("activation", "bf16", case["rows"], 2 * case["dim"])
    out = pools.take("scratch", "bf16", case["rows"], case["dim"])
    return Prepared(lambda: torch.ops._C.silu_and_mul(out, x))


def rope(case: Case, pools: Pools) -> Prepared:
    """Rotary embedding (half-split) in place on queries and keys that are slices of one qkv tensor, as in a layer."""
    import torch
    from vllm import _custom_ops as ops

    rows, heads, kv_heads, width = case["rows"], case["heads"], case["kv_heads"], case["head_dim"]
    qkv = pools.take("scratch", "bf16", rows, (heads + 2 * kv_heads) * width)
    q, k, _ = qkv.split([heads * width, kv_heads * width, kv_heads * width], dim=-1)
    rates = 10000.0 ** -(torch.arange(0, width, 2, device=pools.device) / width)
    angles = torch.arange(POSITIONS, device=pools.device)[:, None] * rates
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1).to(torch.bfloat16)
    positions = torch.arange(rows, device=pools.device) % POSITIONS
    return Prepared(lambda: ops.rotary_embedding(positions, q, k, width, cache, True))


def kv_write(case: Case, pools: Pools) -> Prepared:
    """`reshape_and_cache_flash`: new keys and values into pages scattered over a cache of twice the size."""
    import torch
    from vllm import _custom_ops as ops

    rows, kv_heads, width = case["rows"], case["kv_heads"], case["head_dim"]
    key, value = (pools.take("activation", "bf16", rows, kv_heads, width) for _ in range(2))
    pages = max(256, 2 * -(-rows // PAGE))
    keys, values = (pools.take("scratch", "bf16", pages, PAGE, kv_heads, width) for _ in range(2))
    slots = (torch.randperm(pages, device=pools.device)[:, None] * PAGE + torch.arange(PAGE, device=pools.device)).view(
        -1
    )
    slots, one = slots[:rows].contiguous(), torch.ones(1, device=pools.device)
    return Prepared(lambda: ops.reshape_and_cache_flash(key, value, keys, values, slots, "auto", one, one))


def as_served(case: Case, pools: Pools) -> Prepared:
    """The configuration vLLM picks: its file for this (experts, width) and GPU, else its default."""
    return _prepared(case, pools, *served_config(case))


def default_config(case: Case, pools: Pools) -> Prepared:
    """vLLM's default although a tuned file exists; skipped where none does, since `as_served` is that row."""
    if served_config(case)[1] == "default":
        raise Skip("no tuned file: the same as impl triton")
    return _prepared(case, pools, _default(case), "default")


def width(case: Case) -> int:
    """One expert's width on one rank."""
    return int(case["inter"]) // int(case.get("tp", 1))


def served_config(case: Case) -> tuple[dict[str, int], str]:
    """Triton block sizes and where they come from, `file` or `default`."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_moe_configs

    tuned = get_moe_configs(case["experts"], width(case), _config_dtype(case), *(_scale_block(case) or ()))
    if not tuned:
        return _default(case), "default"
    return dict(tuned[min(tuned, key=lambda tokens: abs(tokens - case["tokens"]))]), "file"


def _default(case: Case) -> dict[str, int]:
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config

    tokens, experts, hidden = case["tokens"], case["experts"], case["hidden"]
    dtype, block = _config_dtype(case), _scale_block(case)
    return dict(get_default_config(tokens, experts, width(case), hidden, case["topk"], dtype, block))


def _config_dtype(case: Case) -> str | None:
    """The type by which vLLM names its tuned files; None for 16-bit operands."""
    return "fp8_w8a8" if _stored(case) == "fp8" else None


def _scale_block(case: Case) -> list[int] | None:
    return [BLOCK, BLOCK] if case["dtype"] == "fp8_block" else None


def _stored(case: Case) -> str:
    """The type of the weights."""
    return "fp8" if str(case["dtype"]).startswith("fp8") else str(case["dtype"])


def routing(case: Case, device: str, dtype: str) -> tuple[Any, dict[str, Any]]:
    """`random` routing: normal logits, and a summary of how they load the experts."""
    import torch

    seed = zlib.crc32(repr((case["tokens"], case["experts"], case["topk"])).encode())
    generator = torch.Generator(device=device).manual_seed(seed)
    logits = torch.randn(case["tokens"], case["experts"], generator=generator, device=device).to(getattr(torch, dtype))
    counts = torch.bincount(logits.topk(case["topk"]).indices.flatten(), minlength=case["experts"])
    return logits, {"seed": seed, "hit": int((counts > 0).sum()), "busiest": int(counts.max())}


def _prepared(case: Case, pools: Pools, config: dict[str, int], source: str) -> Prepared:
    import torch
    from vllm.model_executor.layers.fused_moe import override_config
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    experts, hidden, inter = case["experts"], case["hidden"], width(case)
    x = pools.take("activation", "bf16", case["tokens"], hidden)
    w13 = pools.take("weight", _stored(case), experts, 2 * inter, hidden)
    w2 = pools.take("weight", _stored(case), experts, hidden, inter)
    logits, summary = routing(case, pools.device, "float32")
    weights, ids = torch.topk(torch.softmax(logits, -1), case["topk"])
    weights, ids = (weights / weights.sum(-1, keepdim=True)).float(), ids.to(torch.int32)
    scales = _scales(case, pools.device)

    def call() -> object:
        with override_config(config):
            return fused_experts(x, w13, w2, weights, ids, quant_config=scales)

    return Prepared(call, {"config": config, "config_source": source, "routing_seen": summary})


def _scales(case: Case, device: str) -> Any:
    """How vLLM runs in fp8, None for 16-bit operands. `fp8`: one scale an expert, static ones for the activations;
    `fp8_block`: one for 128 x 128 weights, and one for 128 activations of a token, found in the call.
    """
    import torch
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    if _stored(case) != "fp8":
        return None

    def drawn(*shape: int) -> Any:
        return torch.rand(shape, device=device) + 0.5

    experts, hidden, inter = case["experts"], case["hidden"], width(case)
    if case["dtype"] == "fp8":
        return fp8_w8a8_moe_quant_config(drawn(experts), drawn(experts), drawn(1), drawn(1))
    w13, w2 = drawn(experts, 2 * inter // BLOCK, hidden // BLOCK), drawn(experts, hidden // BLOCK, inter // BLOCK)
    return fp8_w8a8_moe_quant_config(w13, w2, block_shape=[BLOCK, BLOCK])
