"""Calls read off whole launches of a profile: experts, collectives, copies and kernels that choose tokens."""

from __future__ import annotations

from typing import Any

from pipewave.calls.dense import Elementwise
from pipewave.calls.families import CLASSES
from pipewave.calls.operators import FusedMoe
from pipewave.kernels.family_metadata import operators_of
from pipewave.kernels.profiler import Given, Launched, Op, Shaped, Step
from pipewave.kernels.streaming.elementwise import ARGMAX, VALUE_BYTES, rounds_of

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


WIDTHS = {"BFloat16": 2, "Half": 2, "Float": 4, "Byte": 1}


def collective(launched: Launched, _step: Step | None, _given: Given) -> Shaped | None:
    """From the sizes that PyTorch records with it."""
    head, family = launched.head, str(launched.family)
    world, dtype = head.arg("Group size"), str(head.arg("dtype"))
    count = head.arg("Out msg nelems" if family == "all_gather" else "In msg nelems")
    if not isinstance(world, int) or not isinstance(count, int):
        return None
    sizes: dict[str, Any] = {"bytes": count * WIDTHS.get(dtype, 2), "world": world}
    return Shaped(launched.role, CLASSES[family](**sizes, impl=launched.impl))


# How profiles show kernels that choose tokens: PyTorch's operators, and kernels of vLLM by their names.

WHOLE = ("aten::topk", "aten::sort", "aten::multinomial")  # one call however many kernels they run
# Kernel → its law and the values of a tile; those of one block a row have none.
NAMED = {
    "_gumbel_sample_kernel": ("gumbel", 1024),
    "_temperature_kernel": ("temperature", 8192),
    "_min_p_kernel": ("min_p", 0),
    "_topk_topp_kernel": ("mask_top_k_top_p", 0),
    "SoftMaxForward": ("softmax", 0),
}
ARGMAX_KERNEL = "ArgMaxOps"
DEPENDS = ("mask_top_k", "mask_top_p", "mask_top_k_top_p")  # their time depends on the values


def law_of(name: str) -> tuple[str, int] | None:
    """The law of a kernel by its name, and the values of its tiles."""
    return next((law for part, law in NAMED.items() if part in name), None)


def as_run(call: Elementwise, name: str) -> Elementwise:
    """A model's sampling step (float32 logits in, a place of each row out) as the kernel that ran it."""
    if ARGMAX_KERNEL in name:
        return Elementwise(call.bytes_read, call.bytes_written, op=ARGMAX)
    law, rows = law_of(name), call.bytes_written // 8
    if law is None or not rows:
        return call
    return _call(law[0], rows, call.bytes_read // VALUE_BYTES // rows, tile=law[1])


def _call(op: str, rows: int, values: int, tile: int) -> Elementwise:
    return Elementwise(4 * rows * values, 8 * rows, op=op, rounds=rounds_of(values, tile))


OPERATORS = operators_of("elementwise")


def streaming(launched: Launched, _step: Step | None, _given: Given) -> Shaped | None:
    """Copies and fills carry their bytes; operators that are one call carry their sizes, samplers their grids."""
    if (op := launched.op(*WHOLE)) and op.dims:
        call = OPERATORS[op.name](op, launched)
        return Shaped(op.name, call) if call else None
    law, grid = law_of(launched.head.name), launched.head.grid
    if law and law[1] and len(grid) > 1:  # (requests, tiles) say how much it looks at
        return Shaped(law[0], _call(law[0], grid[0], grid[1] * law[1], tile=law[1]))
    role, size = launched.role, launched.head.arg("bytes")
    if not isinstance(size, int) or role not in ("copy", "fill"):
        return None
    return Shaped(role, Elementwise(size if role == "copy" else 0, size, op=role))
