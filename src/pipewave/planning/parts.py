"""Step times of a split for the settings of a plan, predicted at once on the points that they need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.models.expert_parallel import is_shared
from pipewave.models.kernels import Batch, Use
from pipewave.physics.demand import Array
from pipewave.planning.space import Question
from pipewave.simulate.drafting import Drafter
from pipewave.simulate.speculative import Speculative
from pipewave.step import Runner, StepLoad


class Parts:
    """Decode steps and prompt steps of a rank. With drafts, the time of a token: a step's, less what further tokens of
    the same step save.
    """

    def __init__(
        self, runner: Runner, question: Question, tokens: Array, lane: Array, drafts: Speculative | None = None
    ) -> None:
        self.runner, self.engine, self.drafts = runner, runner.engine, drafts
        self.verify = drafts.verified if drafts else 1
        most = int(lane.max())
        self.rows = sorted(_grid(int((tokens + lane * self.verify).max())))
        self.counts = sorted(n for n in _grid(most) if n <= most)
        self.mean = question.input_len + (question.output_len + 1) // 2
        self.prompt = question.input_len
        self.pieces = sorted(q for q in _grid(self.prompt) if q >= min(16, self.prompt))
        self.drafter = Drafter(runner, drafts, most, self.mean) if drafts else None
        self._predict()

    def _predict(self) -> None:
        deployment, stages, verify = self.runner.deployment, range(self.runner.deployment.parallel.pp), self.verify
        single = [Batch((n,), (n,)) for n in self.rows]
        head = [Batch((1,) * (n * verify), (1,) * (n * verify)) for n in self.counts]
        decode = [Batch((verify,) * n, (self.mean + verify - 1,) * n, verify=verify) for n in self.counts]
        prompt = [Batch((q,), (self.prompt,)) for q in self.pieces]
        parts = [
            (self._own, single), (self._shared, single if deployment.parallel.dp > 1 else []),
            (deployment.by_requests, head), (deployment.by_length, decode + prompt),
        ]  # fmt: skip
        lists = [[use for s in stages for use in part(batch, s)] for part, batches in parts for batch in batches]
        priced = self.runner.price(lists)
        self.notes = priced.notes
        sizes = [len(single), len(parts[1][1]), len(head), len(decode)]
        ends = np.cumsum(sizes)
        self.time, self.heat = (_Sums(*np.split(values, ends)) for values in (priced.us, priced.heat_us))
        first = [start for start, size in zip([0, *ends[:3]], sizes, strict=True) if size]
        self.nodes, self.launches = float(priced.nodes[first].sum()), float(priced.launches[first].sum())
        self.spread, _ = self.runner.usual()

    def _own(self, batch: Batch, stage: int) -> list[Use]:
        """Kernels by rows that a rank does not share with the others."""
        uses = self.runner.deployment.by_rows(batch, stage)
        return uses if self.runner.deployment.parallel.dp == 1 else [use for use in uses if not is_shared(use)]

    def _shared(self, batch: Batch, stage: int) -> list[Use]:
        return [use for use in self.runner.deployment.by_rows(batch, stage) if is_shared(use)]

    def decode_s(self, requests: Array) -> Array:
        """A decode step: replayed from a graph where one was captured, launched one by one beyond."""
        padded = np.array([self.engine.graphs.padded(int(np.ceil(n))) for n in requests], float) * self.verify
        kernels, heat = (
            np.interp(padded, self.rows, table.body)
            + self._met(table, padded)
            + np.interp(requests, self.counts, table.head + table.attend)
            for table in (self.time, self.heat)
        )
        whole = self._with_gaps(kernels, heat, requests, padded, requests <= self.engine.graphs.graph_limit)
        return whole if self.drafts is None else (whole + self._draft_s(requests)) / self.drafts.mean

    def prompt_s(self, chunk: Array, decoding: Array, even: Array | float = 1.0) -> Array:
        """A step with `chunk` prompt tokens beside `decoding` requests; `even`: of the mean rank over the fullest."""
        kernels, heat = (self._prompt_sum(table, chunk, decoding, even) for table in (self.time, self.heat))
        rows = chunk + decoding * self.verify
        whole = self._with_gaps(kernels, heat, decoding + 1, rows, np.zeros(kernels.shape, bool))
        if self.drafts is None:
            return whole
        some = np.maximum(decoding, 1.0).ravel()  # none decode beside prompts of engines that keep them apart
        token, drafting = (law(some).reshape(decoding.shape) for law in (self.decode_s, self._draft_s))
        saved = token * (self.drafts.mean - 1.0) - drafting
        return np.asarray(whole - np.where(decoding > 0, saved, 0.0))

    def _prompt_sum(self, table: _Sums, chunk: Array, decoding: Array, even: Array | float) -> Array:
        total = np.interp(chunk + decoding * self.verify, self.rows, table.body)
        total += self._met(table, chunk * even + decoding * self.verify)
        total += np.interp(decoding + 1, self.counts, table.head)
        total += np.where(decoding > 0, np.interp(decoding, self.counts, table.attend), 0.0)
        # A chunk is part of a prompt (its mean cost over the prompt) or several whole prompts.
        whole = np.interp(self.prompt, self.pieces, table.prompt)
        return np.asarray(total + whole * chunk / self.prompt)

    def _met(self, table: _Sums, rows: Array) -> Array:
        """Kernels that data-parallel ranks share, by the rows of the mean one."""
        return np.interp(rows, self.rows, table.group) if len(table.group) else np.zeros_like(rows)

    def _draft_s(self, requests: Array) -> Array:
        assert self.drafter is not None
        counts = np.maximum(np.ceil(requests), 1).astype(int)
        return np.array([self.drafter.seconds(n, n * self.mean) for n in counts.tolist()])

    def _with_gaps(self, kernels: Array, heat: Array, requests: Array, rows: Array, graph: NDArray[np.bool_]) -> Array:
        nodes, launches = np.full_like(kernels, self.nodes), np.full_like(kernels, self.launches)
        layers = np.full_like(kernels, len(self.runner.deployment.model.layers))
        gaps = self.engine.gaps_us(StepLoad(kernels, heat, nodes, launches, requests, rows, graph, layers))
        return np.asarray(1e-6 * (kernels + sum(gaps.values())))


@dataclass(frozen=True, slots=True)
class _Sums:
    """One quantity of kernels on the grids: dense kernels, those that ranks share, head, decode attention, prompt
    attention.
    """

    body: Array
    group: Array
    head: Array
    attend: Array
    prompt: Array


def _grid(most: int) -> set[int]:
    """Points up to `most`: dense where tiles and graphs step, then a few an octave."""
    dense = {1, 2, 4, *range(8, min(most, 256) + 1, 16)}
    octaves = {int(2 ** (k / 3)) // 8 * 8 for k in range(24, 3 * max(most, 2).bit_length() + 1)}
    return {n for n in dense | octaves if 1 <= n <= most} | {most}
