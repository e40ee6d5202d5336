"""How profiles show kernels that choose tokens: PyTorch's operators, and kernels of vLLM by their names."""

from __future__ import annotations

from math import prod

from pipewave.calls.base import Call
from pipewave.calls.streaming import Elementwise
from pipewave.kernels.launched import Launched, Op
from pipewave.kernels.streaming import sampling
from pipewave.kernels.streaming.argmax import OP as ARGMAX

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


def exponential(op: Op, launched: Launched) -> Call:
    """Random numbers of a law, one a value."""
    return _call("exponential", 1, prod(op.shape(0)), written=op.bytes(0))


def whole(op: Op, launched: Launched) -> Call | None:
    """Top-k, sort or a draw over rows as long as a vocabulary."""
    shape = op.shape(0)
    return _call(WHOLE[op.name], prod(shape[:-1]), shape[-1]) if shape and shape[-1] >= LEAST else None


def by_name(launched: Launched) -> Elementwise | None:
    """A kernel whose grid says how much it looks at: (requests, tiles)."""
    law = law_of(launched.head.name)
    if law is None or not law[1] or len(launched.head.grid) < 2:
        return None
    rows, tiles = launched.head.grid[:2]
    return _call(law[0], rows, tiles * law[1], tile=law[1])


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
    return _call(law[0], rows, call.bytes_read // sampling.VALUE_BYTES // rows, tile=law[1])


def _call(op: str, rows: int, values: int, *, tile: int = 0, written: int | None = None) -> Elementwise:
    rounds = sampling.rounds_of(values, tile)
    return Elementwise(4 * rows * values, 8 * rows if written is None else written, op=op, rounds=rounds)
