"""Matches a model's kernels of a step with those of a trace: a weighted longest common subsequence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from pipewave.calls.families import Call, Elementwise, Gemm, RmsNorm
from pipewave.files import packaged
from pipewave.kernels import family_of, registered
from pipewave.kernels.profiler import Shaped
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.traces.group import Group, by_step

# Role of a traced kernel → what it may be in the model's list (roles of `role_of`), best first.
MAY_BE: Mapping[str, Sequence[str]] = packaged.document(Path(__file__).with_name("roles.json"))
# What a match is worth: products and attention hold the sequence together, fusions without a name follow.
ANCHOR, NAMED, GUESSED = 8, 3, 1
MOST_CELLS = 8_000_000  # of the match table: a step of 250 layers
ABSORBING = ("fused", "fused_reduction", "embedding_norm")
# `model.layers.3.mlp`, `transformer.h.3`, `LlamaDecoderLayer_3`.
NUMBER = re.compile(r"(?:\blayers?|\bh|\bblocks?)[._](\d{1,4})\b|(?:DecoderLayer|EncoderLayer|Block|Layer)_(\d{1,4})$")


def match_score(role: str, use_role: str) -> int:
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
            alone = replace(deployment, model=replace(model, layers=(layer,))).kernels(batch)[: -len(tail)]
            sides = ([use for use in alone if use.name.startswith("embedding") == first] for first in (True, False))
            bodies[id(layer)] = next(sides), next(sides)
    head = bodies[id(model.layers[0])][0]
    middle = [(use, number) for number, layer in enumerate(model.layers) for use in bodies[id(layer)][1]]
    return (*((use, None) for use in head), *middle, *((use, None) for use in tail))


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


def align(groups: Sequence[Group], uses: Sequence[Use], partner: Sequence[int | None]) -> list[Shaped | None]:
    """For each group of a step, in time order, the call it ran, or None where the model has none for it. `partner`: the
    use that each group matches, of `match`.
    """
    taken = {at for at in partner if at is not None}
    return [
        None if at is None else _shaped(groups, index, list(_with_neighbours(at, taken, uses, groups[index])))
        for index, at in enumerate(partner)
    ]


@lru_cache(maxsize=256)  # steps of a trace repeat
def match(roles: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[int | None, ...]:
    """Index into `wanted` for each role, increasing, with the highest total worth (a longest common subsequence)."""
    if len(roles) * len(wanted) > MOST_CELLS:
        return (None,) * len(roles)
    table = _table(roles, wanted)
    found: list[int | None] = []
    column = 0
    for row, role in enumerate(roles):
        best = table[row][column]
        while column < len(wanted) and table[row][column + 1] == best:
            column += 1
        value = match_score(role, wanted[column]) if column < len(wanted) else 0
        if value and best == value + table[row + 1][column + 1]:
            found.append(column)
            column += 1
        else:
            found.append(None)
    return tuple(found)


def _table(roles: Sequence[str], wanted: Sequence[str]) -> list[list[int]]:
    """Best worth of matching what is left, from the end: [role][wanted]."""
    values = {role: [match_score(role, use) for use in wanted] for role in set(roles)}
    below = [0] * (len(wanted) + 1)
    table = [below]
    for role in reversed(roles):
        mine, row, right = values[role], [0] * (len(wanted) + 1), 0
        for at in range(len(wanted) - 1, -1, -1):
            best = below[at] if below[at] > right else right
            if mine[at] and mine[at] + below[at + 1] > best:
                best = mine[at] + below[at + 1]
            row[at] = right = best
        table.append(row)
        below = row
    return table[::-1]


def _with_neighbours(at: int, taken: set[int], uses: Sequence[Use], group: Group) -> Iterator[Use]:
    """The matched kernel, for a fusion with the unmatched memory-bound kernels right before and after it."""
    first, last = at, at
    if group.kind.role in ABSORBING:
        while first - 1 not in taken and first > 0 and _streams(uses[first - 1]):
            first -= 1
        while last + 1 not in taken and last + 1 < len(uses) and _streams(uses[last + 1]):
            last += 1
    yield from uses[first : last + 1]


def _streams(use: Use) -> bool:
    return family_of(use.call.kernel).profile.fusible


def _shaped(groups: Sequence[Group], index: int, uses: Sequence[Use]) -> Shaped:
    group, name = groups[index], "+".join(use.name for use in uses)
    following = groups[index + 1].kind.role if index + 1 < len(groups) else ""
    statistics = group.kind.role == "fused_reduction" and following == "fused"
    if len(uses) > 1 or statistics:
        return Shaped(name, fused(uses, statistics=statistics))
    return Shaped(name, uses[0].call)


def of_scope(scope: Iterable[str]) -> int | None:
    """The number in the outermost module that names one."""
    found = (NUMBER.search(name) for name in scope)
    return next((int(one[1] or one[2]) for one in found if one), None)


def by_repetition(groups: Sequence[Group]) -> list[int | None]:
    """Layers of a run that names none, by its repeating kernels: each step's layers hold one attention, and begin as
    many kernels before it as the first two attentions of the step have in common.
    """
    found: dict[int, int] = {}
    for members in by_step(groups).values():
        at = [index for index, one in enumerate(members) if one.role == "attention"]
        if len(at) < 2:
            continue
        sorts = [one.family or one.role for one in members]
        ahead = 0
        while ahead < min(at[0], at[1] - at[0] - 1) and sorts[at[0] - ahead - 1] == sorts[at[1] - ahead - 1]:
            ahead += 1
        starts = [one - ahead for one in at]
        for number, (start, end) in enumerate(pairwise([*starts, starts[-1] + at[1] - at[0]])):
            found |= {id(one): number for one in members[start:end]}
    return [found.get(id(one)) for one in groups]


def between(layers: Sequence[int | None], groups: Sequence[Group]) -> list[int | None]:
    """Kernels without a partner in the model lie in the layer of those around them, where both are of one."""
    found: list[int | None] = list(layers)
    known = [at for at, layer in enumerate(layers) if layer is not None]
    for left, right in pairwise(known):
        if layers[left] == layers[right] and groups[left].head.step == groups[right].head.step:
            found[left:right] = [layers[left]] * (right - left)
    return found
