"""Calls read off the operators that launched kernels: which argument of which operator holds which size."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from pipewave.calls.families import (
    Attention,
    Call,
    Elementwise,
    FusedMoe,
    Gemm,
    RmsNorm,
    SiluAndMul,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    send_recv,
)
from pipewave.errors import BadInput
from pipewave.traces import lengths
from pipewave.traces.group import Group
from pipewave.traces.lengths import Given
from pipewave.traces.shaped import Shaped
from pipewave.traces.trace import Dims, Op, Step

TYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "c10::Float8_e4m3fn": "fp8", "signed char": "int8"}
WIDTHS = {
    "double": 8, "long int": 8, "float": 4, "int": 4, "c10::BFloat16": 2, "c10::Half": 2, "short int": 2, "bool": 1,
    "signed char": 1, "unsigned char": 1, "c10::Float8_e4m3fn": 1,
}  # fmt: skip
SCALED = ("_C::cutlass_scaled_mm", "sgl_kernel::fp8_scaled_mm")
FUSED_EXPERTS = ("vllm::outplace_fused_experts", "vllm::inplace_fused_experts", "sglang::inplace_fused_experts")
COLLECTIVES: dict[str, Callable[..., Call]] = {
    "all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all, "send_recv": send_recv,
}  # fmt: skip
BINARY = ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "maximum")
UNARY = (
    "pow",
    "rsqrt",
    "sqrt",
    "neg",
    "abs",
    "exp",
    "log",
    "cos",
    "sin",
    "tanh",
    "sigmoid",
    "silu",
    "gelu",
    "relu",
    "clamp",
)
Reader = Callable[[Op, Group], "Call | None"]


def read(group: Group, step: Step | None, given: Given) -> Shaped | None:
    """The call behind a group as its operators or its own event give it; None where they do not."""
    try:
        if group.kind.family == "attention":
            return _attention(group, step, given)
        if group.kind.role == "moe":
            return _moe(group)
        return _from_event(group) or _from_ops(group)
    except BadInput:  # sizes that no such kernel can have: the operator is not what its name says
        return None


def _from_ops(group: Group) -> Shaped | None:
    for op in reversed(group.head.ops):
        reader = READERS.get(op.name)
        call = reader(op, group) if reader and op.dims and group.kind.family else None
        if call is not None and call.kernel == group.kind.family:
            return Shaped(op.name, call)
    return None


def _from_event(group: Group) -> Shaped | None:
    """Copies and fills carry their bytes, collectives of recent PyTorch their sizes."""
    head, size = group.head, group.head.arg("bytes")
    if isinstance(size, int) and group.kind.role in ("copy", "fill"):
        copied = size if group.kind.role == "copy" else 0
        return Shaped(group.kind.role, Elementwise(copied, size, op=group.kind.role))
    make = COLLECTIVES.get(group.kind.family or "")
    world, name = head.arg("Group size"), str(head.arg("dtype"))
    count = head.arg("Out msg nelems" if group.kind.family == "all_gather" else "In msg nelems")
    if make is None or not isinstance(world, int) or not isinstance(count, int):
        return None
    width = {"BFloat16": 2, "Half": 2, "Float": 4, "Byte": 1}.get(name, 2)
    return Shaped(group.kind.role, make(count * width, world, impl=group.kind.impl))


def _dtype(op: Op, index: int, group: Group) -> str | None:
    """Operand type of an argument, or what the kernel's name says."""
    return TYPES.get(op.types[index] if index < len(op.types) else "") or group.dtype


def _product(x: Dims, n: int, k: int, dtype: str | None) -> Gemm | None:
    if not x or x[-1] != k or dtype is None:
        return None
    return Gemm(prod(x[:-1]), n, k, dtype=dtype)


def _mm(x: int, w: int) -> Reader:
    """x[..., k] · w[k, n], whose positions are given."""

    def reader(op: Op, group: Group) -> Call | None:
        weights = op.shape(w)
        return _product(op.shape(x), weights[1], weights[0], _dtype(op, x, group)) if len(weights) == 2 else None

    return reader


def _linear(op: Op, group: Group) -> Call | None:
    weights = op.shape(1)
    return _product(op.shape(0), weights[0], weights[1], _dtype(op, 0, group)) if len(weights) == 2 else None


