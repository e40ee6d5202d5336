"""The steady state of a loaded engine in closed form, for all scheduler settings of a split at once.

With B requests in flight, each living through O steps, B/O prompts come per step, in groups (`arrivals`). A step that
carries prompt tokens takes longer; spread over all steps that is what a later token pays for other people's prompts.
Requests that are with the front end are not with the engine (`entrance`).
The simulator (`serve`) is the reference; this is its mean, a thousand times faster (`python -m studies.plan_steady`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipewave.errors import BadInput, PipewaveError
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec
from pipewave.models.kernels import Deployment
from pipewave.physics.demand import Array
from pipewave.planning import platforms
from pipewave.planning.arrivals import Entrance, Groups, come, rest_s, share_met
from pipewave.planning.launch import check_blocks
from pipewave.planning.parts import Parts
from pipewave.planning.served import load, longest_prompt, stated
from pipewave.planning.space import BUDGETS, Question, Split
from pipewave.published.unstated import fill
from pipewave.simulate.drafting import with_drafter
from pipewave.step import Engine, Runner, find_engine
from pipewave.step.memory import Budget, budget, requests_in

USUAL_FLIGHT = 64  # requests for which unsaid settings are filled
PASSES = 3  # until the share of requests that the front end holds stands still
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
        filled = fill(stated(model, split, USUAL_FLIGHT, None), load(question, USUAL_FLIGHT)).setup
        setup = replace(filled, max_num_seqs=None, max_num_batched_tokens=None)
        runner = Runner.of(Deployment(model, parallel, setup.kv_dtype), gpu, setup.program())
        sent = 0.5 * (question.output_len - 1)
        self.engine: Engine = setup.hosted(runner.engine)
        self.runner = replace(runner, engine=self.engine)
        self.entrance = Entrance(setup.streaming(sent), question.input_len)
        self.lanes, self.ranks, self.streamed = parallel.pp, parallel.dp, setup.stream_interval
        self.drafts = setup.speculative.by(model) if setup.speculative else None
        self.notes: tuple[str, ...] = ()

    def all(self, budgets: Sequence[int], batches: Sequence[int]) -> Evaluated:
        """Every setting that fits. Raises BadInput where the engine cuts no prompts and all are longer than a step."""
        budgets = self._budgets(budgets)
        tokens, lanes = np.meshgrid(np.array(budgets, float), np.array(batches, float), indexing="ij")
        fits = lanes <= self.capacity(budgets)[:, None]
        fits &= tokens > lanes
        tokens, lanes = tokens[fits], lanes[fits]
        refused = "" if len(tokens) else "the KV cache holds not even one such request with any of the settings"
        columns = self._columns(tokens, lanes) if len(tokens) else {}
        held, crowded_out = lanes * self.lanes * self.ranks, int((~fits).sum())
        return Evaluated(self.split, tokens, held, columns, refused, crowded_out, self.notes)

    def _budgets(self, budgets: Sequence[int]) -> Sequence[int]:
        """Token budgets that hold the longest prompt, where the engine does not cut them; of the usual budgets none
        may, then the next power of two does.
        """
        longest = longest_prompt(self.question)
        able = [tokens for tokens in budgets if self.engine.scheduler.chunks or tokens >= longest]
        if able:
            return able
        if tuple(budgets) == BUDGETS:
            return [1 << (longest - 1).bit_length()]
        raise BadInput(
            f"max_num_batched_tokens = {max(budgets)}: {self.engine.name} does not cut prompts, and those of this "
            f"load have up to {longest} tokens",
            field="max_num_batched_tokens",
        )

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
        slowest = max(self.runner.stage_shares()) * self.lanes  # a full pipeline runs at its slowest stage
        held = lane * self.ranks * self.lanes
        share, inside = np.ones_like(lane), None  # of a request's time that it is in the batch
        for _ in range(PASSES):
            inside = self._inside(parts, tokens, lane * share, inside)
            first, tpot, before = (slowest * one for one in (inside.first, inside.tpot, inside.before))
            cycle = first + (self.question.output_len - 1) * tpot
            outside = self.entrance.seconds(cycle, held)
            share = (cycle - before) / (cycle + outside)
        tpot = np.maximum(tpot, self.entrance.stream_s(held))
        return self._named(lane, outside + first, tpot, parts.spread)

    def _inside(self, parts: Parts, tokens: Array, lane: Array, known: _Inside | None) -> _Inside:
        """Times with `lane` requests in the batch; known: of the pass before."""
        pace = self._pace(tokens, lane)
        rate = pace.rate * self.ranks * (known.tokens if known else 1.0)  # a prompt of any rank holds up all
        groups = Groups.at(rate, known.met if known else None)
        fullest = np.maximum(groups.prompts / self.ranks, 1.0)  # prompts of the rank with most
        steps, each = self._prompts(parts, pace, groups, fullest)
        decode = parts.decode_s(np.maximum(pace.decoding, 1.0)) * (pace.later > 0)
        # Ranks without a prompt decode beside those that have one.
        without = steps * (1.0 - 1.0 / self.ranks) ** groups.prompts * (not pace.mixes)
        tokens_made = 1.0 + groups.share * without.mean(axis=0)
        tpot = (decode + groups.share * (steps * (each - decode * pace.mixes)).mean(axis=0)) / tokens_made
        # A prompt is one of a group, more likely of a large one, and on average in its middle.
        until = np.maximum(steps * (fullest + 1.0) / (2.0 * fullest), 1.0) * each
        own = (groups.prompts * until).mean(axis=0) / groups.prompts.mean(axis=0)
        seen = self._seen(groups.share, decode, steps, each, mixes=pace.mixes)
        met = share_met(rate, decode, (steps * each).mean(axis=0), self.entrance.late_s, mixes=pace.mixes)
        before = seen if pace.mixes or not pace.later else seen + own
        return _Inside(seen + own + pace.queued * tpot, tpot, before, met, tokens_made)

    def _prompts(self, parts: Parts, pace: _Pace, groups: Groups, fullest: Array) -> tuple[Array, Array]:
        """Steps that groups of prompts take, and seconds of each, [cases, settings]."""
        even = groups.prompts / self.ranks / fullest
        work = fullest * groups.length * self.question.input_len
        steps = np.ceil(work / pace.room)
        if pace.mixes:  # groups that overlap share steps
            steps = steps / np.maximum(groups.share * steps.mean(axis=0), 1.0)
        beside = pace.decoding * pace.mixes
        return steps, parts.prompt_s(np.minimum(work / steps, pace.room), np.broadcast_to(beside, work.shape), even)

    def _seen(self, share: Array, decode: Array, steps: Array, each: Array, *, mixes: bool) -> Array:
        """Seconds until a step begins that knows of a request: the rest of the step that runs when it comes, and where
        steps are scheduled ahead the whole next one.
        """
        meeting, late_s = share * steps.mean(axis=0), self.entrance.late_s
        alone = np.maximum(1.0 - meeting, 0.0) if mixes else np.ones_like(meeting)

        def over_steps(what: Callable[[Array], Array]) -> Array:
            return np.asarray(alone * what(decode) + share * (steps * what(each)).mean(axis=0))

        rest = over_steps(lambda s: rest_s(s, late_s)) / over_steps(lambda s: come(s, late_s))
        return np.asarray(rest + over_steps(np.asarray) / (alone + meeting) * self.engine.scheduler.overlaps)

    def _pace(self, tokens: Array, lane: Array) -> _Pace:
        """How requests move through settings of `tokens` a step and `lane` requests."""
        prompt, later = self.question.input_len, self.question.output_len - 1
        if not self.engine.scheduler.mixes_phases and later:
            return _Pace(lane / later, lane, tokens, np.zeros_like(lane), later, mixes=False)
        mixes = self.engine.scheduler.mixes_phases
        own = np.maximum(prompt / (tokens - lane), 1.0) if mixes else 1.0  # steps a prompt takes
        # Prompts cannot come faster than the budget lets them in; the rest of the batch waits in the queue.
        rate = np.minimum(lane / (later + own), tokens / (prompt + later))
        queued = np.maximum(lane / rate - later - own, 0.0)
        return _Pace(rate, rate * later, tokens - rate * later, queued, later, mixes=mixes)

    def _named(self, lane: Array, first: Array, tpot: Array, spread: float) -> dict[str, Array]:
        later = self.question.output_len - 1
        cycle = first + later * tpot
        first = first + min(self.streamed - 1, later) * tpot  # clients see the first tokens with the last of them
        tpot = (cycle - first) / later if later > self.streamed else tpot
        per_gpu = lane * self.question.output_len / cycle * self.lanes * self.ranks / self.split.parallel.world
        values = (1e3 * first, 1e3 * tpot, 1e3 * cycle, per_gpu, 1 / tpot, np.full_like(tpot, spread))
        return dict(zip(COLUMNS, values, strict=True))


@dataclass(frozen=True, slots=True)
class _Inside:
    """Seconds from the engine's door to a first token and between later ones, and those before a request counts among
    the batch; the share of steps that meet prompts, and tokens that a request makes a decode step.
    """

    first: Array
    tpot: Array
    before: Array
    met: Array
    tokens: Array


@dataclass(frozen=True, slots=True)
class _Pace:
    """Requests in a full engine, by setting: prompts that come and requests that end per step, requests that decode,
    prompt tokens a step takes at most, steps a request waits in the queue, tokens after the first, and whether prompts
    ride along with decoding (else the rate is per decode step).
    """

    rate: Array
    decoding: Array
    room: Array
    queued: Array
    later: int
    mixes: bool
