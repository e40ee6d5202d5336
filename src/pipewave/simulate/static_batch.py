"""A static batch: B equal requests that arrive at one instant, scheduled as `serve` schedules requests.

Which step does what does not depend on how long steps take, so the scheduler runs without a clock (`Schedule`), decode
steps in one stretch, and the steps that stand for all are predicted together. Where not all requests run at once,
waiting and preemption are simulated with the step table (`queued_times`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipewave.models.kernels import Batch
from pipewave.physics.demand import Array
from pipewave.simulate.drafting import Drafter
from pipewave.simulate.engine_step import Untimed
from pipewave.simulate.kv_budget import UNLIMITED, KvBudget
from pipewave.simulate.policies import SchedulingPolicy, policy_of
from pipewave.simulate.replica import Replica
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.step_grids import Sizes
from pipewave.simulate.traffic import Traffic
from pipewave.step import Runner
from pipewave.step.memory import GIB, Budget, held_bytes

Ints = NDArray[np.int64]
TIMES = ("prefill_ms", "tpot_ms", "e2e_ms")
NEVER = 1 << 62
PROMPT_SAMPLES, DECODE_SAMPLES, DRAFT_SAMPLES = 16, 6, 6


@dataclass(frozen=True, slots=True)
class StaticBatch:
    """Equal requests of one data-parallel rank that arrive together."""

    requests: int
    input_len: int
    output_len: int
    budget: int  # tokens of a step

    def traffic(self) -> Traffic:
        """The requests."""
        ones = np.ones(self.requests, np.int64)
        return Traffic(np.zeros(self.requests), self.input_len * ones, self.output_len * ones)


@dataclass(frozen=True, slots=True)
class PromptStep:
    """A step of the prompt phase."""

    tick: int  # decode steps before it
    decodes: bool  # whether requests that have their first token decode in it
    pieces: tuple[tuple[int, int], ...]  # (tokens, tokens before them) of each prompt


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a batch that runs at once: prompt steps, then decode steps until the last request is done."""

    batch: StaticBatch
    prompts: tuple[PromptStep, ...]
    began: tuple[int, ...]  # [request] decode steps before each one's first
    tick: int  # decode steps before the first step without prompts

    @classmethod
    def of(cls, policy: SchedulingPolicy, kv: KvBudget, batch: StaticBatch) -> Schedule:
        """Run the scheduler until every prompt is computed; the cache holds all requests."""
        engine = Replica(Untimed(), policy, replace(kv, pages=UNLIMITED), batch.traffic())
        engine.waiting.extend(range(batch.requests))
        began, steps = [NEVER] * batch.requests, []
        while engine.waiting or engine.partial:
            tick, step = engine.tick, engine.step(0.0)
            steps.append(PromptStep(tick, step.decoding > 0, tuple((t, b) for _, t, b in step.pieces)))
            for request in step.first:
                began[request] = engine.tick
        return cls(batch, tuple(steps), tuple(began), engine.tick)

    @property
    def prompt_steps(self) -> int:
        """Steps until every request has its first token."""
        return len(self.prompts)

    @property
    def total_steps(self) -> int:
        """Steps until the last request is done."""
        return self.prompt_steps + max(max(self.began) + self.batch.output_len - 1 - self.tick, 0)

    def full_range(self) -> tuple[int, int]:
        """[first, last) of the steps in which all requests decode; may be empty."""
        return self.prompt_steps, self.prompt_steps + min(self.began) + self.batch.output_len - 1 - self.tick

    def lengths(self, step: int) -> tuple[list[int], list[int]]:
        """(q_lens, kv_lens) of a step, decoding requests first."""
        decodes = PromptStep(self.tick + step - self.prompt_steps, decodes=True, pieces=())
        at = self.prompts[step] if step < self.prompt_steps else decodes
        cached, ended = self.batch.input_len + at.tick + 1, at.tick - self.batch.output_len + 1
        decoding = [cached - began for began in self.began if ended < began <= at.tick] if at.decodes else []
        return [1] * len(decoding) + [t for t, _ in at.pieces], decoding + [t + before for t, before in at.pieces]


def first_steps(runner: Runner, setup: Setup, batch: StaticBatch) -> dict[str, Batch]:
    """The first step of a batch, and a decode step of all that run at once, half way through the output."""
    kv = KvBudget(UNLIMITED, runner.engine.memory.page_size)
    policy = policy_of(runner.engine, setup, kv, max_batched_tokens=batch.budget)
    batch = replace(batch, requests=min(batch.requests, policy.max_requests))
    half = batch.input_len + (batch.output_len + 1) // 2
    decode = runner.batch([1] * batch.requests, [half] * batch.requests)
    return {"prefill": runner.batch(*Schedule.of(policy, kv, batch).lengths(0)), "decode": decode}


def sample(first: int, last: int, most: int) -> Ints:
    """At most `most` steps of [first, last) in order, with its ends, without a period that chunks could share."""
    size = last - first
    if size <= most:
        return np.arange(first, last)
    golden = (np.arange(most - 2) * 0.6180339887498949) % 1.0
    inner = first + 1 + (np.sort(golden) * (size - 2)).astype(np.int64)
    return np.array(sorted({first, *inner.tolist(), last - 1}))


