"""One step of data-parallel ranks in lock step: what each does alone, and what waits for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pipewave.physics.arith import SCALAR
from pipewave.physics.energy import limited_us
from pipewave.step import Engine, Regime

Pieces = Sequence[tuple[int, int]]  # (tokens, tokens before them) of each prompt
Work = tuple[int, int, Pieces]  # decoding requests, tokens they hold together, prompt pieces


class Sums(Protocol):
    """One quantity that kernels add up to: a rank's own and the group's."""

    @property
    def group(self) -> Sequence[float]:
        """By the mean of the ranks' rows."""
        ...

    def at(self, rows: int, requests: int, decoding: int, cached: int, pieces: Pieces) -> float:
        """The sum over a rank's own kernels."""
        ...


class Grids(Protocol):
    """A step table, as far as a group reads it."""

    engine: Engine
    verify: int
    factor: float
    most_requests: int
    graph: Regime
    pieces: Regime
    eager: Regime

    @property
    def time(self) -> Sums:
        """Microseconds."""
        ...

    @property
    def heat(self) -> Sums:
        """Microseconds at the power limit."""
        ...


def group_seconds(table: Grids, ranks: Sequence[Work]) -> float:
    """A step of all ranks: the longest of their own kernels, the group's kernels at the mean of their rows, the gaps.

    Decode steps replay graphs, padded to the size that the fullest rank needs; others are not padded.
    """
    engine, verify = table.engine, table.verify
    most = max(decoding for decoding, _, _ in ranks)
    if graph := most <= engine.graph_limit and not any(pieces for _, _, pieces in ranks):
        rows = [engine.padded(max(most, 1)) * verify] * len(ranks)
    else:
        rows = [max(d * verify + sum(tokens for tokens, _ in pieces), 1) for d, _, pieces in ranks]
    requests = [decoding * verify + len(pieces) for decoding, _, pieces in ranks]
    small = table.pieces if max(rows) <= engine.pieces_limit else table.eager
    regime = table.graph if graph else small
    mean = round(sum(rows) / len(rows))

    def own(sums: Sums, i: int) -> float:
        return sums.at(rows[i], min(requests[i], table.most_requests * verify), *ranks[i])

    kernels, heat = (
        max(own(sums, i) for i in range(len(ranks))) + sums.group[mean] for sums in (table.time, table.heat)
    )
    busy = max(kernels + regime.between_us, regime.beside_us)
    hosted = max(decoding + len(pieces) for decoding, _, pieces in ranks)
    whole = busy + regime.after_us + hosted * engine.each_request_us
    return float(table.factor * limited_us(whole, heat, SCALAR))