def _norm(x: int, *, fused_add: bool = False) -> Reader:
    def reader(op: Op, group: Group) -> Call | None:
        dims = op.shape(x)
        dtype = _dtype(op, x, group)
        return RmsNorm(prod(dims[:-1]), dims[-1], fused_add=fused_add, dtype=dtype) if dims and dtype else None

    return reader


def _act(op: Op, group: Group) -> Call | None:
    dims, dtype = op.shape(0), _dtype(op, 0, group)
    return SiluAndMul(prod(dims[:-1]), dims[-1], dtype=dtype) if dims and dtype else None


def _rope(op: Op, group: Group) -> Call:
    rows, moved = prod(op.shape(0)), _bytes(op, 1) + _bytes(op, 2)
    table = op.shape(4)[-1] if op.shape(4) else 0
    return Elementwise(moved, moved, weight_bytes=2 * rows * table, op="rope")


def _kv_write(op: Op, group: Group) -> Call:
    moved, slots = _bytes(op, 0) + _bytes(op, 1), _bytes(op, 4)
    cache = WIDTHS.get(op.types[2] if len(op.types) > 2 else "", 2)
    return Elementwise(moved + slots, (prod(op.shape(0)) + prod(op.shape(1))) * cache, op="kv_write")


def _topk(op: Op, group: Group) -> Call:
    picks = op.shape(0)[-1] if op.shape(0) else 0
    return Elementwise(_bytes(op, 3), _bytes(op, 0) + _bytes(op, 1), op="topk", rounds=picks)


def _rows_of_table(op: Op, group: Group) -> Call:
    """aten::embedding and friends: chosen rows of a table, which come from DRAM."""
    table, index = op.shape(0), max(op.shape(1), op.shape(2), key=prod)
    row = table[-1] * _width(op, 0) if table else 0
    rows = prod(index) if index else 0
    return Elementwise(8 * rows, rows * row, weight_bytes=rows * row, op="embedding")


def _stream(read: tuple[int, ...], written: int | None, name: str) -> Reader:
    """Arguments that are read, and the one as large as what is written (None: next to nothing is)."""

    def reader(op: Op, group: Group) -> Call:
        return Elementwise(sum(_bytes(op, i) for i in read), 8 if written is None else _bytes(op, written), op=name)

    return reader


def _binary(op: Op, group: Group) -> Call:
    sizes = [_bytes(op, 0), _bytes(op, 1)]
    return Elementwise(sum(sizes), max(sizes), op="pointwise")


def _quantise(x: int) -> Reader:
    """One byte out for each value in."""

    def reader(op: Op, group: Group) -> Call:
        return Elementwise(_bytes(op, x), prod(op.shape(x)), op="quantize")

    return reader


def _width(op: Op, index: int) -> int:
    return WIDTHS.get(op.types[index] if index < len(op.types) else "", 0)


def _bytes(op: Op, index: int) -> int:
    """Bytes of a tensor argument; 0 for any other."""
    return prod(op.shape(index)) * _width(op, index) if index < len(op.dims) else 0


READERS: dict[str, Reader] = {
    "aten::mm": _mm(0, 1),
    "aten::addmm": _mm(1, 2),
    "aten::_scaled_mm": _mm(0, 1),
    "aten::linear": _linear,
    **dict.fromkeys(SCALED, _mm(1, 2)),
    "_C::rms_norm": _norm(1),
    "_C::fused_add_rms_norm": _norm(0, fused_add=True),
    "sgl_kernel::rmsnorm": _norm(1),
    "sgl_kernel::fused_add_rmsnorm": _norm(0, fused_add=True),
    "flashinfer::rmsnorm": _norm(1),
    "flashinfer::fused_add_rmsnorm": _norm(0, fused_add=True),
    "aten::rms_norm": _norm(0),
    "aten::native_layer_norm": _norm(0),
    "_C::silu_and_mul": _act,
    "_C::gelu_and_mul": _act,
    "_C::gelu_tanh_and_mul": _act,
    "sgl_kernel::silu_and_mul": _act,
    "sgl_kernel::gelu_and_mul": _act,
    "_C::rotary_embedding": _rope,
    "_C_cache_ops::reshape_and_cache_flash": _kv_write,
    "_moe_C::topk_softmax": _topk,
    "_moe_C::topk_sigmoid": _topk,
    "_C::static_scaled_fp8_quant": _quantise(1),
    "_C::dynamic_scaled_fp8_quant": _quantise(1),
    "_C::dynamic_per_token_scaled_fp8_quant": _quantise(1),
    "_C::per_token_group_fp8_quant": _quantise(0),
    "sgl_kernel::sgl_per_token_quant_fp8": _quantise(0),
    "aten::embedding": _rows_of_table,
    "aten::index_select": _rows_of_table,
    "aten::copy_": _stream((1,), 0, "copy"),
    "aten::fill_": _stream((), 0, "fill"),
    "aten::argmax": _stream((0,), None, "sample"),
    "aten::_softmax": _stream((0,), 0, "softmax"),
    **dict.fromkeys(("aten::sum", "aten::mean", "aten::amax"), _stream((0,), None, "sum")),
    **{f"aten::{name}": _binary for name in BINARY},
    **{f"aten::{name}": _stream((0,), 0, "pointwise") for name in UNARY},
}


