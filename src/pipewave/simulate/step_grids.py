"""Grids of step times: the points at which parts of a step are predicted, and how they are read between them.

One rule for all: level before the first point, linear between two, and beyond the last along the last segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, product, takewhile
from typing import NamedTuple, TypeVar

import numpy as np

from pipewave.models.expert_parallel import MOVED, is_shared
from pipewave.models.kernels import Batch, Use
from pipewave.physics.demand import Array
from pipewave.step import Runner

Points = Sequence[float]
Shares = Sequence[tuple[int, float]]
PromptShares = Sequence[tuple[tuple[int, int, int], float]]  # of points (pieces, tokens of each, tokens before each)
Place = tuple[int, int, int, Shares, PromptShares]  # of a step: rows, heads, decoding requests, their caches, prompts
Pieces = Sequence[tuple[int, int]]  # (tokens, tokens before them) of each prompt
RankBatch = tuple[int, int, Pieces]  # decoding requests of a rank, tokens they hold together, prompt pieces
UsesOf = Callable[[Batch, int], list[Use]]
T = TypeVar("T")
ROW_SPANS = ((1, 8, 1), (8, 256, 8), (256, 512, 16), (512, 2048, 64), (2048, 8192, 256), (8192, 1 << 22, 2048))
# Split decode attention fills a GPU in waves: up to a few dozen requests each one more may begin another.
COUNT_SPANS = ((1, 16, 1), (16, 32, 2), (32, 64, 8), (64, 128, 32), (128, 256, 64), (256, 1 << 20, 256))
POWERS = tuple(1 << i for i in range(24))
CACHE_GRID = tuple(float(1 << i) for i in range(4, 21))
PIECES = (1, 2, 4, 8, 16, 32, 64)
PREFIXES = (0, 512, 2048, 8192, 32768, 131072, 524288)


def upto(most: int, rising: Iterable[int]) -> list[int]:
    """Numbers below `most`, and it."""
    return [*takewhile(lambda n: n < most, rising), most]


def spaced(spans: Sequence[tuple[int, int, int]], most: int) -> list[int]:
    """Numbers up to `most` in spans of (first, end, step)."""
    return upto(most, chain.from_iterable(range(*span) for span in spans))


class Numbers(dict[int, T]):
    """Values at whole numbers, each worked out when it is first asked for."""

    def __init__(self, at: Callable[[int], T]) -> None:
        self.at = at

    def __missing__(self, number: int) -> T:
        value = self[number] = self.at(number)
        return value


def at_every_number(grid: Sequence[int], values: Array) -> Numbers[float]:
    """Values between the points of a grid."""
    return Numbers(reader(grid, values.tolist()).at)


def at_every_count(counts: Sequence[int], lengths: Points, values: Array) -> Numbers[list[float]]:
    """Values [count · length] at numbers of requests, for each length."""
    columns = [reader(counts, each.tolist()).at for each in values.reshape(len(counts), len(lengths)).T]
    return Numbers(lambda count: [at(count) for at in columns])


def shares(grid: Points, at: float) -> Shares:
    """The points between which a value is read, by index, and the share of each."""
    if at <= grid[0] or len(grid) == 1:
        return ((0, 1.0),)
    high = min(bisect_right(grid, at), len(grid) - 1)
    part = (at - grid[high - 1]) / (grid[high] - grid[high - 1])
    return ((high - 1, 1.0 - part), (high, part)) if part else ((high - 1, 1.0),)


class Reader(NamedTuple):
    """A quantity on a grid that is read often: the inner loop of a simulation calls little else."""

    at: Callable[[float], float]
    each: Callable[[Array], Array]  # at many places, to the same last digit


def reader(grid: Points, values: Points) -> Reader:
    """Reads values at points of a grid."""
    slopes = [(high - low) / (b - a) for a, b, low, high in zip(grid, grid[1:], values, values[1:], strict=False)]
    first, last = grid[0], len(slopes) - 1
    grids, levels, rises = np.array(grid), np.array(values), np.array([*slopes, 0.0])

    def at(place: float) -> float:
        if place <= first or last < 0:
            return values[0]
        low = bisect_right(grid, place, 1, last + 1) - 1
        return values[low] + slopes[low] * (place - grid[low])

    def each(places: Array) -> Array:
        low = np.clip(np.searchsorted(grids, places, side="right") - 1, 0, max(last, 0))
        return np.asarray(levels[low] + rises[low] * np.maximum(places - grids[low], 0.0))

    return Reader(at, each)


class Sizes(NamedTuple):
    """Steps that times are worked out for."""

    budget: int  # most tokens of a step
    requests: int  # that run at once, at most
    longest: int  # tokens of a request
    prompt: int = 0  # tokens of prompts about which a tenth of the points are enough; 0: all points, for any prompts
    spread: float = 0.0  # of cache lengths in a step: they lie within so large a share of their mean from it


@dataclass(frozen=True, slots=True)
class Axes:
    """Points of the grids."""

    rows: Sequence[int]
    heads: Sequence[int]  # rows of the head: one a request
    counts: Sequence[int]  # decoding requests
    caches: Sequence[float]  # their mean cache length
    chunks: tuple[int, ...]  # tokens of a prompt piece
    prefixes: tuple[int, ...]  # tokens before it
    prompts: Sequence[tuple[int, int, int]]  # pieces, tokens of each, tokens before each
    verify: int = 1  # tokens that a decoding request brings
    spread: float = 0.0  # of cache lengths, as of sizes
    # Tokens of the prompt beside which decodes are priced again; 0: they have a kernel of their own.
    mixed_prompt: int = 0

    @classmethod
    def of(cls, sizes: Sizes, *, verify: int = 1, mixed: bool = False) -> Axes:
        """Grids for steps of these sizes; `mixed`: decodes are priced beside a prompt as well."""
        budget, requests, longest, prompt, spread = sizes
        most, heads = max(budget, requests) if verify == 1 else budget + requests * verify, requests * verify
        caches: Sequence[float] = [c for c in CACHE_GRID if c < 2 * longest] or CACHE_GRID[:1]
        chunks, prefixes = upto(budget, POWERS[4:]), [p for p in PREFIXES if p < longest] or [0]
        points = spaced(ROW_SPANS, most), spaced(ROW_SPANS, heads), spaced(COUNT_SPANS, requests)
        if prompt:
            caches = [float(max(prompt // 2, 1)), float(prompt + longest) / 2, float(2 * longest)]
            chunks = sorted({max(budget >> shift, 1) for shift in (0, 2, 4)} | {min(prompt, budget)})
            prefixes = sorted({0, longest})
            points = upto(most, POWERS), upto(heads, (1, 64, 256)), upto(requests, (1, 8, *POWERS[5:11]))
        pieces = PIECES[:1] if prompt else PIECES
        prompts = [(k, q, p) for k in pieces for q in chunks for p in prefixes if k * q <= 2 * budget]
        return cls(*points, caches, tuple(chunks), tuple(prefixes), prompts, verify, spread, budget if mixed else 0)

    def batches(self, runner: Runner) -> list[tuple[UsesOf, list[Batch]]]:
        """For each grid, which kernels and the batches that stand for its points.

        Under attention data parallelism, kernels that depend on the rows of all ranks (experts, then their exchange)
        come last, by the mean rows of a rank.
        """
        model, alone = runner.deployment, runner.deployment.parallel.dp == 1
        by_rows = model.by_rows if alone else cache(model.by_rows)  # which is then asked three times
        rows, verify = [Batch((n,), (n,)) for n in self.rows], self.verify
        grid = ((n, self._held(n, length + verify - 1)) for n in self.counts for length in self.caches)
        decodes = [Batch((verify,) * n, held, verify=verify) for n, held in grid]
        group = [
            (_only(by_rows, lambda use: is_shared(use) and use.name not in MOVED), rows),
            (_only(by_rows, lambda use: use.name in MOVED), rows),
        ]
        return [
            (by_rows if alone else _only(by_rows, lambda use: not is_shared(use)), rows),
            (model.by_requests, [Batch((1,) * n, (1,) * n) for n in self.heads]),
            (model.by_length, decodes),
            (model.by_length, [Batch((q,) * k, (p + q,) * k) for k, q, p in self.prompts]),
            *([] if alone else group),
        ]

    def place(self, rows: int, heads: int, decoding: int, cached: float, pieces: Pieces) -> Place:
        """Where a step lies whose decoding requests hold `cached` tokens together; pieces lie where their means do."""
        held = shares(self.caches, cached / decoding) if decoding else ()
        if not pieces:
            return rows, heads, decoding, held, ()
        count, tokens = len(pieces), sum([size for size, _ in pieces])
        before = sum([size * prefix for size, prefix in pieces]) / tokens
        return rows, heads, decoding, held, _prompt_shares(self.chunks, self.prefixes, count, tokens / count, before)

    def mixed(self) -> list[Batch]:
        """A prompt alone, and with every point of the decode grid before it in the same step."""
        grid = [(count, self._held(count, cache)) for count in self.counts for cache in self.caches]
        alone = Batch((self.mixed_prompt,), (self.mixed_prompt,))
        return [alone, *(Batch((1,) * n + alone.q_lens, held + alone.kv_lens) for n, held in grid)]

    def _held(self, count: int, mean: float) -> tuple[int, ...]:
        """Cache lengths of so many requests, equally far apart: equal ones fill a GPU's waves as no others do."""
        if not self.spread:
            return (int(mean),) * count
        return tuple([int(mean * (1.0 + self.spread * ((2 * i + 1) / count - 1.0))) for i in range(count)])


