"""fp8 and int8 matrix products as vLLM runs them on Hopper: CUTLASS with per-token or 128-block scales."""

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
