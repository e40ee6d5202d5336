"""The steady state of a loaded engine in closed form, for all scheduler settings of a split at once.

With B requests in flight, each living through O steps, B/O prompts come per step, in groups (`arrivals`). A step that
carries prompt tokens takes longer; spread over all steps that is what a later token pays for other people's prompts.
The simulator (`serve`) is the reference; this is its mean, a thousand times faster (`python -m bench.plan_steady`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec
from pipewave.models.kernels import Deployment
from pipewave.physics.demand import Array
from pipewave.planning import platforms
from pipewave.planning.arrivals import Groups
from pipewave.planning.launch import check_blocks
from pipewave.planning.parts import Parts
from pipewave.planning.space import Question, Split
from pipewave.serving.drafting import with_drafter
from pipewave.serving.speculative import of as speculative_of
from pipewave.step import Engine, Runner, find_engine
from pipewave.step.memory import Budget, budget, requests_in

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
    notes: tuple[str, ...] = ()  # what the kernels' times rest on


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
        return Steady(model, split, question, gpu or find_gpu(split.gpu)).all(budgets, batches)
    except PipewaveError as problem:
        return Evaluated(split, np.array([]), np.array([]), {}, refused=problem.message)


class Steady:
    """One split under full load. Raises what a deployment that cannot be raises."""

    def __init__(self, model: ModelSpec, split: Split, question: Question, gpu: GPU) -> None:
        parallel = split.parallel
        parallel.check(model)
        platforms.of(split.gpu, find_engine(split.engine).name)
        check_blocks(model, split)
        self.split, self.question = split, question
        self.runner = Runner.of(Deployment(model, parallel, split.kv_dtype), gpu, find_engine(split.engine))
        self.engine: Engine = self.runner.engine
        self.lanes, self.ranks = parallel.pp, parallel.dp
        self.drafts = speculative_of(split.speculative) if split.speculative else None
        self.notes: tuple[str, ...] = ()

    def all(self, budgets: Sequence[int], batches: Sequence[int]) -> Evaluated:
        """Every setting that fits."""
        tokens, lanes = np.meshgrid(np.array(budgets, float), np.array(batches, float), indexing="ij")
        fits = lanes <= self.capacity(budgets)[:, None]
        fits &= tokens > lanes
        tokens, lanes = tokens[fits], lanes[fits]
        refused = "" if len(tokens) else "the KV cache holds not even one such request with any of the settings"
        columns = self._columns(tokens, lanes) if len(tokens) else {}
        held, crowded_out = lanes * self.lanes * self.ranks, int((~fits).sum())
        return Evaluated(self.split, tokens, held, columns, refused, crowded_out, self.notes)

    def capacity(self, budgets: Sequence[int]) -> Array:
        """Requests of full length the cache of one pipeline lane holds, by token budget."""
        deployment, length = self.runner.deployment, self.question.input_len + self.question.output_len
        memory: list[Budget] = [
            with_drafter(
                budget(deployment, self.runner.gpu, self.engine, max_batched_tokens=tokens), self.runner, self.drafts
            )
            for tokens in budgets
        ]
        fits = [requests_in(deployment, m, length, tokens) for m, tokens in zip(memory, budgets, strict=True)]
        return np.asarray(np.maximum(np.array(fits) // self.lanes, 0.0))

    def _columns(self, tokens: Array, lane: Array) -> dict[str, Array]:
        parts = Parts(self.runner, self.question, tokens, lane, self.drafts)
        self.notes = parts.notes
        pace = self._pace(tokens, lane)
        groups = Groups.at(pace.rate * self.ranks)  # a prompt of any rank holds up all
        fullest = np.maximum(groups.prompts / self.ranks, 1.0)  # prompts of the rank with most
        even = groups.prompts / self.ranks / fullest
        work = fullest * groups.length * self.question.input_len
        steps = np.ceil(work / pace.room)
        if pace.mixes:  # groups that overlap share steps
            steps = steps / np.maximum(groups.share * steps.mean(axis=0), 1.0)
        beside = pace.decoding if pace.mixes else np.zeros_like(lane)
        each = parts.prompt_s(np.minimum(work / steps, pace.room), np.broadcast_to(beside, work.shape), even)
        decode = parts.decode_s(np.maximum(pace.decoding, 1.0)) * (pace.later > 0)
        tpot = decode + groups.share * (steps * (each - decode * pace.mixes)).mean(axis=0)
        # A prompt is one of a group, more likely of a large one, and on average in its middle. It has come while a
        # step was running.
        until = np.maximum(steps * (fullest + 1.0) / (2.0 * fullest), 1.0) * each
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
        per_gpu = lane * self.question.output_len / cycle * self.lanes * self.ranks / self.split.parallel.world
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
