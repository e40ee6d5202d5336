"""Experts of gpt-oss in MXFP4, as vLLM runs them on Hopper."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pipewave.measure.impls import Pools, Prepared
from pipewave.measure.impls.vllm_layers import routing, width
from pipewave.measure.plan import Case

SCALED = 32  # weights that share a scale
PAIR = 2  # weights in a byte
NEAR_ONE = (124, 131)  # exponents of scales, 127 is 1


def mxfp4(case: Case, pools: Pools) -> Prepared:
    """gpt-oss's experts as vLLM runs them on Hopper (`triton_kernel_moe_forward`), from the router's logits on."""
    from vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe import triton_kernel_moe_forward

    w1, w2, config = _weights(case["experts"], case["hidden"], width(case), pools.device)
    x = pools.take("activation", "bf16", case["tokens"], case["hidden"])
    logits, seen = routing(case, pools.device, "bfloat16")
    options = {"renormalize": True, "quant_config": config}

    def call() -> object:
        return triton_kernel_moe_forward(
            x, w1, w2, logits, topk=case["topk"], global_num_experts=case["experts"], **options
        )

    return Prepared(call, {"routing_seen": seen})


@lru_cache(maxsize=1)
def _weights(experts: int, hidden: int, inter: int, device: str) -> tuple[Any, Any, Any]:
    """Both products' weights as the engine lays them out, and the configuration that holds scales and biases."""
    import torch
    from vllm.model_executor.layers.fused_moe.config import mxfp4_w4a16_moe_quant_config

    (w1, scale1), (w2, scale2) = (_laid_out(experts, *size, device) for size in ((2 * inter, hidden), (hidden, inter)))
    biases = [torch.randn(experts, wide, device=device) for wide in (2 * inter, hidden)]
    return w1, w2, mxfp4_w4a16_moe_quant_config(scale1, scale2, *biases)


def _laid_out(experts: int, wide: int, deep: int, device: str) -> tuple[Any, Any]:
    import torch
    from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig
    from vllm.model_executor.layers.quantization.utils.mxfp4_utils import _swizzle_mxfp4

    values = torch.randint(0, 256, (experts, wide, deep // PAIR), dtype=torch.uint8, device=device)
    scales = torch.randint(*NEAR_ONE, (experts, wide, deep // SCALED), dtype=torch.uint8, device=device)
    weight, flex, scale = _swizzle_mxfp4(values, scales)
    return weight, PrecisionConfig(weight_scale=scale, flex_ctx=FlexCtx(rhs_data=flex))