@lru_cache(maxsize=1 << 14)
def _prompt_shares(
    chunks: tuple[int, ...], prefixes: tuple[int, ...], count: int, tokens: float, before: float
) -> PromptShares:
    """Shares of points for so many pieces of so many tokens each."""
    counts = shares(PIECES, count) if count <= PIECES[-1] else ((len(PIECES) - 1, count / PIECES[-1]),)
    sizes, behind = shares(chunks, tokens), shares(prefixes, before)
    return tuple(
        ((PIECES[k], chunks[q], prefixes[p]), of_k * of_q * of_p)
        for k, of_k in counts
        for q, of_q in sizes
        for p, of_p in behind
    )


class GridSums:
    """One quantity that kernels add up to, such as µs, read between the points of the grids."""

    def __init__(self, axes: Axes, parts: Sequence[Array], mixed: Sequence[Array] = ()) -> None:
        body, head, decode, prompt, *group = parts
        self.axes = axes
        self.group, self.moved = (at_every_number(axes.rows, part) for part in group or (0.0 * body,) * 2)
        self.body, self.head = at_every_number(axes.rows, body), at_every_number(axes.heads, head)
        self.decode = at_every_count(axes.counts, axes.caches, decode)
        more = np.maximum(mixed[0][1:] - mixed[0][0], 0.0) if mixed else decode
        self.with_prompts = at_every_count(axes.counts, axes.caches, more) if mixed else self.decode
        self.prompt: dict[tuple[int, int, int], float] = dict(zip(axes.prompts, prompt.tolist(), strict=True))
        for k, q, p in product(PIECES, axes.chunks, axes.prefixes):  # beyond twice the budget, which no step reaches
            self.prompt.setdefault((k, q, p), 2.0 * self.prompt.get((k // 2, q, p), 0.0))

    def at(self, place: Place) -> float:
        """The sum over the kernels of a step."""
        rows, heads, decoding, held, prompts = place
        total = self.body[rows] + self.head[heads]
        if decoding:
            values = (self.with_prompts if prompts else self.decode)[decoding]
            for index, share in held:
                total += share * values[index]
        for point, share in prompts:
            total += share * self.prompt[point]
        return total

    def decoding(self, rows: int, requests: int, decoding: int) -> list[float]:
        """The sum over the kernels of a step that only decodes, at each cache length of the grid."""
        always = self.body[rows] + self.head[requests]
        return [always + more for more in self.decode[decoding]] if decoding else [always]


def _only(uses: UsesOf, wanted: Callable[[Use], bool]) -> UsesOf:
    """Only the wanted kernels."""
    return lambda batch, stage: [use for use in uses(batch, stage) if wanted(use)]


def fresh(pieces: Pieces) -> int:
    """Prompts that begin with this step."""
    return sum(before == 0 for _, before in pieces)
