"""Step latency in microseconds: every part of a step is predicted on a grid once, then read between its points.

A step is its dense kernels (by rows), its head (by requests), decode attention (by requests and mean cache length) and
prompt attention (by pieces, their mean size and what lies before them), plus the engine's gaps. Where one kernel
attends for both, decodes beside a prompt cost what they add to that kernel: without packed heads or split keys, several
times what they take alone (FlashAttention 2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from pipewave.models.expert_parallel import is_moved, is_shared
from pipewave.models.kernels import Batch, Use
from pipewave.physics.arith import SCALAR
from pipewave.physics.demand import Array
from pipewave.physics.energy import limited_us
from pipewave.prediction.said import merged
from pipewave.simulate.grids import (
    at_every_count,
    at_every_number,
    between,
    neighbours,
    reader,
    reader_of_two,
    row_grid,
)
from pipewave.simulate.together import Pieces, Work, fresh, group_seconds
from pipewave.step import Engine, Priced, Runner, StepGaps

CACHE_GRID = tuple(float(1 << i) for i in range(4, 21))
PIECES = (1, 2, 4, 8, 16, 32, 64)
PREFIXES = (0, 512, 2048, 8192, 32768, 131072, 524288)
UsesOf = Callable[[Batch, int], list[Use]]


class StepTable:
    """Latency of any step of a deployment, in seconds, by reading tables.

    budget: most tokens of a step; requests: most requests; longest: longest cache of a request; verify: tokens that a
    decoding request brings: one, or those that were drafted for it and one more.
    """

    def __init__(self, runner: Runner, *, budget: int, requests: int, longest: int, verify: int = 1) -> None:
        self.runner, self.engine, self.factor, self.verify = runner, runner.engine, 1e-6, verify
        self.prompt_us = 0.0
        self.decoders: dict[int, Callable[[float], float]] = {}
        self.owns: dict[tuple[int, int], Callable[[float], tuple[float, float]]] = {}
        self.most_requests = requests
        chunks = [1 << i for i in range(4, 24) if 1 << i < budget] + [budget]
        prefixes = [p for p in PREFIXES if p < longest] or [0]
        axes = Axes(
            rows=row_grid(max(budget, requests) if verify == 1 else budget + requests * verify),
            heads=[n for n in row_grid(requests * verify) if n <= requests * verify],
            counts=[1 << i for i in range(20) if 1 << i < requests] + [requests],
            caches=[c for c in CACHE_GRID if c < 2 * longest] or CACHE_GRID[:1],
            chunks=chunks,
            prefixes=prefixes,
            prompts=[(k, q, p) for k in PIECES for q in chunks for p in prefixes if k * q <= 2 * budget],
            verify=verify,
            beside=budget if _one_attention(self.engine) and verify == 1 else 0,
        )
        self.axes = axes
        self._predict(axes)
        self.two_batch = runner.two_batch
        self.shares = runner.stage_shares()
        self.spread, self.basis = runner.usual()

    def _predict(self, axes: Axes) -> None:
        """Price all points of the grids."""
        parts = [self._price(uses, batches) for uses, batches in [*axes.batches(self.runner), *self._group(axes)]]
        mixed = [self._price(self.runner.deployment.by_length, axes.mixed())] if axes.beside else []
        self.notes = merged(note for part in parts for note in part.notes)
        self.time = Sums(axes, [part.us for part in parts], [part.us for part in mixed])
        self.heat = Sums(axes, [part.heat_us for part in parts], [part.heat_us for part in mixed])
        rest = [parts[0], parts[1], *parts[4:]]
        self.counts = {True: _launched(*rest, parts[2]), False: _launched(*rest, parts[3])}
        self.graph, self.pieces, self.eager = self._regimes()

    def _group(self, axes: Axes) -> list[tuple[UsesOf, list[Batch]]]:
        """Under attention data parallelism, the kernels that depend on the rows of all ranks: by the mean of a rank."""
        if self.runner.deployment.parallel.dp == 1:
            return []
        by_rows, batches = self.runner.deployment.by_rows, [Batch((n,), (n,)) for n in axes.rows]
        experts, exchange = _only(by_rows, lambda use: is_shared(use) and not is_moved(use)), _only(by_rows, is_moved)
        return [(experts, batches), (exchange, batches)]

    def _regimes(self) -> list[StepGaps]:
        """A decode step that replays a graph, a small step with prompts, a large one."""
        layers, limit = float(len(self.runner.deployment.model.layers)), self.engine.graphs.piecewise_limit
        kinds = ((True, limit), (False, limit), (False, limit + 1))
        return [
            self.engine.gaps_of(graph=graph, rows=rows, layers=layers, **self.counts[graph]) for graph, rows in kinds
        ]

    def _price(self, uses: UsesOf, batches: Sequence[Batch]) -> Priced:
        """Kernels of all pipeline stages of each batch."""
        stages = range(self.runner.deployment.parallel.pp)
        return self.runner.price([[use for stage in stages for use in uses(batch, stage)] for batch in batches])

    def under(self, engine: Engine) -> StepTable:
        """The same kernels under an engine with other limits or times."""
        other = self._copy()
        other.engine = engine
        other.graph, other.pieces, other.eager = other._regimes()
        return other

    def encoding(self, prompt_us: float) -> StepTable:
        """The same where each prompt's first piece brings images, which take so many µs to encode."""
        other = self._copy()
        other.prompt_us = prompt_us
        return other

    def scaled(self, factor: float) -> StepTable:
        """The same table with every step `factor` times as long."""
        other = self._copy()
        other.factor = self.factor * factor
        return other

    def _copy(self) -> StepTable:
        other = copy(self)
        other.decoders = {}
        return other

    def decoder(self, decoding: int) -> Callable[[float], float]:
        """Seconds of a step in which so many requests decode and nothing else runs, by the tokens they hold
        together: linear between the points of the cache's grid."""
        known = self.decoders.get(decoding)
        if known is None:
            held = [cache * decoding for cache in self.axes.caches]
            known = self.decoders[decoding] = reader(held, [self._whole(decoding, cached, ()) for cached in held])
        return known

    def seconds(self, decoding: int, cached: int, pieces: Pieces) -> float:
        """A step with `decoding` requests that hold `cached` tokens together, and prompt pieces (tokens, before)."""
        return self._whole(decoding, cached, pieces) if pieces else self.decoder(decoding)(cached)

    def _whole(self, decoding: int, cached: float, pieces: Pieces) -> float:
        if not pieces and decoding <= self.engine.graphs.graph_limit:
            rows, regime = self.engine.graphs.padded(decoding) * self.verify, self.graph
        else:
            rows = decoding * self.verify + sum(tokens for tokens, _ in pieces)
            regime = self.pieces if rows <= self.engine.graphs.piecewise_limit else self.eager
        requests = decoding + len(pieces)
        heads = min(decoding * self.verify + len(pieces), self.most_requests * self.verify)
        kernels, heat = (table.at(rows, heads, decoding, cached, pieces) for table in (self.time, self.heat))
        busy = max(kernels + regime.between_us, regime.beside_us)
        whole = busy + regime.after_us + requests * self.engine.each_request_us
        return float(self.factor * (limited_us(whole, heat, SCALAR) + self.prompt_us * fresh(pieces)))

    def own(self, rows: int, decoding: int, cached: int) -> tuple[float, float]:
        """Of a data-parallel rank's own kernels while it decodes: µs, and those at the power limit."""
        known = self.owns.get((rows, decoding))
        if known is None:
            heads = min(decoding, self.most_requests) * self.verify
            known = self.owns[rows, decoding] = reader_of_two(
                self.axes.caches, self.time.decoding(rows, heads, decoding), self.heat.decoding(rows, heads, decoding)
            )
        return known(cached / decoding if decoding else 0.0)

    def together(self, ranks: Sequence[Work]) -> float:
        """A step of data-parallel ranks, in seconds."""
        return group_seconds(self, ranks)


