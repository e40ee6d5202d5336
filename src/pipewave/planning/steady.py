"""The steady state of a loaded engine in closed form, for all scheduler settings of a split at once.

With B requests in flight, each living through O steps, B/O prompts come per step, in groups (`arrivals`). A step that
carries prompt tokens takes longer; spread over all steps that is what a later token pays for other people's prompts.
The simulator (`serve`) is the reference; this is its mean, a thousand times faster (`python -m bench.plan_steady`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import PipewaveError
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec
from pipewave.models.kernels import Batch, Deployment
from pipewave.physics.demand import Array
from pipewave.planning.arrivals import Groups
from pipewave.planning.launch import check_blocks
from pipewave.planning.space import Question, Split
from pipewave.step import Engine, Load, Runner, find_engine
from pipewave.step.memory import GIB, Budget, budget, cache_bytes

COLUMNS = ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s_per_gpu", "tokens_per_s_per_user", "spread")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """All settings of one split as arrays [budget, batch] (ravelled), or the reason there are none."""

    split: Split
    budgets: Array
    batches: Array
    columns: dict[str, Array]
    refused: str = ""
    crowded_out: int = 0  # settings whose batch does not fit the KV cache


def evaluate(
    model: ModelSpec,
    split: Split,
    question: Question,
    budgets: Sequence[int],
    batches: Sequence[int],
    gpu: GPU | None = None,
) -> Evaluated:
    """Evaluate every (token budget, batch) of a split; `gpu` stands in for the named one (what-if)."""
    try:
        return _Steady(model, split, question, gpu or find_gpu(split.gpu)).all(budgets, batches)
    except PipewaveError as problem:
        return Evaluated(split, np.array([]), np.array([]), {}, refused=problem.message)


class _Steady:
    def __init__(self, model: ModelSpec, split: Split, question: Question, gpu: GPU) -> None:
        parallel = split.parallel
        parallel.check(model)
        check_blocks(model, split)
        self.split, self.question = split, question
        self.runner = Runner.of(Deployment(model, parallel, split.kv_dtype), gpu, find_engine(split.engine))
        self.engine: Engine = self.runner.engine
        self.lanes = parallel.pp

    def all(self, budgets: Sequence[int], batches: Sequence[int]) -> Evaluated:
        """Every setting that fits."""
        tokens, lanes = np.meshgrid(np.array(budgets, float), np.array(batches, float), indexing="ij")
        fits = lanes <= self._capacity(budgets)[:, None]
        fits &= tokens > lanes
        tokens, lanes = tokens[fits], lanes[fits]
        refused = "" if len(tokens) else "the KV cache holds not even one such request with any of the settings"
        columns = self._columns(tokens, lanes) if len(tokens) else {}
        return Evaluated(self.split, tokens, lanes * self.lanes, columns, refused, int((~fits).sum()))

    def _capacity(self, budgets: Sequence[int]) -> Array:
        """Requests of full length the cache of one pipeline lane holds, by token budget."""
        deployment, length = self.runner.deployment, self.question.input_len + self.question.output_len
        memory: list[Budget] = [
            budget(deployment, self.runner.gpu, self.engine, max_batched_tokens=tokens) for tokens in budgets
        ]
        each = [cache_bytes(deployment, length, chunk=tokens) / GIB for tokens in budgets]
        return np.array([m.kv / e // self.lanes for m, e in zip(memory, each, strict=True)])

    def _columns(self, tokens: Array, lane: Array) -> dict[str, Array]:
        parts = _Parts(self.runner, self.question, tokens, lane)
        pace = self._pace(tokens, lane)
        groups = Groups.at(pace.rate)
        work = groups.prompts * groups.length * self.question.input_len
        steps = np.ceil(work / pace.room)
        if pace.mixes:  # groups that overlap share steps
            steps = steps / np.maximum(groups.share * steps.mean(axis=0), 1.0)
        beside = pace.decoding if pace.mixes else np.zeros_like(lane)
        each = parts.prompt_s(np.minimum(work / steps, pace.room), np.broadcast_to(beside, work.shape))
        decode = parts.decode_s(np.maximum(pace.decoding, 1.0)) * (pace.later > 0)
        tpot = decode + groups.share * (steps * (each - decode * pace.mixes)).mean(axis=0)
        # A prompt is one of a group, more likely of a large one, and on average in its middle. It has come while a
        # step was running.
        until = np.maximum(steps * (groups.prompts + 1.0) / (2.0 * groups.prompts), 1.0) * each
        first = tpot + (groups.prompts * until).mean(axis=0) / groups.prompts.mean(axis=0) + pace.queued * tpot
        return self._named(lane, first, tpot, first + pace.later * tpot, parts.spread)

    def _pace(self, tokens: Array, lane: Array) -> _Pace:
        """How requests move through settings of `tokens` a step and `lane` requests."""
        prompt, later = self.question.input_len, self.question.output_len - 1
        if not self.engine.mixes_phases and later:
            return _Pace(lane / later, lane, tokens, np.zeros_like(lane), later, mixes=False)
        mixes = self.engine.mixes_phases
        own = np.maximum(prompt / (tokens - lane), 1.0) if mixes else 1.0  # steps a prompt takes
        # Prompts cannot come faster than the budget lets them in; the rest of the batch waits in the queue.
        rate = np.minimum(lane / (later + own), tokens / (prompt + later))
        queued = np.maximum(lane / rate - later - own, 0.0)
        return _Pace(rate, rate * later, tokens - rate * later, queued, later, mixes=mixes)

    def _named(self, lane: Array, first: Array, tpot: Array, cycle: Array, spread: float) -> dict[str, Array]:
        pace = max(self.runner.stage_shares()) * self.lanes  # a full pipeline runs at its slowest stage
        first, tpot, cycle = first * pace, tpot * pace, cycle * pace
        per_gpu = lane * self.question.output_len / cycle * self.lanes / self.split.parallel.world
        values = (1e3 * first, 1e3 * tpot, 1e3 * cycle, per_gpu, 1 / tpot, np.full_like(tpot, spread))
        return dict(zip(COLUMNS, values, strict=True))


@dataclass(frozen=True, slots=True)
class _Pace:
    """Requests in a full engine, by setting: prompts that come and requests that end per step, requests that decode,
    prompt tokens a step takes at most, steps a request waits in the queue, tokens after the first, and whether prompts
    ride along with decoding (else the rate is per decode step)."""

    rate: Array
    decoding: Array
    room: Array
    queued: Array
    later: int
    mixes: bool


class _Parts:
    """Step times of a split, predicted at once on the points its settings need."""

    def __init__(self, runner: Runner, question: Question, tokens: Array, lane: Array) -> None:
        self.runner, self.engine = runner, runner.engine
        self.rows = sorted(_grid(int((tokens + lane).max())))
        self.counts = sorted(n for n in _grid(int(lane.max())) if n <= lane.max())
        self.mean = question.input_len + (question.output_len + 1) // 2
        self.prompt = question.input_len
        self.pieces = [q for q in _grid(self.prompt) if q >= min(16, self.prompt)]
        self._predict()

    def _predict(self) -> None:
        deployment, stages = self.runner.deployment, range(self.runner.deployment.parallel.pp)
        single = [Batch((n,), (n,)) for n in self.rows]
        head = [Batch((1,) * n, (1,) * n) for n in self.counts]
        decode = [Batch((1,) * n, (self.mean,) * n) for n in self.counts]
        prompt = [Batch((q,), (self.prompt,)) for q in self.pieces]
        kinds = [(deployment.by_rows, single), (deployment.by_requests, head), (deployment.by_length, decode + prompt)]
        lists = [[use for s in stages for use in part(batch, s)] for part, batches in kinds for batch in batches]
        priced = self.runner.price(lists)
        ends = np.cumsum([len(single), len(head), len(decode)])
        self.time, self.heat = (_Sums(*np.split(values, ends)) for values in (priced.us, priced.heat_us))
        first = [0, ends[0], ends[1]]
        self.nodes, self.launches = float(priced.nodes[first].sum()), float(priced.launches[first].sum())
        self.spread, _ = self.runner.usual()

    def decode_s(self, requests: Array) -> Array:
        """A decode step: replayed from a graph where one was captured, launched one by one beyond."""
        padded = np.array([self.engine.padded(int(np.ceil(n))) for n in requests], float)
        kernels, heat = (
            np.interp(padded, self.rows, table.body) + np.interp(requests, self.counts, table.head + table.attend)
            for table in (self.time, self.heat)
        )
        return self._with_gaps(kernels, heat, requests, padded, requests <= self.engine.graph_limit)

    def prompt_s(self, chunk: Array, decoding: Array) -> Array:
        """A step with `chunk` prompt tokens beside `decoding` requests."""
        kernels, heat = (self._prompt_sum(table, chunk, decoding) for table in (self.time, self.heat))
        return self._with_gaps(kernels, heat, decoding + 1, chunk + decoding, np.zeros(kernels.shape, bool))

    def _prompt_sum(self, table: _Sums, chunk: Array, decoding: Array) -> Array:
        total = np.interp(chunk + decoding, self.rows, table.body)
        total += np.interp(decoding + 1, self.counts, table.head)
        total += np.where(decoding > 0, np.interp(decoding, self.counts, table.attend), 0.0)
        # A chunk is part of a prompt (its mean cost over the prompt) or several whole prompts.
        whole = np.interp(self.prompt, self.pieces, table.prompt)
        return np.asarray(total + whole * chunk / self.prompt)

    def _with_gaps(self, kernels: Array, heat: Array, requests: Array, rows: Array, graph: NDArray[np.bool_]) -> Array:
        nodes, launches = np.full_like(kernels, self.nodes), np.full_like(kernels, self.launches)
        layers = np.full_like(kernels, len(self.runner.deployment.model.layers))
        gaps = self.engine.gaps_us(Load(kernels, heat, nodes, launches, requests, rows, graph, layers))
        return np.asarray(1e-6 * (kernels + sum(gaps.values())))


@dataclass(frozen=True, slots=True)
class _Sums:
    """One quantity of kernels on the grids: dense kernels, head, decode attention, prompt attention."""

    body: Array
    head: Array
    attend: Array
    prompt: Array


def _grid(most: int) -> set[int]:
    """Points up to `most`: dense where tiles and graphs step, then a few an octave."""
    dense = {1, 2, 4, *range(8, min(most, 256) + 1, 16)}
    octaves = {int(2 ** (k / 3)) // 8 * 8 for k in range(24, 3 * max(most, 2).bit_length() + 1)}
    return {n for n in dense | octaves if 1 <= n <= most} | {most}
