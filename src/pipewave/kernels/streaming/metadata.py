"""Streaming kernels: names in profiles, operators whose arguments are read and written, measured rows, pages."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from pipewave.calls.dense import Elementwise, RmsNorm, SiluAndMul
from pipewave.calls.fields import Call
from pipewave.kernels.family_metadata import (
    Case,
    FamilyMetadata,
    Measurements,
    OperatorReader,
    Page,
    Profile,
    Runner,
    names_of,
)
from pipewave.kernels.profiler import Given, Launched, Op, Shaped, Step
from pipewave.kernels.streaming.elementwise import ARGMAX as ARGMAX
from pipewave.kernels.streaming.elementwise import INDEX_BYTES, VALUE_BYTES, rounds_of

# How profiles show kernels that choose tokens: PyTorch's operators, and kernels of vLLM by their names.

LEAST = 8192  # values of a row: below, other kernels run
WHOLE = {"aten::topk": "aten_topk", "aten::sort": "aten_sort", "aten::multinomial": "aten_multinomial"}
# Kernel → its law and the values of a tile; those of one block a row have none.
NAMED = {
    "_gumbel_sample_kernel": ("gumbel", 1024),
    "_temperature_kernel": ("temperature", 8192),
    "_min_p_kernel": ("min_p", 0),
    "_topk_topp_kernel": ("mask_top_k_top_p", 0),
    "SoftMaxForward": ("softmax", 0),
}
ARGMAX_KERNEL = "ArgMaxOps"
SOFTMAX = "cunn_SoftMaxForward"
DEPENDS = ("mask_top_k", "mask_top_p", "mask_top_k_top_p")  # their time depends on the values


def softmax(op: Op, launched: Launched) -> Call:
    """Softmax of rows as long as a vocabulary; of short rows a plain stream."""
    shape = op.shape(0)
    name = "log_softmax" if "log" in op.name else "softmax"
    if not shape or shape[-1] < LEAST or SOFTMAX not in launched.head.name:
        return Elementwise(op.bytes(0), op.bytes(0), op="pointwise")
    return _call(name, prod(shape[:-1]), shape[-1], written=4 * prod(shape))


def whole(op: Op, _launched: Launched) -> Call | None:
    """Top-k, sort or a draw over rows as long as a vocabulary."""
    shape = op.shape(0)
    return _call(WHOLE[op.name], prod(shape[:-1]), shape[-1]) if shape and shape[-1] >= LEAST else None


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


def _call(op: str, rows: int, values: int, *, tile: int = 0, written: int | None = None) -> Elementwise:
    rounds = rounds_of(values, tile)
    return Elementwise(4 * rows * values, 8 * rows if written is None else written, op=op, rounds=rounds)


# Operators of element-wise work, whose arguments are read and written.

BINARY = ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "maximum")
UNARY = (
    "pow", "rsqrt", "sqrt", "neg", "abs", "exp", "log", "cos", "sin", "tanh", "sigmoid", "silu", "gelu", "relu",
    "clamp",
)  # fmt: skip


def _whole_launch(launched: Launched, _step: Step | None, _given: Given) -> Shaped | None:
    """Copies and fills carry their bytes; operators that are one call carry their sizes, samplers their grids."""
    if (op := launched.op(*WHOLE)) and op.dims:
        call = whole(op, launched)
        return Shaped(op.name, call) if call else None
    law, grid = law_of(launched.head.name), launched.head.grid
    if law and law[1] and len(grid) > 1:  # (requests, tiles) say how much it looks at
        return Shaped(law[0], _call(law[0], grid[0], grid[1] * law[1], tile=law[1]))
    role, size = launched.role, launched.head.arg("bytes")
    if not isinstance(size, int) or role not in ("copy", "fill"):
        return None
    return Shaped(role, Elementwise(size if role == "copy" else 0, size, op=role))


def _rope(op: Op, _launched: Launched) -> Call:
    rows, moved = prod(op.shape(0)), op.bytes(1) + op.bytes(2)
    table = op.shape(4)[-1] if op.shape(4) else 0
    return Elementwise(moved, moved, weight_bytes=2 * rows * table, op="rope")


def _kv_write(op: Op, _launched: Launched) -> Call:
    moved, slots = op.bytes(0) + op.bytes(1), op.bytes(4)
    cache = op.width(2) or 2
    return Elementwise(moved + slots, (prod(op.shape(0)) + prod(op.shape(1))) * cache, op="kv_write")


def _topk(op: Op, _launched: Launched) -> Call:
    picks = op.shape(0)[-1] if op.shape(0) else 0
    return Elementwise(op.bytes(3), op.bytes(0) + op.bytes(1), op="topk", rounds=picks)


def _exponential(op: Op, _launched: Launched) -> Call:
    return _call("exponential", 1, prod(op.shape(0)), written=op.bytes(0))


def _argmax(op: Op, _launched: Launched) -> Call:
    return Elementwise(op.bytes(0), INDEX_BYTES * prod(op.shape(0)[:-1]), op=ARGMAX)


def _rows_of_table(op: Op, _launched: Launched) -> Call:
    """aten::embedding and friends: chosen rows of a table, which come from DRAM."""
    table, index = op.shape(0), max(op.shape(1), op.shape(2), key=prod)
    row = table[-1] * op.width(0) if table else 0
    rows = prod(index) if index else 0
    return Elementwise(8 * rows, rows * row, weight_bytes=rows * row, op="embedding")


def _stream(read: tuple[int, ...], written: int | None, name: str) -> OperatorReader:
    """Arguments that are read, and the one as large as what is written (None: next to nothing is)."""

    def reader(op: Op, _launched: Launched) -> Call:
        return Elementwise(sum(op.bytes(i) for i in read), 8 if written is None else op.bytes(written), op=name)

    return reader


def _binary(op: Op, _launched: Launched) -> Call:
    sizes = [op.bytes(0), op.bytes(1)]
    return Elementwise(sum(sizes), max(sizes), op="pointwise")


def _quantise(x: int) -> OperatorReader:
    """One byte out for each value in."""

    def reader(op: Op, _launched: Launched) -> Call:
        return Elementwise(op.bytes(x), prod(op.shape(x)), op="quantize")

    return reader


ELEMENTWISE_PROFILE = Profile(
    names_of("elementwise"),
    group=_whole_launch,
    whole=tuple(WHOLE),
    anchors=("kv_write",),
    fusible=True,
    generated=True,
    operators={
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
        "aten::argmax": _argmax,
        "aten::_softmax": softmax,
        "aten::_log_softmax": softmax,
        "aten::exponential_": _exponential,
        **dict.fromkeys(("aten::sum", "aten::mean", "aten::amax"), _stream((0,), None, "sum")),
        **{f"aten::{name}": _binary for name in BINARY},
        **{f"aten::{name}": _stream((0,), 0, "pointwise") for name in UNARY},
    },
)


def _norm(x: int, *, fused_add: bool = False) -> OperatorReader:
    def reader(op: Op, launched: Launched) -> Call | None:
        dims = op.shape(x)
        dtype = op.dtype(x, launched)
        return RmsNorm(prod(dims[:-1]), dims[-1], fused_add=fused_add, dtype=dtype) if dims and dtype else None

    return reader


def _act(op: Op, launched: Launched) -> Call | None:
    dims, dtype = op.shape(0), op.dtype(0, launched)
    return SiluAndMul(prod(dims[:-1]), dims[-1], dtype=dtype) if dims and dtype else None


NORM_PROFILE = Profile(
    names_of("rmsnorm"),
    role="norm",
    operators={
        "_C::rms_norm": _norm(1),
        "_C::fused_add_rms_norm": _norm(0, fused_add=True),
        "sgl_kernel::rmsnorm": _norm(1),
        "sgl_kernel::fused_add_rmsnorm": _norm(0, fused_add=True),
        "flashinfer::rmsnorm": _norm(1),
        "flashinfer::fused_add_rmsnorm": _norm(0, fused_add=True),
        "aten::rms_norm": _norm(0),
        "aten::native_layer_norm": _norm(0),
    },
    fusible=True,
)
ACTIVATION_PROFILE = Profile(
    names_of("silu_and_mul"),
    role="act",
    operators={
        "_C::silu_and_mul": _act,
        "_C::gelu_and_mul": _act,
        "_C::gelu_tanh_and_mul": _act,
        "sgl_kernel::silu_and_mul": _act,
        "sgl_kernel::gelu_and_mul": _act,
    },
    generated=True,
)


def _rows(name: str, bytes_of: Callable[[Case], float], group: tuple[str, ...]) -> Measurements:
    return Measurements(
        runners={"vllm": Runner("pipewave.measure.impls.vllm_layers", name, "vllm")},
        work=lambda case: (0.0, float(bytes_of(case))),
        group=group,
    )


SWEEP = {"field": "rows", "from": 1, "to": 16384}
NORM = FamilyMetadata(
    NORM_PROFILE,
    {
        "rmsnorm": _rows(
            "rmsnorm",
            lambda case: case["rows"] * case["dim"] * (8 if case.get("fused_add") else 4),
            ("dim",),
        )
    },
    Page({"dim": 4096}, SWEEP),
)
ACTIVATION = FamilyMetadata(
    ACTIVATION_PROFILE,
    {
        "silu_and_mul": _rows(
            "silu_and_mul",
            lambda case: case["rows"] * case["dim"] * 6,
            ("dim",),
        )
    },
    Page({"dim": 14336}, SWEEP),
)
ELEMENTWISE = FamilyMetadata(
    ELEMENTWISE_PROFILE,
    {  # two operations have names of their own among measured rows
        "rope": _rows(
            "rope",
            lambda case: case["rows"] * (case["heads"] + case["kv_heads"]) * case["head_dim"] * 4,
            ("heads", "kv_heads", "head_dim"),
        ),
        "kv_write": _rows(
            "kv_write",
            lambda case: case["rows"] * 2 * case["kv_heads"] * case["head_dim"] * 4,
            ("kv_heads", "head_dim"),
        ),
    },
    Page({"bytes_written": 1 << 20}, {"field": "bytes_read", "from": 1 << 20, "to": 1 << 28}),
)