@dataclass(frozen=True, slots=True)
class Axes:
    """Points of the grids: rows, requests of the head, decoding requests × mean cache, prompt pieces."""

    rows: Sequence[int]
    heads: Sequence[int]
    counts: Sequence[int]
    caches: Sequence[float]
    chunks: Sequence[int]
    prefixes: Sequence[int]
    prompts: Sequence[tuple[int, int, int]]
    verify: int = 1
    beside: int = 0  # tokens of the prompt beside which decodes are priced again; 0: they have a kernel of their own

    def batches(self, runner: Runner) -> list[tuple[UsesOf, list[Batch]]]:
        """For each grid, which kernels and the batches that stand for its points."""
        model = runner.deployment
        by_rows = model.by_rows if model.parallel.dp == 1 else _only(model.by_rows, lambda use: not is_shared(use))
        return [
            (by_rows, [Batch((n,), (n,)) for n in self.rows]),
            (model.by_requests, [Batch((1,) * n, (1,) * n) for n in self.heads]),
            (model.by_length, [self._decodes(n, int(c)) for n in self.counts for c in self.caches]),
            (model.by_length, [Batch((q,) * k, (p + q,) * k) for k, q, p in self.prompts]),
        ]

    def mixed(self) -> list[Batch]:
        """A prompt alone, and with every point of the decode grid before it in the same step."""
        grid = [(count, int(cache)) for count in self.counts for cache in self.caches]
        alone = Batch((self.beside,), (self.beside,))
        return [alone, *(Batch((1,) * n + alone.q_lens, (cache,) * n + alone.kv_lens) for n, cache in grid)]

    def _decodes(self, count: int, cache: int) -> Batch:
        """Requests that decode, each with the tokens it verifies."""
        return Batch((self.verify,) * count, (cache + self.verify - 1,) * count, verify=self.verify)


