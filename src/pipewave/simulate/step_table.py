"""Step latency in microseconds: every part of a step is predicted on a grid once, then read between its points.

A step is its dense kernels (by rows), its head (by requests), decode attention (by requests and mean cache length) and
prompt attention (by pieces, their mean size and what lies before them), plus the engine's gaps. Where one kernel
attends for both, decodes beside a prompt cost what they add to that kernel: without packed heads or split keys, several
times what they take alone (FlashAttention 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from pipewave.models.expert_parallel import DEEPEP
from pipewave.models.kernels import Batch
from pipewave.physics.power import board_of
from pipewave.prediction.notes import merged
from pipewave.simulate.setup import AS_PREDICTED, Pace
from pipewave.simulate.step_grids import Axes, GridSums, Pieces, RankBatch, Reader, Sizes, UsesOf, fresh, reader
from pipewave.step import Engine, Priced, Runner, StepGaps


class StepTable:
    """Latency of any step of a deployment, in seconds, by reading tables.

    verify: tokens that a decoding request brings: one, or those that were drafted for it and one more.
    """

    def __init__(self, runner: Runner, sizes: Sizes, verify: int = 1) -> None:
        self.runner, self.engine, self.factor, self.verify = runner, runner.engine, 1e-6, verify
        self.board = board_of(runner.gpu)
        self.prompt_us, self.pace = 0.0, AS_PREDICTED
        self.decoders: dict[int, Reader] = {}
        self.owns: dict[tuple[int, int], list[Reader]] = {}  # of a rank's kernels: µs, and joules
        self.most_requests = sizes.requests
        one_attention = self.engine.scheduler.mixes_phases and not self.engine.kernels.separate_attention
        mixed = one_attention and verify == 1  # prompts and decodes of a step meet in one kernel
        self.sizes, self.axes = sizes, Axes.of(sizes, verify=verify, mixed=mixed)
        self._predict(self.axes)
        self.two_batch = runner.two_batch
        self.shares = runner.stage_shares()
        self.spread, self.basis = runner.usual()

    def _predict(self, axes: Axes) -> None:
        """Price all points of the grids."""
        parts = [self._price(uses, batches) for uses, batches in axes.batches(self.runner)]
        mixed = [self._price(self.runner.deployment.by_length, axes.mixed())] if axes.mixed_prompt else []
        self.notes = merged(note for part in parts for note in part.notes)
        self.time = GridSums(axes, [part.us for part in parts], [part.us for part in mixed])
        self.joules = GridSums(axes, [part.above_idle_j for part in parts], [part.above_idle_j for part in mixed])
        rest = [parts[0], parts[1], *parts[4:]]
        # Neither kernels nor launches depend on sizes: the first point of every grid stands for all.
        grids = {True: (*rest, parts[2]), False: (*rest, parts[3])}
        self.counts = {
            graph: {name: sum(float(getattr(grid, name)[0]) for grid in some) for name in ("nodes", "launches")}
            for graph, some in grids.items()
        }
        self.graph, self.pieces, self.eager = self._regimes()

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

    def under(self, engine: Engine, pace: Pace = AS_PREDICTED) -> StepTable:
        """The same kernels under an engine with other limits or times, on GPUs of such a pace."""
        other = self._copy(engine=engine, pace=pace)
        other.graph, other.pieces, other.eager = other._regimes()
        return other

    def encoding(self, prompt_us: float) -> StepTable:
        """The same where each prompt's first piece takes so many µs more: images to encode, its cache to send on."""
        return self._copy(prompt_us=self.prompt_us + prompt_us)

    def scaled(self, factor: float) -> StepTable:
        """The same table with every step `factor` times as long."""
        return self._copy(factor=self.factor * factor)

    def _copy(self, **changes: Any) -> StepTable:
        other = copy(self)
        for name, value in {**changes, "decoders": {}}.items():
            setattr(other, name, value)
        return other

    def decoder(self, decoding: int) -> Reader:
        """Seconds of a step in which so many requests decode and nothing else runs, by the tokens they hold
        together: linear between the points of the cache's grid.
        """
        known = self.decoders.get(decoding)
        if known is None:
            held = [cache * decoding for cache in self.axes.caches]
            known = self.decoders[decoding] = reader(held, [self._whole(decoding, cached, ()) for cached in held])
        return known

    def seconds(self, decoding: int, cached: float, pieces: Pieces) -> float:
        """A step with `decoding` requests that hold `cached` tokens together, and prompt pieces (tokens, before)."""
        return self._whole(decoding, cached, pieces) if pieces else self.decoder(decoding).at(cached)

    def hidden_s(self, decoding: int, pieces: Pieces) -> float:
        """Seconds of a step with prompts that a step running before it hides: an engine that schedules ahead prepares
        captured graphs meanwhile, and the GPU waits for none of it (`studies.sessions`). Larger prompts, whose kernels
        are launched one by one, keep the host busy until then.
        """
        if not self.engine.scheduler.overlaps or self._sizes(decoding, pieces)[1] > self.engine.graphs.piecewise_limit:
            return 0.0
        return float(self.factor * self.pieces.after_us)

    def watts(self, seconds: float, decoding: int, cached: float, pieces: Pieces, ranks: int) -> float:
        """Mean watts of one GPU in a step that takes so long, of so many data-parallel ranks together."""
        decoding, cached, pieces = -(-decoding // ranks), cached / ranks, pieces[::ranks]
        _, rows, heads = self._sizes(decoding, pieces)
        rows = min(rows, self.axes.rows[-1])  # one rank's pieces stand for those of all
        sums, place = (self.joules, self.time), self.axes.place(rows, heads, decoding, cached, pieces)
        joules, kernel_us = (one.at(place) for one in sums)
        if ranks > 1:
            joules, kernel_us = (
                value + one.group[rows] + one.moved[rows] for value, one in zip((joules, kernel_us), sums, strict=True)
            )
        spins_s = max(seconds - 1e-6 * kernel_us, 0.0) if self.runner.deployment.parallel.group > 1 else 0.0
        return float(self.board.step_w(joules, spins_s, seconds))

    def _sizes(self, decoding: int, pieces: Pieces) -> tuple[bool, int, int]:
        """Whether a step replays a graph, its rows, and those of its head."""
        rows, most = decoding * self.verify, self.most_requests * self.verify
        heads = rows + len(pieces)
        for tokens, _ in pieces:
            rows += tokens
        graph = not pieces and decoding <= self.engine.graphs.graph_limit
        rows = self.engine.graphs.padded(decoding) * self.verify if graph else rows
        return graph, rows, heads if heads < most else most

    def _whole(self, decoding: int, cached: float, pieces: Pieces) -> float:
        graph, rows, heads = self._sizes(decoding, pieces)
        place = self.axes.place(rows, heads, decoding, cached, pieces)
        kernels, joules = self.time.at(place), self.joules.at(place)
        requests, pace = decoding + len(pieces), self.pace.prompt if pieces else self.pace.decode
        images = fresh(pieces) if self.prompt_us else 0
        return self.law(self.regime(rows, graph=graph), pace * kernels, pace * joules, requests, images)

    def regime(self, rows: int, *, graph: bool) -> StepGaps:
        """How a step of so many rows is launched, as one CUDA graph or not."""
        if graph:
            return self.graph
        return self.pieces if rows <= self.engine.graphs.piecewise_limit else self.eager

    def law(self, gaps: StepGaps, kernel_us: float, joules: float, requests: int, images: int = 0) -> float:
        """Seconds of a step of kernels that take so many µs and joules; `images`: requests that bring some."""
        whole_us = gaps.step_us(kernel_us, self.board.at_limit_us(joules), requests)
        return float(self.factor * (whole_us + self.prompt_us * images))

    def own(self, rows: int, rank: RankBatch) -> tuple[float, float]:
        """Of the own kernels of a data-parallel rank that has so many rows: µs, and joules."""
        decoding, cached, pieces = rank
        known = None if pieces else self.owns.get((rows, decoding))
        if known is None:
            heads = min(decoding * self.verify + len(pieces), self.most_requests * self.verify)
            if pieces:
                place = self.axes.place(rows, heads, decoding, cached, pieces)
                return self.time.at(place), self.joules.at(place)
            values = (sums.decoding(rows, heads, decoding) for sums in (self.time, self.joules))
            known = self.owns[rows, decoding] = [reader(self.axes.caches, each) for each in values]
        time, joules = known
        mean = cached / decoding if decoding else 0.0
        return time.at(mean), joules.at(mean)

    def group_seconds(self, ranks: Sequence[RankBatch]) -> float:
        """Seconds of a step of data-parallel ranks in lock step.

            step = longest of the ranks' own kernels + experts and exchange at the mean of their rows + gaps

        Decode steps replay graphs, padded to the size that the fullest rank needs (experts that tokens are sent to see
        no padding where the engine masks it); others are not padded. Where two-batch overlap cuts a step, its exchanges
        hide behind kernels.
        """
        engine, verify, overlap = self.engine, self.verify, self.two_batch
        most, prompts = max([decoding for decoding, _, _ in ranks]), [pieces for _, _, pieces in ranks if pieces]
        graph = most <= engine.graphs.graph_limit and not prompts
        # Rows of each rank; an empty one runs along with one.
        tokens = [max(count * verify + sum([size for size, _ in pieces]), 1) for count, _, pieces in ranks]
        rows = [engine.graphs.padded(max(most, 1)) * verify] * len(ranks) if graph else tokens
        of_rank = sum(rows) / len(rows)
        halves = 2 if overlap and overlap.cuts(min(tokens), prompts=bool(prompts)) else 1
        parts = [_half(rank) for rank in ranks] if halves > 1 else ranks
        own = [self.own(-(-n // halves), part) for n, part in zip(rows, parts, strict=True)]
        mean = (graph and not overlap and _sent(engine, ranks, verify)) or -(-round(of_rank) // halves)
        time, joules = (
            (halves * (max(each) + sums.group[mean]), halves * sums.moved[mean])
            for each, sums in zip(zip(*own, strict=True), (self.time, self.joules), strict=True)
        )
        kernels = float(overlap.busy(*time, of_rank / 2)) if overlap and halves > 1 else sum(time)
        requests = max([decoding + len(pieces) for decoding, _, pieces in ranks]) if prompts else most
        images = max([fresh(pieces) for pieces in prompts], default=0) if self.prompt_us else 0
        pace = self.pace.prompt if prompts else self.pace.decode
        return self.law(self.regime(max(rows), graph=graph), pace * kernels, pace * sum(joules), requests, images)


def _sent(engine: Engine, ranks: Sequence[RankBatch], verify: int) -> int:
    """Tokens of a mean rank that experts see where what only fills a graph is not sent; 0 where all is."""
    if not (engine.expert_parallel.masks_padding and engine.expert_parallel.exchange.startswith(DEEPEP)):
        return 0
    return max(-(-sum(decoding for decoding, _, _ in ranks) * verify // len(ranks)), 1)


def _half(rank: RankBatch) -> RankBatch:
    """The larger half of a rank's requests; prompts are cut where there is one."""
    decoding, cached, pieces = rank
    several = len(pieces) > 1
    kept = pieces[::2] if several else [(-(-tokens // 2), before) for tokens, before in pieces]
    return -(-decoding // 2), -(-cached // 2), kept
