"""Which layer of the model a traced kernel belongs to: by the modules or ranges it ran in, else by the model's list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from pipewave.models.kernels import Batch, Deployment
from pipewave.traces.align import match
from pipewave.traces.expected import parts, role_of
from pipewave.traces.group import Group

# `model.layers.3.mlp`, `transformer.h.3`, `LlamaDecoderLayer_3`.
NUMBER = re.compile(r"(?:\blayers?|\bh|\bblocks?)[._](\d{1,4})\b|(?:DecoderLayer|EncoderLayer|Block|Layer)_(\d{1,4})$")


def of_scope(scope: Iterable[str]) -> int | None:
    """The number in the outermost module that names one."""
    found = (NUMBER.search(name) for name in scope)
    return next((int(one[1] or one[2]) for one in found if one), None)


def of_model(roles: tuple[str, ...], deployment: Deployment, batch: Batch, steps: int) -> list[int | None]:
    """The layer of each group of one or more like steps, by its role as `align` matches it; None outside of layers."""
    uses = [(use, layer) for use, layer in parts(deployment, batch)] * steps
    places = match(roles, tuple(role_of(use) for use, _ in uses))
    return [None if at is None else uses[at][1] for at in places]


def between(layers: Sequence[int | None], groups: Sequence[Group]) -> list[int | None]:
    """Kernels without a partner in the model lie in the layer of those around them, where both are of one."""
    found: list[int | None] = list(layers)
    known = [at for at, layer in enumerate(layers) if layer is not None]
    for left, right in pairwise(known):
        if layers[left] == layers[right] and groups[left].head.step == groups[right].head.step:
            found[left:right] = [layers[left]] * (right - left)
    return found