def _moe(group: Group) -> Shaped | None:
    """Routed experts: from one operator that sees all weights, or from those around the products."""
    op = group.op(*FUSED_EXPERTS)
    if op and len(op.shape(1)) == 3 and len(op.shape(0)) == 2 and op.shape(3):
        experts, width, hidden = op.shape(1)
        call = FusedMoe(op.shape(0)[0], experts, op.shape(3)[-1], hidden, width // 2, dtype=_moe_dtype(op, 1, group))
        return Shaped("fused_moe", call)
    layer, align, act = (
        group.op("vllm::moe_forward"),
        group.op("_moe_C::moe_align_block_size"),
        group.op("_C::silu_and_mul", "sgl_kernel::silu_and_mul"),
    )
    if not (layer and align and act and layer.shape(0) and align.shape(0) and act.shape(0)):
        return None
    experts = int(align.value(1)) if align.value(1).isdecimal() and len(align.value(1)) < 6 else 0
    tokens, hidden = layer.shape(0)[0], layer.shape(0)[-1]
    call = FusedMoe(tokens, experts, align.shape(0)[-1], hidden, act.shape(0)[-1], dtype=_moe_dtype(layer, 0, group))
    return Shaped("fused_moe", call)


def _moe_dtype(op: Op, index: int, group: Group) -> str:
    quantised = any("group_quant" in kernel.name for kernel in group.kernels)
    return "fp8_block" if quantised else _dtype(op, index, group) or "bf16"


def _attention(group: Group, step: Step | None, given: Given) -> Shaped | None:
    if op := group.op("aten::scaled_dot_product_attention"):
        return _dense_attention(op, group)
    op = group.op(*lengths.VARLEN)
    if op and op.dims:
        return _attention_call(
            op, lengths.of_op(op, given), group, window=op.value(lengths.VARLEN[op.name].window_left)
        )
    op = group.op("vllm::unified_attention_with_output", "vllm::unified_attention")
    return _attention_call(op, lengths.of_step(step, given), group) if op and op.dims else None


def _attention_call(op: Op, found: lengths.Lengths | None, group: Group, window: str = "") -> Shaped | None:
    """q [tokens, heads, dim]; keys [tokens, heads, dim] or paged [pages, page, heads, dim]."""
    q, k, dtype = op.shape(0), op.shape(1), _dtype(op, 0, group)
    if found is None or len(q) != 3 or len(k) not in (3, 4) or dtype is None:
        return None
    call = Attention(
        found.q_lens,
        found.kv_lens,
        q[1],
        k[-2],
        q[2],
        window=int(window) + 1 if window.isdecimal() and len(window) < 10 else None,
        dtype=dtype,
        kv_dtype=_kv_dtype(op),
        page_size=k[1] if len(k) == 4 else None,
        impl=group.kind.impl,
    )
    return Shaped("attention", call, read=not found.note, note=found.note)


def _kv_dtype(op: Op) -> str | None:
    return "fp8" if len(op.types) > 1 and "Float8" in op.types[1] else None


def _dense_attention(op: Op, group: Group) -> Shaped | None:
    """PyTorch's operator: [batch, heads, length, dim]."""
    q, k, dtype = op.shape(0), op.shape(1), _dtype(op, 0, group)
    if len(q) != 4 or len(k) != 4 or dtype is None or q[0] > 1 << 16:
        return None
    causal = op.value(5) == "True"
    call = Attention((q[2],) * q[0], (k[2],) * q[0], q[1], k[1], q[3], causal=causal, dtype=dtype, impl=group.kind.impl)
    return Shaped("attention", call)
