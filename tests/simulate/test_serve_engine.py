"""The lock-step engine against a plain one that walks every request in every step, and its conservation laws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import DoesNotFit
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import VllmPolicy
from pipewave.simulate.replica import Replica
from pipewave.simulate.report import limits_of, summary
from pipewave.simulate.simulation import Pool, Record, Simulation
from pipewave.simulate.step_grids import Reader
from pipewave.simulate.traffic import Traffic
from pipewave.software.front import Front
from tests.sampled import examples


class Single:
    """Step time linear in what a step holds, so that any slip in the sums shows in the clock; steps are run singly."""

    factor = 1.0

    def seconds(self, decoding: int, cached: int, pieces: list[tuple[int, int]]) -> float:
        return 1.0 + 0.01 * decoding + 0.0001 * cached + sum(0.001 * t * (t + 2 * b) for t, b in pieces)


class Toy(Single):
    """The same, by which an engine runs decode steps in stretches."""

    def decoder(self, decoding: int) -> Reader:
        def one(cached: float) -> float:
            return self.seconds(decoding, int(cached), [])

        return Reader(one, lambda held: np.array([one(cached) for cached in held]))


@dataclass
class Request:
    index: int
    prompt: int
    output: int
    cached: int = 0
    made: int = 0
    decodes: bool = False

    @property
    def goal(self) -> int:
        return self.prompt + self.made


def plain_vllm(traffic: Traffic, policy: VllmPolicy, kv: KvBudget) -> tuple[list[float], list[float]]:
    """vLLM's scheduler written per request: running first, newest preempted, then waiting in order."""
    toy, now = Toy(), 0.0
    size = len(traffic)
    first, done = [float("nan")] * size, [float("nan")] * size
    arrivals = [Request(i, int(traffic.input_len[i]), int(traffic.output_len[i])) for i in range(size)]
    waiting: list[Request] = []
    running: list[Request] = []
    pages: dict[int, int] = {}

    def arrive() -> None:
        while arrivals and traffic.arrival_s[arrivals[0].index] <= now:
            waiting.append(arrivals.pop(0))

    while len([d for d in done if d == d]) < size:
        arrive()
        if not running and not waiting:
            now = float(traffic.arrival_s[arrivals[0].index])
            arrive()
        room, preempted = policy.max_batched_tokens, False
        work: dict[int, int] = {}
        decoding = [r for r in running if r.decodes]
        while sum(r.cached % kv.page_size == 0 for r in decoding) > kv.pages - sum(pages.values()):
            victim = running.pop()
            pages.pop(victim.index)
            victim.cached, victim.decodes = 0, False
            decoding = [r for r in decoding if r is not victim]
            waiting.insert(0, victim)
            preempted = True
        for r in decoding:
            pages[r.index] += r.cached % kv.page_size == 0
            work[r.index] = 1
        room -= len(decoding)
        if not preempted:
            for r in running:
                if r not in decoding and room > 0:
                    work[r.index] = min(r.goal - r.cached, room)
                    room -= work[r.index]
            while waiting and room > 0 and len(running) < policy.max_requests:
                r = waiting[0]
                if -(-r.goal // kv.page_size) > kv.pages - sum(pages.values()):  # decodes took theirs before
                    break
                running.append(waiting.pop(0))
                pages[r.index] = -(-r.goal // kv.page_size)
                work[r.index] = min(r.goal, room)
                room -= work[r.index]
        cached = sum(r.cached + 1 for r in decoding)
        pieces = [(work[r.index], r.cached) for r in running if r.index in work and r not in decoding]
        now += toy.seconds(len(decoding), cached, pieces)
        for r in list(running):
            if r.index not in work:
                continue
            r.cached += work[r.index]
            if r.cached == r.goal:
                if r.made == 0:
                    first[r.index] = now
                r.made, r.decodes = r.made + 1, True
                if r.made == r.output:
                    done[r.index] = now
                    running.remove(r)
                    pages.pop(r.index)
    return first, done


def traffic_of(requests: list[tuple[int, int, int]], **more: Any) -> Traffic:
    gaps, prompts, outputs = zip(*requests, strict=True)
    return Traffic(np.cumsum(np.array(gaps, float)), np.array(prompts), np.array(outputs), **more)


requests = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=14)


Limits = tuple[VllmPolicy, KvBudget]


def limits(pages: int = 16, mixed: bool = True, page_size: int = 4, tokens: int = 24, most: int = 6) -> Limits:
    return VllmPolicy(tokens, most, mixes_phases=mixed), KvBudget(pages, page_size)


def simulate(traffic: Traffic, limit: Limits, **more: Any) -> tuple[Simulation, Record]:
    simulation = Simulation(traffic, Pool(Toy(), *limit), **more)  # type: ignore[arg-type]
    return simulation, simulation.run()


@examples(300)
@given(requests, st.integers(16, 60))
def test_same_times_as_the_plain_scheduler(drawn: list[tuple[int, int, int]], pages: int) -> None:
    # Arrivals off the step grid, so that "at the same instant" has one meaning.
    traffic = traffic_of([(gap + 0.123456, prompt, output) for gap, prompt, output in drawn])
    first, done = plain_vllm(traffic, *limits(pages))
    _, record = simulate(traffic, limits(pages))
    assert record.first_s == pytest.approx(first, rel=1e-9)
    assert record.done_s == pytest.approx(done, rel=1e-9)


@examples(300)
@given(requests, st.integers(16, 60), st.booleans(), st.booleans(), st.integers(1, 4), st.integers(0, 3))
def test_stretches_of_steps_are_the_steps_one_by_one(
    drawn: list[tuple[int, int, int]], pages: int, mixed: bool, overlaps: bool, interval: int, flight: int
) -> None:
    traffic = traffic_of(
        [(gap + 0.123456, prompt, output) for gap, prompt, output in drawn], concurrency=flight or None
    )
    policy, kv = limits(pages, mixed)
    policy = replace(policy, overlaps=overlaps, recv_interval=interval)
    front = Front(request_us=0.2e6, stream_us=0.4e6, transit_us=0.3e6, variation=0.5, jitter=0.1)
    one, other = (
        Simulation(traffic, Pool(timer, policy, kv), front=front).run()  # type: ignore[arg-type]
        for timer in (Single(), Toy())
    )
    assert other.first_s == pytest.approx(one.first_s, rel=1e-9)
    assert other.done_s == pytest.approx(one.done_s, rel=1e-9)
    assert len(other.steps) == len(one.steps)
    for (_, single), (_, stretched) in zip(one.steps, other.steps, strict=True):
        assert stretched.start_s == pytest.approx(single.start_s, rel=1e-9)
        assert replace(stretched, start_s=0.0, seconds=0.0) == replace(single, start_s=0.0, seconds=0.0)


@pytest.mark.parametrize("pages", [400, 10_000])
def test_long_stretches_are_the_steps_one_by_one(pages: int) -> None:
    """Hundreds of steps at once, also where the cache fills before anything else happens."""
    traffic = traffic_of([(700.5, 30 + i, 1_100 + 7 * i) for i in range(8)])
    policy, kv = limits(pages)
    front = Front(variation=0.5, jitter=0.1)
    one, other = (
        Simulation(traffic, Pool(timer, policy, kv), front=front).run()  # type: ignore[arg-type]
        for timer in (Single(), Toy())
    )
    assert list(other.done_s) == pytest.approx(list(one.done_s), rel=1e-12)
    assert sum(other.log.preempted) == sum(one.log.preempted) and (pages > 400) != bool(sum(one.log.preempted))
    assert [step.pages for _, step in other.steps] == [step.pages for _, step in one.steps]


@examples(200)
@given(requests, st.integers(16, 60), st.booleans(), st.integers(1, 8))
def test_everything_is_served_and_given_back(
    drawn: list[tuple[int, int, int]], pages: int, mixed: bool, page_size: int
) -> None:
    traffic = traffic_of(drawn)
    limit = limits(pages * 4, mixed, page_size)
    simulation, record = simulate(traffic, limit)
    replica = simulation.front[0]
    assert replica.free == limit[1].pages
    assert (replica.decoding, replica.cached, replica.running) == (0, 0, 0)
    assert not any(replica.opens)
    assert np.all(record.arrival_s <= record.first_s)
    assert np.all(record.first_s <= record.done_s)
    decoded = sum(step.decoding for _, step in record.steps)
    prompts = sum(tokens for _, step in record.steps for _, tokens, _ in step.pieces)
    if not sum(record.log.preempted):
        assert decoded == int((traffic.output_len - 1).sum())
        assert prompts == int(traffic.input_len.sum())
    assert all(
        step.decoding + sum(p[1] for p in step.pieces) <= limit[0].max_batched_tokens for _, step in record.steps
    )


@examples(100)
@given(requests)
def test_disaggregated_engines_serve_everything(drawn: list[tuple[int, int, int]]) -> None:
    traffic = traffic_of(drawn)
    pool = Pool(Toy(), *limits(400))  # type: ignore[arg-type]
    simulation = Simulation(traffic, pool, decode=pool, transfer_s=lambda tokens: 0.5)
    record = simulation.run()
    assert not np.isnan(record.done_s).any()
    assert not any(step.pieces for which, step in record.steps if which == 1)
    assert not any(step.decoding for which, step in record.steps if which == 0)
    assert all(replica.free == 400 for replica in simulation.engines)
    later = traffic.output_len > 1
    assert np.all(record.done_s[later] >= record.first_s[later] + 0.5)


def test_concurrency_keeps_that_many_in_flight() -> None:
    traffic = traffic_of([(0, 8, 5)] * 20, concurrency=3)
    _, record = simulate(traffic, limits(400))
    changes = sorted([(t, 1) for t in record.arrival_s] + [(t, -1) for t in record.done_s])
    flying, peak = 0, 0
    for _, change in changes:
        flying += change
        peak = max(peak, flying)
    assert peak == 3


def test_a_full_cache_preempts_the_newest() -> None:
    traffic = traffic_of([(0, 8, 30), (0, 8, 30), (0, 8, 30)])
    _, record = simulate(traffic, limits(pages=14))
    assert sum(record.log.preempted) > 0
    assert np.argmin(record.done_s) == 0


@pytest.mark.parametrize(("pages", "seats"), [(38, 8), (400, 2)])
@pytest.mark.parametrize("timer", [Single(), Toy()])
def test_what_an_engine_that_schedules_ahead_frees_is_free_a_step_later(timer: Single, pages: int, seats: int) -> None:
    """The third request waits for pages, or for a seat, of the first: vLLM's scheduler fills a step before it has seen
    what ended in the one before."""
    traffic = traffic_of([(0, 10, 5), (0, 10, 20), (0, 20, 2)])
    waited = []
    for overlaps in (False, True):
        policy, kv = VllmPolicy(2048, seats, overlaps=overlaps), KvBudget(pages, 1)
        steps = [step for _, step in Simulation(traffic, Pool(timer, policy, kv)).run().steps]  # type: ignore[arg-type]
        ended = next(number for number, step in enumerate(steps) if 0 in step.done)
        begun = next(number for number, step in enumerate(steps) if 2 in [one for one, _, _ in step.pieces])
        waited.append(begun - ended)
    assert waited == [1, 2]


def test_a_request_larger_than_the_cache_is_an_error() -> None:
    for request in ((0, 400, 2), (0, 4, 400)):
        with pytest.raises(DoesNotFit, match="does not fit the KV cache"):
            simulate(traffic_of([request]), limits(pages=16))


def test_more_engines_finish_sooner() -> None:
    traffic = traffic_of([(0, 20, 10)] * 40)
    times = [Simulation(traffic, Pool(Toy(), *limits(400), n)).run().done_s.max() for n in (1, 2, 4)]  # type: ignore[arg-type]
    assert times[0] > times[1] > times[2]


def test_summary_counts_what_meets_the_limits() -> None:
    traffic = traffic_of([(0, 1, 3)] * 4)
    record = Record(np.array([1.0, 1, 1, 3]), np.array([2.0, 2, 4, 5]), np.zeros(4))
    answer = summary(record, traffic, 2, limits_of(ttft_ms=2000, tpot_ms=600))
    assert answer["good_share"] == 0.5
    assert answer["ttft_p50_ms"] == 1000
    assert answer["tpot_mean_ms"] == pytest.approx(1e3 * (0.5 + 0.5 + 1.5 + 1.0) / 4)
    assert answer["output_tokens_per_s_per_gpu"] == pytest.approx(12 / 5 / 2)


def test_an_idle_engine_says_so() -> None:
    assert Replica(Toy(), *limits(), traffic_of([(0, 1, 1)])).idle  # type: ignore[arg-type]
