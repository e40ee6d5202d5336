"""vLLM between attention and experts: fp8 and int8 products, norms, activation, rotary embedding, cache write."""

from __future__ import annotations

from typing import Any

from pipewave.measure.impls import Prepared
from pipewave.measure.job import Case
from pipewave.measure.pools import Pools

BLOCK = 128


def cutlass(case: Case, pools: Pools) -> Prepared:
    """`quantize` adds the dynamic quantisation of the bf16 activations to the call."""
    return _blockwise(case, pools) if case["dtype"] == "fp8_block" else _per_token(case, pools)


def _per_token(case: Case, pools: Pools) -> Prepared:
    import torch
    from vllm import _custom_ops as ops

    m, n, k, dtype = case["m"], case["n"], case["k"], case["dtype"]
    w = pools.take("weight", dtype, n, k).t()
    scale_b = torch.rand((n, 1), device=pools.device) + 0.5
    if case.get("quantize"):
        raw = pools.take("activation", "bf16", m, k)

        def quantizing() -> object:
            x, scale_a = _quantized(dtype, raw)
            return ops.cutlass_scaled_mm(x, w, scale_a, scale_b, torch.bfloat16)

        return Prepared(quantizing)
    x = pools.take("activation", dtype, m, k)
    scale_a = torch.rand((m, 1), device=pools.device) + 0.5
    return Prepared(lambda: ops.cutlass_scaled_mm(x, w, scale_a, scale_b, torch.bfloat16))


def _quantized(dtype: str, raw: Any) -> tuple[Any, Any]:
    """Activations in `dtype` with a scale a token."""
    from vllm import _custom_ops as ops

    if dtype == "int8":
        x, scale, _ = ops.scaled_int8_quant(raw)
        return x, scale
    x, scale = ops.scaled_fp8_quant(raw, use_per_token_if_dynamic=True)
    return x, scale


def _blockwise(case: Case, pools: Pools) -> Prepared:
    import torch
    from vllm.model_executor.kernels.linear.scaled_mm import cutlass as _registers_padded_cutlass  # noqa: F401
    from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8

    m, n, k = case["m"], case["n"], case["k"]
    w = pools.take("weight", "fp8", n, k)
    scale_b = torch.rand((n // BLOCK, k // BLOCK), device=pools.device) + 0.5
    # On Hopper this op pads m to a multiple of 4, copying the activations when it must; the copies are in the call.
    product = torch.ops.vllm.padded_cutlass
    if case.get("quantize"):
        raw = pools.take("activation", "bf16", m, k)

        def quantizing() -> object:
            x, scale_a = per_token_group_quant_fp8(raw, BLOCK, column_major_scales=True, use_ue8m0=False)
            return product(x, w, scale_a, scale_b, [BLOCK, BLOCK], torch.bfloat16)

        return Prepared(quantizing)
    x = pools.take("activation", "fp8", m, k)
    scale_a = (torch.rand((k // BLOCK, m), device=pools.device) + 0.5).t()
    return Prepared(lambda: product(x, w, scale_a, scale_b, [BLOCK, BLOCK], torch.bfloat16))


EPSILON = 1e-6
PAGE = 16
POSITIONS = 65536


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
    cache = _cos_sin(width, pools.device)
    positions = torch.arange(rows, device=pools.device) % POSITIONS
    return Prepared(lambda: ops.rotary_embedding(positions, q, k, width, cache, True))


def _cos_sin(width: int, device: str) -> Any:
    import torch

    rates = 10000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(POSITIONS, device=device)[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(torch.bfloat16)


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
