"""Step latency in a microsecond: every part of a step is predicted on a grid once, then read between its points.

A step is its dense kernels (by rows), its head (by requests), decode attention (by requests and mean cache length) and
prompt attention (by pieces, their mean size and what lies before them), plus the engine's gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from pipewave.demand import Array
from pipewave.model.kernels import Batch, Use
from pipewave.step import Runner

CACHE_GRID = tuple(float(1 << i) for i in range(4, 21))
PIECES = (1, 2, 4, 8, 16, 32, 64)
PREFIXES = (0, 512, 2048, 8192, 32768, 131072, 524288)
UsesOf = Callable[[Batch, int], list[Use]]


@dataclass(frozen=True, slots=True)
class Costs:
    """GPU µs and kernels launched, on some grid."""

    us: Array
    nodes: Array


class StepTable:
    """Latency of any step of a deployment, in seconds, by reading tables.

    budget: most tokens of a step; requests: most requests; longest: longest cache of a request.
    """

    def __init__(self, runner: Runner, *, budget: int, requests: int, longest: int) -> None:
        self.runner, self.engine = runner, runner.engine
        self.budget, self.requests, self.factor = budget, requests, 1e-6
        self.caches = [c for c in CACHE_GRID if c < 2 * longest]
        self.chunks = [1 << i for i in range(4, 24) if 1 << i < budget] + [budget]
        self.prefixes = [p for p in PREFIXES if p < longest] or [0]
        self._grids()
        self.shares = runner.stage_shares()

    def _grids(self) -> None:
        runner, rows = self.runner, _row_grid(max(self.budget, self.requests))
        counts = [n for n in _row_grid(self.requests) if n <= self.requests]
        dense = self._price(runner.deployment.by_rows, [Batch((n,), (n,)) for n in rows])
        head = self._price(runner.deployment.by_requests, [Batch((1,) * n, (1,) * n) for n in counts])
        self.body_us, self.body_nodes = (_every(rows, values) for values in (dense.us, dense.nodes))
        self.head_us, self.head_nodes = (_every(counts, values) for values in (head.us, head.nodes))
        self._decode_grid()
        self._prompt_grid()

    def _price(self, uses: UsesOf, batches: Sequence[Batch]) -> Costs:
        """Kernels of all pipeline stages of each batch."""
        stages = range(self.runner.deployment.parallel.pp)
        parts = [[use for stage in stages for use in uses(batch, stage)] for batch in batches]
        us, nodes, spread = self.runner.price(parts)
        self.spread = float(spread.max())
        return Costs(us, nodes)

    def _decode_grid(self) -> None:
        counts = [1 << i for i in range(20) if 1 << i < self.requests] + [self.requests]
        batches = [Batch((1,) * n, (int(c),) * n) for n in counts for c in self.caches]
        costs = self._price(self.runner.deployment.by_length, batches)
        table = costs.us.reshape(len(counts), len(self.caches))
        every = np.arange(self.requests + 1)
        columns = [np.interp(every, counts, column) for column in table.T]
        self.decode_us = np.stack(columns, axis=1).tolist()
        self.decode_nodes = float(costs.nodes[0])

    def _prompt_grid(self) -> None:
        points = [(k, q, p) for k in PIECES for q in self.chunks for p in self.prefixes]
        inside = [(k, q, p) for k, q, p in points if k * q <= 2 * self.budget]
        costs = self._price(self.runner.deployment.by_length, [Batch((q,) * k, (p + q,) * k) for k, q, p in inside])
        known = dict(zip(inside, costs.us.tolist(), strict=True))
        # Beyond twice the budget no step reaches; scale so that interpolation next to the edge stays sane.
        for k, q, p in points:
            known.setdefault((k, q, p), 2.0 * known.get((k // 2, q, p), 0.0))
        self.prompt_us = known
        self.prompt_nodes = float(costs.nodes[0])

    def scaled(self, factor: float) -> StepTable:
        """The same table with every step `factor` times as long."""
        other = copy(self)
        other.factor = self.factor * factor
        return other

    def seconds(self, decoding: int, cached: int, pieces: Sequence[tuple[int, int]]) -> float:
        """A step with `decoding` requests that hold `cached` tokens together, and prompt pieces (tokens, before)."""
        requests = decoding + len(pieces)
        if not pieces and decoding <= self.engine.graph_limit:
            return self.factor * self._graph_us(decoding, cached)
        rows = decoding + sum(tokens for tokens, _ in pieces)
        kernels = self.body_us[rows] + self.head_us[min(requests, self.requests)]
        nodes = self.body_nodes[rows] + self.head_nodes[1] + self.prompt_nodes
        if decoding:
            kernels += self._decode(decoding, cached)
        if pieces:
            kernels += self._prompts(pieces)
        return self.factor * self._eager_us(kernels, nodes, requests)

    def _graph_us(self, decoding: int, cached: int) -> float:
        engine = self.engine
        rows = engine.padded(decoding)
        kernels = self.body_us[rows] + self.head_us[decoding] + self._decode(decoding, cached)
        nodes = self.body_nodes[rows] + self.head_nodes[decoding] + self.decode_nodes
        return (
            engine.decode_scale * kernels
            + nodes * engine.node_us
            + engine.decode_host_us
            + decoding * engine.request_host_us
        )

    def _eager_us(self, kernels: float, nodes: float, requests: int) -> float:
        engine = self.engine
        gpu = max(kernels + nodes * engine.node_us, nodes * engine.launch_us)
        return gpu + (engine.prompt_scale - 1.0) * kernels + engine.prefill_host_us + requests * engine.request_host_us

    def _decode(self, decoding: int, cached: int) -> float:
        row, mean = self.decode_us[decoding], cached / decoding
        return _between(self.caches, row, mean)

    def _prompts(self, pieces: Sequence[tuple[int, int]]) -> float:
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
        row = [_between(self.prefixes, [self.prompt_us[count, q, p] for p in self.prefixes], before) for q in
               _around(self.chunks, size)]  # fmt: skip
        return _between(_around(self.chunks, size), row, size)


def _around(grid: Sequence[int], value: float) -> list[int]:
    """The grid points on both sides of a value."""
    high = min(max(bisect_right(grid, value), 1), len(grid) - 1)
    return [grid[high - 1], grid[high]] if len(grid) > 1 else [grid[0]]


def _between(grid: Sequence[float], values: Sequence[float], at: float) -> float:
    """Linear between grid points, and beyond the last along the last segment; level before the first."""
    if at <= grid[0] or len(grid) == 1:
        return values[0]
    high = min(bisect_right(grid, at), len(grid) - 1)
    low = high - 1
    part = (at - grid[low]) / (grid[high] - grid[low])
    return values[low] + part * (values[high] - values[low])


def _row_grid(most: int) -> list[int]:
    """Row counts to predict: fine where engines pad to graphs and tiles step, coarser beyond."""
    spans = ((1, 8, 1), (8, 256, 8), (256, 512, 16), (512, 2048, 64), (2048, 8192, 256), (8192, 1 << 22, 2048))
    grid = [n for low, high, step in spans for n in range(low, min(high, most), step)]
    return [*grid, most]


def _every(grid: Sequence[int], values: Array) -> list[float]:
    """Values at every whole number up to the last grid point."""
    return [float(v) for v in np.interp(np.arange(grid[-1] + 1), grid, values)]
