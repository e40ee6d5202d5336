"""Calls read off what launched kernels, by the readers that families declare."""

from __future__ import annotations

from collections.abc import Mapping

from pipewave.errors import BadInput
from pipewave.kernels import family_of
from pipewave.kernels.faces import OperatorReader
from pipewave.kernels.launched import Given, Shaped, Step
from pipewave.traces.group import Group


def read(group: Group, step: Step | None, given: Given) -> Shaped | None:
    """The call behind a group as its operators or its own event give it; None where they do not."""
    if group.family is None:
        return None
    profile = family_of(group.family).profile
    try:
        whole = profile.group(group, step, given) if profile.group else None
        return whole or _from_operators(group, profile.operators)
    except BadInput:  # sizes that no such kernel can have: the operator is not what its name says
        return None


def _from_operators(group: Group, readers: Mapping[str, OperatorReader]) -> Shaped | None:
    """From the innermost operator that says it."""
    for op in reversed(group.head.ops):
        call = readers[op.name](op, group) if op.name in readers and op.dims else None
        if call is not None:
            return Shaped(op.name, call)
    return None
