"""Copies and kernels that choose tokens as profiles show them: PyTorch's operators, and kernels of vLLM by name."""

from __future__ import annotations

from pipewave.calls.streaming import Elementwise
from pipewave.files import packaged
from pipewave.kernels.base import FAMILIES
from pipewave.kernels.family_metadata import operators_of
from pipewave.kernels.profiler import Given, Launched, Shaped, Step
from pipewave.kernels.streaming.sampling import ARGMAX, VALUE_BYTES, rounds_of

METADATA = packaged.shared(FAMILIES)["elementwise"]["metadata"]
WHOLE = METADATA["profile"]["whole"]  # operators that are one call however many kernels
NAMED = METADATA["laws"]  # kernel → its law and the values of a tile, 0 of one block a row
ARGMAX_KERNEL = "ArgMaxOps"
DEPENDS = ("mask_top_k", "mask_top_p", "mask_top_k_top_p")  # their time depends on the values
OPERATORS = operators_of("elementwise")


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
