"""Fused MoE: names of kernels in profiles, measured rows, the first page."""

from __future__ import annotations

import math

import numpy as np

from pipewave.calls.operators import FusedMoe
from pipewave.kernels.base import Analysis, Columns, Context
from pipewave.kernels.family_metadata import (
    Case,
    FamilyMetadata,
    Measurements,
    Page,
    Profile,
    Runner,
    names_of,
)
from pipewave.kernels.profiler import Given, Launched, Op, Shaped, Step
from pipewave.physics.demand import Array

FUSED_EXPERTS = ("vllm::outplace_fused_experts", "vllm::inplace_fused_experts", "sglang::inplace_fused_experts")
ROLE = "moe"


def _read(launched: Launched, _step: Step | None, _given: Given) -> Shaped | None:
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


SHAPE = ("experts", "topk", "hidden", "inter", "tp")  # experts' weights are laid out once per shape


def _work(case: Case) -> tuple[float, float]:
    inter = case["inter"] // case.get("tp", 1)
    routed = case["tokens"] * case["topk"]
    hit = case["experts"] * -math.expm1(-routed / case["experts"])
    weights = 3.0 * inter * case["hidden"]
    activations = routed * (2 * case["hidden"] + 4 * inter + 2 * case["hidden"])
    return 2.0 * routed * weights, 2.0 * (hit * weights + activations)


ROWS = {
    "fused_moe": Measurements(
        runners={
            "triton": Runner("pipewave.measure.impls.vllm_moe", "as_served", "vllm"),
            "triton_default": Runner("pipewave.measure.impls.vllm_moe", "default_config", "vllm"),
            "triton_kernels": Runner("pipewave.measure.impls.vllm_moe", "mxfp4", "vllm"),
        },
        usual={"": "triton"},
        work=_work,
        together=SHAPE,
        group=("hidden", "inter", "topk", "experts"),
    )
}


def waves(_cols: Columns, _ctx: Context, analysis: Analysis) -> Array:
    """Rounds of the tiles that the stack's rule cuts."""
    return np.asarray(np.exp2(analysis.features["ruled_per_sm"]))


PAGE = Page(
    {"experts": 128, "topk": 8, "hidden": 2048, "inter": 768}, {"field": "tokens", "from": 1, "to": 4096}, waves
)
FUSED_MOE = FamilyMetadata(Profile(names_of("fused_moe"), role=ROLE, group=_read, anchors=(ROLE,)), ROWS, PAGE)
