"""vLLM between attention and experts: fp8 and int8 products, norms, activation, rotary embedding, cache write."""

from __future__ import annotations

from typing import Any

from pipewave.measure.impls import Pools, Prepared
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
