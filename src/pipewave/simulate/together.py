"""One step of data-parallel ranks in lock step: what each does alone, and what waits for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pipewave.models.expert_parallel import DEEPEP
from pipewave.physics.arith import SCALAR
from pipewave.physics.energy import limited_us
from pipewave.step import Engine, StepGaps
from pipewave.step.two_batch import TwoBatch

Pieces = Sequence[tuple[int, int]]  # (tokens, tokens before them) of each prompt
Work = tuple[int, int, Pieces]  # decoding requests, tokens they hold together, prompt pieces


class Sums(Protocol):
    """One quantity that kernels add up to: a rank's own and the group's."""

    @property
    def group(self) -> Sequence[float]:
        """By the mean of the ranks' rows."""
        ...

    @property
    def moved(self) -> Sequence[float]:
        """What brings tokens to experts and back, by the same."""
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
    prompt_us: float
    two_batch: TwoBatch | None
    graph: StepGaps
    pieces: StepGaps
    eager: StepGaps

    @property
    def time(self) -> Sums:
        """Microseconds."""
        ...

    def own(self, rows: int, decoding: int, cached: int) -> tuple[float, float]:
        """Of a rank's own kernels while it decodes: microseconds, and those at the power limit."""
        ...

    @property
    def heat(self) -> Sums:
        """Microseconds at the power limit."""
        ...


def group_seconds(table: Grids, ranks: Sequence[Work]) -> float:
    """A step of all ranks: the longest of their own kernels, the group's kernels at the mean of their rows, the gaps.

    Decode steps replay graphs, padded to the size that the fullest rank needs (experts that tokens are sent to see no
    padding where the engine masks it); others are not padded. Where two-batch overlap cuts a step, its exchanges hide
    behind kernels.
    """
    engine, verify = table.engine, table.verify
    most = max(decoding for decoding, _, _ in ranks)
    prompts = any(pieces for _, _, pieces in ranks)
    if not prompts and table.two_batch is None:
        return _decode_seconds(table, ranks, most)
    if graph := most <= engine.graphs.graph_limit and not prompts:
        rows = [engine.graphs.padded(max(most, 1)) * verify] * len(ranks)
    else:
        rows = [_tokens(rank, verify) for rank in ranks]
    overlap = table.two_batch
    fewest = min(_tokens(rank, verify) for rank in ranks)
    cut = overlap is not None and overlap.cuts(fewest, prompts=prompts)
    time, heat = (_parts(table, sums, rows, ranks, halves=cut) for sums in (table.time, table.heat))
    kernels = float(overlap.busy(*time, sum(rows) / len(rows) / 2)) if cut and overlap else sum(time)
    hosted = max(decoding + len(pieces) for decoding, _, pieces in ranks)
    images = table.prompt_us * max(fresh(pieces) for _, _, pieces in ranks)
    return _with_gaps(table, _regime(table, max(rows), graph=graph), (kernels, sum(heat)), hosted, images)


def _decode_seconds(table: Grids, ranks: Sequence[Work], most: int) -> float:
    """The same where all ranks decode and nothing else, which most steps do."""
    engine, verify = table.engine, table.verify
    if graph := most <= engine.graphs.graph_limit:
        padded = engine.graphs.padded(max(most, 1)) * verify
        mean = _sent(engine, ranks, verify) or padded
        own = [table.own(padded, decoding, cached) for decoding, cached, _ in ranks]
    else:
        rows = [max(decoding * verify, 1) for decoding, _, _ in ranks]
        own = [table.own(n, decoding, cached) for n, (decoding, cached, _) in zip(rows, ranks, strict=True)]
        mean, padded = round(sum(rows) / len(rows)), max(rows)
    kernels, heat = (
        max(one[part] for one in own) + sums.group[mean] + sums.moved[mean]
        for part, sums in enumerate((table.time, table.heat))
    )
    return _with_gaps(table, _regime(table, padded, graph=graph), (kernels, heat), most)


def _regime(table: Grids, rows: int, *, graph: bool) -> StepGaps:
    """How a step is launched whose fullest rank has so many rows."""
    if graph:
        return table.graph
    return table.pieces if rows <= table.engine.graphs.piecewise_limit else table.eager


def _with_gaps(
    table: Grids, regime: StepGaps, kernels: tuple[float, float], requests: int, images_us: float = 0.0
) -> float:
    """Seconds of a step of these kernels (µs, and µs at the power limit), the fullest rank having so many requests."""
    busy = max(kernels[0] + regime.between_us, regime.beside_us)
    whole = busy + regime.after_us + requests * table.engine.each_request_us
    return float(table.factor * (limited_us(whole, kernels[1], SCALAR) + images_us))


def _sent(engine: Engine, ranks: Sequence[Work], verify: int) -> int:
    """Tokens of a mean rank that experts see where what only fills a graph is not sent; 0 where all is."""
    if not (engine.expert_parallel.masks_padding and engine.expert_parallel.exchange.startswith(DEEPEP)):
        return 0
    return max(-(-sum(decoding for decoding, _, _ in ranks) * verify // len(ranks)), 1)


def fresh(pieces: Pieces) -> int:
    """Prompts that begin with this step."""
    return sum(before == 0 for _, before in pieces)


def _tokens(rank: Work, verify: int) -> int:
    """Rows of a rank's step; an empty rank runs along with one."""
    decoding, _, pieces = rank
    return max(decoding * verify + sum(tokens for tokens, _ in pieces), 1)


def _parts(
    table: Grids, sums: Sums, rows: Sequence[int], ranks: Sequence[Work], *, halves: bool
) -> tuple[float, float]:
    """Kernels of the fullest rank with the group's experts, and the group's exchange; as two halves, or whole."""
    parts, verify = 1 + halves, table.verify
    mean = -(-round(sum(rows) / len(rows)) // parts)

    def own(i: int) -> float:
        decoding, cached, pieces = _half(ranks[i]) if halves else ranks[i]
        heads = min(decoding * verify + len(pieces), table.most_requests * verify)
        return sums.at(-(-rows[i] // parts), heads, decoding, cached, pieces)

    return parts * (max(own(i) for i in range(len(ranks))) + sums.group[mean]), parts * sums.moved[mean]


def _half(rank: Work) -> Work:
    """The larger half of a rank's requests; prompts are cut where there is one."""
    decoding, cached, pieces = rank
    several = len(pieces) > 1
    kept = pieces[::2] if several else [(-(-tokens // 2), before) for tokens, before in pieces]
    return -(-decoding // 2), -(-cached // 2), kept