class Timeline:
    """Sampled steps of a plan, predicted at once, and every other step read between them."""

    def __init__(self, runner: Runner, plan: Schedule) -> None:
        self.runner, self.plan, self.total = runner, plan, plan.total_steps
        first, last = plan.full_range()
        spans = ((first, max(last, first)), (max(last, first), self.total))
        parts = [sample(0, plan.prompt_steps, PROMPT_SAMPLES), *(sample(*span, DECODE_SAMPLES) for span in spans)]
        self.points = np.concatenate(parts)
        batches = [runner.batch(*plan.lengths(int(step))) for step in self.points]
        # One more step: everybody decoding together, for the rate at full batch when the run never gets there.
        run = plan.batch
        batches.append(runner.batch([1] * run.requests, [run.input_len + (run.output_len + 1) // 2] * run.requests))
        self.steps, self.full = runner.steps(batches), len(self.points)
        # Sampled steps before and after each step of the run, and how far it is on the way from one to the other.
        every = np.arange(self.total)
        self.after = np.searchsorted(self.points, every)
        self.before = np.maximum(self.after - 1, 0)
        gap = np.maximum(self.points[self.after] - self.points[self.before], 1)
        self.beyond = np.clip((every - self.points[self.before]) / gap, 0.0, 1.0)

    def between(self, values: Array) -> Array:
        """Values [..., step] of every step of the run, linear between the sampled ones."""
        at, then = values[..., self.before], values[..., self.after]
        return np.asarray(at + (then - at) * self.beyond)

    def times(self) -> dict[str, float]:
        """Times in ms by name."""
        step_us = self.steps.total_us
        done = np.cumsum(self.between(step_us)) * 1e-3
        first, last = self.plan.full_range()
        tpot = (done[last - 1] - done[first - 1]) / (last - first) if last > first + 1 else step_us[self.full] * 1e-3
        tpot = 0.0 if self.runner.deployment.model.pooled else float(tpot)
        return dict(zip(TIMES, (float(done[self.plan.prompt_steps - 1]), tpot, float(done[-1])), strict=True))

    def watts(self) -> tuple[float, float]:
        """Mean watts of one GPU until all requests have their first token, and from then on."""
        seconds, prompts = self.between(self.steps.total_us), self.plan.prompt_steps
        joules = self.between(self.steps.total_us * self.steps.power_w)
        prefill = float(joules[:prompts].sum() / seconds[:prompts].sum())
        later = seconds[prompts:].sum()
        return prefill, float(joules[prompts:].sum() / later) if later else prefill

    def memory_gib(self, memory: Budget) -> dict[str, float]:
        """Of a GPU, with what the batch holds of the cache at its end."""
        run, deployment = self.plan.batch, self.runner.deployment
        length = run.input_len + run.output_len
        used = held_bytes(deployment, memory, run.requests, length, run.budget) / GIB
        return memory.to_dict() | {"kv_used": round(used, 3)}

    def breakdown(self) -> dict[str, dict[str, float]]:
        """Times in ms by family and gap: of the whole prefill, and of one decode step at full batch."""
        parts = self.steps.families | self.steps.gaps
        rows, prompts = np.array(list(parts.values())), self.plan.prompt_steps
        prefill = 1e-3 * self.between(rows)[:, :prompts].sum(axis=1)
        first, last = self.plan.full_range()
        middle = int(np.searchsorted(self.points, (first + last) // 2).clip(0, len(self.points) - 1))
        middle = self.full if last <= prompts else middle
        return {
            "prefill_ms": dict(zip(parts, prefill.tolist(), strict=True)),
            "decode_step_ms": dict(zip(parts, (1e-3 * rows[:, middle]).tolist(), strict=True)),
        }

    def basis(self) -> dict[str, float]:
        """Share of the run's time that rests on each kind of evidence."""
        weight = self.between(self.steps.total_us)
        return {n: float(self.between(share) @ weight / weight.sum()) for n, share in self.steps.basis.items()}


def drafted_tpot_ms(runner: Runner, how: Speculative, batch: StaticBatch) -> float:
    """Mean ms between tokens when every step verifies drafts and makes new ones, sampled over the growing caches."""
    verified, count = how.verified, batch.requests
    padded = runner.engine.graphs.padded(count) * verified
    caches = [batch.input_len + 1 + int(at) for at in sample(0, batch.output_len - 1, DRAFT_SAMPLES)]
    batches = [Batch((verified,) * count, (cache + how.tokens,) * count, padded, verified) for cache in caches]
    drafter = Drafter(runner, how, Sizes(1, count, batch.input_len + batch.output_len + how.tokens))
    drafts = np.array([1e6 * drafter.seconds(count, count * cache) for cache in caches])
    return 1e-3 * float(np.mean(runner.steps(batches).total_us + drafts)) / how.mean


def queued_times(
    runner: Runner, policy: SchedulingPolicy, kv: KvBudget, batch: StaticBatch, how: Speculative | None = None
) -> Mapping[str, float]:
    """`prefill_ms`, `tpot_ms` and `e2e_ms` of a batch of which a part waits, for requests to end or for the cache.

    `prefill_ms`: until the last request has its first token; `tpot_ms`: mean over requests, waits after preemption
    included; `how`: what drafts. Raises DoesNotFit when not even one request fits.
    """
    from pipewave.simulate.server import timer_of  # only where a part waits
    from pipewave.simulate.simulation import Pool, Simulation

    traffic, most = batch.traffic(), min(batch.requests, runner.engine.scheduler.max_requests)
    timer = timer_of(runner, batch.budget, most, traffic.longest, how)
    pool = Pool(timer, policy, kv, runner.deployment.parallel.pp)
    record = Simulation(traffic, pool, keep_steps=False).run()
    later = max(batch.output_len - 1, 1)
    return {
        "prefill_ms": 1e3 * float(record.first_s.max()),
        "tpot_ms": 1e3 * float(np.mean(record.done_s - record.first_s)) / later if batch.output_len > 1 else 0.0,
        "e2e_ms": 1e3 * float(record.done_s.max()),
    }