class Sums:
    """One quantity that kernels add up to, such as µs, read between the points of the grids."""

    def __init__(self, axes: Axes, parts: Sequence[Array], mixed: Sequence[Array] = ()) -> None:
        body, head, decode, prompt, *group = parts
        self.axes = axes
        self.group, self.moved = (at_every_number(axes.rows, part) for part in group) if group else ([], [])
        self.body, self.head = at_every_number(axes.rows, body), at_every_number(axes.heads, head)
        self.decode = at_every_count(axes.counts, axes.caches, decode)
        more = np.maximum(mixed[0][1:] - mixed[0][0], 0.0) if mixed else decode
        self.beside = at_every_count(axes.counts, axes.caches, more)
        self.prompt = self._filled(dict(zip(axes.prompts, prompt.tolist(), strict=True)))

    def _filled(self, known: dict[tuple[int, int, int], float]) -> dict[tuple[int, int, int], float]:
        """Beyond twice the budget no step reaches; scale so that interpolation next to the edge stays sane."""
        for k in PIECES:
            for q in self.axes.chunks:
                for p in self.axes.prefixes:
                    known.setdefault((k, q, p), 2.0 * known.get((k // 2, q, p), 0.0))
        return known

    def at(self, rows: int, requests: int, decoding: int, cached: float, pieces: Pieces) -> float:
        """The sum over the kernels of a step."""
        total = self.body[rows] + self.head[requests]
        if decoding:
            table = self.beside if pieces else self.decode
            total += between(self.axes.caches, table[decoding], cached / decoding)
        return total + self._prompts(pieces) if pieces else total

    def decoding(self, rows: int, requests: int, decoding: int) -> list[float]:
        """The sum over the kernels of a step that only decodes, at each cache length of the grid."""
        always = self.body[rows] + self.head[requests]
        return [always + more for more in self.decode[decoding]] if decoding else [always]

    def _prompts(self, pieces: Pieces) -> float:
        count = len(pieces)
        size = sum(tokens for tokens, _ in pieces) / count
        before = sum(tokens * prefix for tokens, prefix in pieces) / (size * count)
        return self._at_pieces(count, size, before)

    def _at_pieces(self, count: int, size: float, before: float) -> float:
        low = PIECES[min(bisect_right(PIECES, count), len(PIECES)) - 1]
        if count > PIECES[-1]:
            return self._at_size(PIECES[-1], size, before) * count / PIECES[-1]
        if low == count:
            return self._at_size(count, size, before)
        high = PIECES[bisect_right(PIECES, count)]
        part = (count - low) / (high - low)
        return (1 - part) * self._at_size(low, size, before) + part * self._at_size(high, size, before)

    def _at_size(self, count: int, size: float, before: float) -> float:
        chunks, prefixes = neighbours(self.axes.chunks, size), self.axes.prefixes
        row = [between(prefixes, [self.prompt[count, q, p] for p in prefixes], before) for q in chunks]
        return between(chunks, row, size)


def _one_attention(engine: Engine) -> bool:
    """Whether prompts and decodes of a step meet in one attention kernel."""
    return engine.scheduler.mixes_phases and not engine.kernels.separate_attention


def _only(uses: UsesOf, wanted: Callable[[Use], bool]) -> UsesOf:
    """Only the wanted kernels."""
    return lambda batch, stage: [use for use in uses(batch, stage) if wanted(use)]


def _launched(*grids: Priced) -> dict[str, float]:
    """Kernels and launches of a step; neither depends on sizes, so the first point of every grid stands for all."""
    return {
        "nodes": sum(float(grid.nodes[0]) for grid in grids),
        "launches": sum(float(grid.launches[0]) for grid in grids),
    }
