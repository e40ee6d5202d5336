"""The kernels a model would launch in a step, in launch order, and which kinds of traced kernels each may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from pipewave.calls.families import Call, Elementwise, Gemm, RmsNorm
from pipewave.kernels import family_of, registered
from pipewave.models.kernels import Batch, Deployment, Use

# Role of a traced kernel → what it may be in the model's list (roles of `role_of`), best first.
MAY_BE: dict[str, tuple[str, ...]] = {
    "norm": ("norm",),
    "fused_add_norm": ("norm",),
    "embedding_norm": ("embedding",),
    "gather": ("embedding", "last_rows"),
    "index": ("last_rows",),
    "act": ("act", "activation"),
    "fused_reduction": ("norm",),
    "fused": ("rope", "activation", "shared_add", "norm", "softcap"),
    "copy": ("logits_to_float",),
    "pointwise": ("shared_add", "softcap", "activation"),
}
# What a match is worth: products and attention hold the sequence together, fusions without a name follow.
ANCHOR, NAMED, GUESSED = 8, 3, 1


def worth(role: str, use_role: str) -> int:
    """Score of taking a traced kernel of `role` for an expected one; 0 where it cannot be."""
    (role, _, size), (use_role, _, use_size) = role.partition(":"), use_role.partition(":")
    if size and use_size and size != use_size:
        return 0
    if role == use_role:
        return ANCHOR if any(role in family.profile.anchors for family in registered()) else NAMED
    if use_role not in MAY_BE.get(role, ()):
        return 0
    return GUESSED if role in ("fused", "fused_reduction", "pointwise", "copy") else NAMED


def role_of(use: Use) -> str:
    """Role of an expected kernel, in the words of profiles; a product's with its size."""
    if isinstance(use.call, Elementwise):
        return use.call.op
    return sized(family_of(use.call.kernel).profile.role or use.call.kernel, use.call)


def sized(role: str, call: Call | None) -> str:
    """A role with the size of the product it is, which tells products apart where it was recorded."""
    return f"{role}:{call.m}x{call.n}x{call.k}" if isinstance(call, Gemm) else role


def sequence(deployment: Deployment, batch: Batch) -> tuple[Use, ...]:
    """Every kernel of the first pipeline stage one by one; equal layers repeat the same objects."""
    return tuple(use for use, _ in parts(deployment, batch))


@lru_cache(maxsize=64)
def parts(deployment: Deployment, batch: Batch) -> tuple[tuple[Use, int | None], ...]:
    """As `sequence`, each with the number of its layer, None before and after the layers."""
    model = deployment.model
    tail = deployment.by_requests(batch)
    bodies: dict[int, tuple[list[Use], list[Use]]] = {}
    for layer in model.layers:
        if id(layer) not in bodies:
            alone = replace(deployment, model=replace(model, layers=(layer,)))
            bodies[id(layer)] = _parted(alone.kernels(batch)[: -len(tail)])
    head = bodies[id(model.layers[0])][0]
    middle = [(use, number) for number, layer in enumerate(model.layers) for use in bodies[id(layer)][1]]
    return (*((use, None) for use in head), *middle, *((use, None) for use in tail))


def _parted(uses: Sequence[Use]) -> tuple[list[Use], list[Use]]:
    """The embedding and the layer of a model with one layer."""
    head = [use for use in uses if use.name.startswith("embedding")]
    return head, [use for use in uses if not use.name.startswith("embedding")]


def fused(uses: Sequence[Use], *, statistics: bool) -> Elementwise:
    """Several memory-bound kernels run as one. `statistics`: a reduction whose result another kernel applies.

    Norms side by side read and write their own rows; in a chain, the first one's input is read and every output is
    written, since later kernels need them.
    """
    moved = [_moved(use) for use in uses]
    beside = all(isinstance(use.call, RmsNorm) for use in uses)
    read = sum(read for read, _, _ in moved) if beside else moved[0][0]
    rows = sum(use.call.rows for use in uses if isinstance(use.call, RmsNorm))
    written = 4 * rows if statistics else sum(written for _, written, _ in moved)
    return Elementwise(read, written, weight_bytes=sum(weights for *_, weights in moved), op="fused")


def _moved(use: Use) -> tuple[int, int, int]:
    """(read, written, weight) bytes of a memory-bound kernel with 16-bit activations."""
    call = use.call
    if isinstance(call, Elementwise):
        return call.bytes_read, call.bytes_written, call.weight_bytes
    if isinstance(call, RmsNorm):
        size = 2 * call.rows * call.dim
        both = 2 if call.fused_add else 1
        return both * size, both * size, 2 * call.dim
    return 0, 0, 0
