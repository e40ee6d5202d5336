"""Experts as a profile shows them: one operator that sees all weights, or those around the products."""

from __future__ import annotations

from pipewave.calls.operators import FusedMoe
from pipewave.kernels.profiler import Given, Launched, Op, Shaped, Step

FUSED_EXPERTS = ("vllm::outplace_fused_experts", "vllm::inplace_fused_experts", "sglang::inplace_fused_experts")
ROLE = "moe"


def experts(launched: Launched, _step: Step | None, _given: Given) -> Shaped | None:
    """From one operator that sees all weights, or from those around the products."""
    if launched.role != ROLE:
        return None
    op = launched.op(*FUSED_EXPERTS)
    if op and len(op.shape(1)) == 3 and len(op.shape(0)) == 2 and op.shape(3):
        experts, width, hidden = op.shape(1)
        call = FusedMoe(op.shape(0)[0], experts, op.shape(3)[-1], hidden, width // 2, dtype=_dtype(op, 1, launched))
        return Shaped("fused_moe", call)
    return _parts(launched)


def _parts(launched: Launched) -> Shaped | None:
    layer, align, act = (
        launched.op("vllm::moe_forward"),
        launched.op("_moe_C::moe_align_block_size"),
        launched.op("_C::silu_and_mul", "sgl_kernel::silu_and_mul"),
    )
    if not (layer and align and act and layer.shape(0) and align.shape(0) and act.shape(0)):
        return None
    experts = int(align.value(1)) if align.value(1).isdecimal() and len(align.value(1)) < 6 else 0
    tokens, hidden = layer.shape(0)[0], layer.shape(0)[-1]
    call = FusedMoe(tokens, experts, align.shape(0)[-1], hidden, act.shape(0)[-1], dtype=_dtype(layer, 0, launched))
    return Shaped("fused_moe", call)


def _dtype(op: Op, index: int, launched: Launched) -> str:
    quantised = any("group_quant" in kernel.name for kernel in launched.kernels)
    return "fp8_block" if quantised else op.dtype(index, launched) or "bf16"
