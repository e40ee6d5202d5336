"""Calls of traced kernels from a model: the best order-preserving match of the trace's kernels to the model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from pipewave.kernels import family_of
from pipewave.kernels.launched import Shaped
from pipewave.models.kernels import Use
from pipewave.traces.expected import fused, role_of, worth
from pipewave.traces.group import Group

MOST_CELLS = 8_000_000  # of the match table: a step of 250 layers
ABSORBING = ("fused", "fused_reduction", "embedding_norm")


def align(groups: Sequence[Group], uses: Sequence[Use], roles: tuple[str, ...]) -> list[Shaped | None]:
    """For each group of a step, in time order, the call it ran, or None where the model has none for it. `roles`: of
    the groups, products with their sizes where those were recorded."""
    partner = match(roles, tuple(role_of(use) for use in uses))
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
        value = worth(role, wanted[column]) if column < len(wanted) else 0
        if value and best == value + table[row + 1][column + 1]:
            found.append(column)
            column += 1
        else:
            found.append(None)
    return tuple(found)


def _table(roles: Sequence[str], wanted: Sequence[str]) -> list[list[int]]:
    """Best worth of matching what is left, from the end: [role][wanted]."""
    values = {role: [worth(role, use) for use in wanted] for role in set(roles)}
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
