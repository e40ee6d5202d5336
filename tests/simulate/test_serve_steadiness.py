"""A run's record says whether the deployment kept up with its requests."""

from __future__ import annotations

import numpy as np
import pytest

from pipewave.simulate.report import Limit, Steadiness, grown, middle, over, steadiness, summary
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import Record
from pipewave.simulate.traffic import Traffic, synthetic
from tests.simulate.serving import serve


def kept_up(server: Server, traffic: Traffic) -> Steadiness:
    found = serve(server, traffic)
    return steadiness(found.record, found.traffic)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server.of("Llama-3.1-8B", "H200", Setup(engine="vllm:0.19.0", max_num_seqs=8), 2048)


def test_requests_that_come_faster_than_they_are_done_overload_it(server: Server) -> None:
    capacity = serve(server, synthetic(200, input_len=256, output_len=32, concurrency=8)).answer["requests_per_s"]
    found = {
        share: kept_up(server, synthetic(600, input_len=256, output_len=32, rate=share * capacity))
        for share in (0.3, 0.7, 1.3, 3.0)
    }
    assert [one.overloaded for one in found.values()] == [False, False, True, True]
    assert found[0.3].steady and found[0.7].steady and not found[3.0].steady
    assert 0.9 * capacity < found[3.0].served_per_s < 1.3 * capacity  # all seats are taken all the time
    assert found[3.0].arrivals_per_s == pytest.approx(3.0 * capacity, rel=0.1)


def test_a_closed_loop_is_never_overloaded_and_steady_after_two_rounds(server: Server) -> None:
    short, long = (kept_up(server, synthetic(n, input_len=256, output_len=32, concurrency=8)) for n in (12, 80))
    assert (short.overloaded, short.steady) == (False, False)
    assert (long.overloaded, long.steady) == (False, True)


def test_the_middle_of_a_short_run_is_as_fast_as_a_long_one(server: Server) -> None:
    """Whatever the lengths: of unequal requests the last to be done are the longest of those that came last."""
    short, long = (
        serve(server, synthetic(n, input_len=256, output_len=64, spread=0.9, concurrency=8)) for n in (80, 2400)
    )
    seen = summary(short.record, short.traffic, 1, (), middle(short.record, short.traffic))
    assert seen["output_tokens_per_s"] == pytest.approx(long.answer["output_tokens_per_s"], rel=0.05)


def test_times_of_a_run_that_ends_while_it_fills_grow_towards_those_of_a_long_one() -> None:
    """Two hundred requests of which sixty are in flight: what the last quarter takes is near what all of 4,000 do."""
    large = Server.of("Llama-3.1-8B", "H200", Setup(engine="vllm:0.19.0"), 4096)
    seen = []
    for count in (200, 4000):
        found = serve(large, synthetic(count, input_len=512, output_len=2048, rate=3.5))
        figures = summary(found.record, found.traffic, 1, (), middle(found.record, found.traffic))
        seen.append((figures, grown(found.record, figures)))
    (short, more), (long, little) = seen
    assert (
        more["tpot_ms_grown"] > 1.03 > little["tpot_ms_grown"] >= 1.0 and more["tpot_ms_grown"] == more["e2e_ms_grown"]
    )
    assert short["tpot_mean_ms"] < 0.95 * long["tpot_mean_ms"]
    assert short["tpot_mean_ms"] * more["tpot_ms_grown"] == pytest.approx(long["tpot_mean_ms"], rel=0.02)
    limit = Limit("tpot_ms", short["tpot_mean_ms"])
    assert over(short, [limit]) == 0.0
    assert over(short | more, [limit]) == pytest.approx(np.log(more["tpot_ms_grown"]))


def test_requests_all_at_once_are_no_steady_state() -> None:
    record = Record(np.arange(1.0, 5.0), np.arange(2.0, 6.0), np.zeros(4))
    found = steadiness(record, Traffic(np.zeros(4), np.full(4, 8), np.full(4, 2)))
    assert (found.steady, found.overloaded) == (False, False)
    assert found.verdict.endswith("all come at once")


def queued(seed: int, load: float, *, seats: int = 40, count: int = 1000) -> Steadiness:
    """Poisson arrivals at a server whose step of n requests takes 1 + n / 20, and makes a token of each of `seats`."""
    rng, tokens = np.random.default_rng(seed), 10
    come = np.cumsum(rng.exponential(tokens * (1 + seats / 20) / seats / load, count))
    first, done, running, now, sent = np.zeros(count), np.zeros(count), list[list[int]](), 0.0, 0
    while sent < count or running:
        while sent < count and come[sent] <= now and len(running) < seats:
            running.append([sent, tokens])
            sent += 1
        now = now + 1 + len(running) / 20 if running else come[sent]
        for one in running:
            first[one[0]] = first[one[0]] or now
            done[one[0]], one[1] = now, one[1] - 1
        running = [one for one in running if one[1]]
    return steadiness(Record(first, done, come), Traffic(come, np.full(count, 8), np.full(count, tokens)))


@pytest.mark.parametrize(("load", "overloaded", "wrong"), [(0.6, False, 0), (0.85, False, 0), (1.15, True, 1)])
def test_chance_overloads_no_server_and_saves_none(load: float, overloaded: bool, wrong: int) -> None:
    found = [queued(seed, load).overloaded for seed in range(20)]
    assert sum(one is not overloaded for one in found) <= wrong


def test_batch_that_still_fills_is_too_short_to_tell_and_no_overload() -> None:
    found = [queued(seed, 0.8, seats=400, count=400) for seed in range(20)]
    assert not any(one.overloaded for one in found)
