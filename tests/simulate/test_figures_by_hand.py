"""Figures of a simulated run, what it rests on and tables of its steps, worked out with a pencil."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadInput, DoesNotFit
from pipewave.simulate.arrival_files import _in_order, _rescaled, _turns
from pipewave.simulate.engine_step import Step
from pipewave.simulate.interval import Uncertainty
from pipewave.simulate.kv_budget import KvBudget, beside
from pipewave.simulate.power import Boards, StretchLog, energy_figures, watts_over_time
from pipewave.simulate.prefix_cache import StateCheckpoint
from pipewave.simulate.report import (
    Limit,
    _itl,
    as_seen,
    limits_of,
    middle,
    over,
    over_time,
    spread,
    steadiness,
    summary,
)
from pipewave.simulate.server import _shared
from pipewave.simulate.setup import Pace, Setup
from pipewave.simulate.simulation import Record, StepLog
from pipewave.simulate.static_batch import sample
from pipewave.simulate.step_grids import (
    CACHE_GRID,
    Axes,
    GridSums,
    Sizes,
    _prompt_shares,
    at_every_count,
    fresh,
    reader,
    shares,
    spaced,
    upto,
)
from pipewave.simulate.step_table import _half
from pipewave.simulate.traffic import Traffic, lengths, synthetic, usual_count
from pipewave.software.engine_parts import EVERY_BLOCK
from pipewave.software.front import Front
from pipewave.step.memory import Budget


@pytest.mark.parametrize(
    ("given", "limit", "said"),
    [
        (2000, ("ttft_ms", 2000.0, "mean"), "mean TTFT ≤ 2000 ms"),
        ("p99=50", ("ttft_ms", 50.0, "p99"), "p99 TTFT ≤ 50 ms"),
    ],
)
def test_limits_as_words(given: Any, limit: Any, said: str) -> None:
    found = Limit.of("ttft_ms", given)
    assert found == Limit(*limit) and str(found) == said and found.figure == f"ttft_{limit[2]}_ms"
    assert limits_of(ttft_ms=given, tpot_ms=None) == (found,)


def test_limits_that_are_none_and_how_far_a_figure_is_over() -> None:
    for wrong in (0, -1, "p98=3", True, "p99=", 1e12, "fast"):
        with pytest.raises(BadInput, match="tpot_ms"):
            Limit.of("tpot_ms", wrong)
    two = limits_of(ttft_ms=100, tpot_ms="p99=10")
    assert over({"ttft_mean_ms": 50.0, "tpot_p99_ms": 20.0}, two) == pytest.approx(math.log(2))
    assert over({"ttft_mean_ms_low": 50.0}, two, "_low") == pytest.approx(math.log(0.5))
    assert over({}, two) == pytest.approx(math.log(1e-6)) and str(two[1]) == "p99 TPOT ≤ 10 ms"
    assert str(Limit("e2e_ms", 5)) == "mean E2E ≤ 5 ms"


def log_of(*steps: tuple[int, float, float, int, int]) -> StepLog:
    log = StepLog()
    for which, start, seconds, decoding, preempted in steps:
        log.add(which, [start], [seconds], decoding, preempted)
    return log


def test_figures_of_four_requests() -> None:
    """Of 100 + 11, 200 + 1, 300 + 21 and 400 + 11 tokens that come a second apart and take 1, 0, 2 and 2 s after theirs."""
    traffic = Traffic(np.arange(4.0), np.array([100, 200, 300, 400]), np.array([11, 1, 21, 11]))
    first = np.array([0.5, 1.25, 3.0, 3.5])
    record = Record(first, first + np.array([1.0, 0.0, 2.0, 2.0]), np.arange(4.0),
                    log=log_of((0, 0.0, 0.5, 2, 0), (1, 1.0, 1.0, 6, 3), (0, 4.0, 0.25, 0, 1)))  # fmt: skip
    found = summary(record, traffic, 2, limits_of(ttft_ms=600, tpot_ms=150))
    wanted = {"requests": 4, "duration_s": 5.5, "ttft_mean_ms": (500 + 250 + 1000 + 500) / 4, "ttft_p50_ms": 500,
              "tpot_mean_ms": (100 + 100 + 200) / 3, "tpot_p50_ms": 100, "e2e_mean_ms": (1500 + 250 + 3000 + 2500) / 4,
              "requests_per_s": 4 / 5.5, "output_tokens_per_s": 44 / 5.5, "total_tokens_per_s": 1044 / 5.5,
              "output_tokens_per_s_per_gpu": 22 / 5.5, "goodput_per_s": 2 / 5.5, "good_share": 0.5, "preemptions": 4,
              "steps": 3, "busy_share": 1.75 / 11, "itl_mean_ms": 1000 * 7 / 8, "itl_p50_ms": 1000}  # fmt: skip
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert "prefix_found_share" not in found
    kept = np.array([False, True, True, False])
    some = summary(record, traffic, 1, (), kept)
    assert some["requests_per_s"] == pytest.approx(1 / 3.5) and some["steps"] == 2 and some["busy_share"] == 1.25 / 8
    assert spread("x_ms", np.array([])) == {} and _itl(np.ones(2), np.zeros(2)) == {}
    late = as_seen(record, traffic, 3)
    assert late.first_s.tolist() == pytest.approx([0.7, 1.25, 3.2, 3.9]) and as_seen(record, traffic, 1) is record


def test_the_middle_of_a_run() -> None:
    def run(count: int, held: int | None) -> list[int]:
        traffic = Traffic(np.arange(float(count)) * (held is None), np.ones(count, int), np.ones(count, int), held)
        record = Record(np.zeros(count), np.zeros(count), np.arange(float(count))[::-1])
        return np.flatnonzero(middle(record, traffic)).tolist()

    assert run(20, None) == list(range(2, 18)) and run(9, None) == list(range(9))
    assert run(10, 2) == [2, 3, 4, 5] and run(7, 2) == [2]  # arrivals run backwards: two rounds at the end go
    with pytest.raises(BadInput, match="at least 7"):
        run(6, 2)


def test_what_ran_over_time() -> None:
    """One engine: a prompt of request 0 for a second, a second of nothing, then both decode for two."""
    steps = [(0, Step(10.0, 1.0, 0, [(0, 8, 0), (0, 8, 8)], first=[0], waiting=3, pages=2)),
             (0, Step(12.0, 2.0, 2, [], cached=9, waiting=1, pages=4))]  # fmt: skip
    record = Record(np.array([11.0]), np.array([14.0]), np.array([10.0]), steps)
    record.stretches.add(0, 10.0, 1.0, 1, 0, 0, [(0, 8, 0)])
    record.stretches.add(0, 12.0, 2.0, 1, 2, 9, ())
    board = SimpleNamespace(idle_w=100.0)
    table = SimpleNamespace(watts=lambda seconds, decoding, *_: 400.0 if decoding else 700.0)
    powered = (Boards(table, board, 1, 1, 2),)  # type: ignore[arg-type]
    found = over_time(record, 8, powered, 2)
    assert found["time_s"] == [2, 4] and found["running"] == [0.5, 2] and found["waiting"] == [1.5, 1]
    assert found["kv_share"] == [0.125, 0.5] and found["output_tokens_per_s"] == [0.5, 1]
    assert found["power_w"] == pytest.approx([400, 400], rel=0.01)
    third = over_time(record, 3, powered, 1)
    assert third["kv_share"] == [round(10 / 12, 4)] and third["time_s"] == [4]


def test_watts_are_told_of_a_sample() -> None:
    log = StretchLog()
    for at in range(4000):
        log.add(0, 0.01 * at, 0.005, 1, 1 + at % 2, 5.0, ())
    (sample_of,) = log.samples.values()
    assert 512 <= len(sample_of.kept) <= 1024 and sample_of.busy_s == pytest.approx(20)
    table = SimpleNamespace(watts=lambda seconds, decoding, *_: 300.0 + 100 * decoding)
    boards = Boards(table, SimpleNamespace(idle_w=50.0), 1, 1, 4)  # type: ignore[arg-type]
    watts = watts_over_time([boards], log, np.array([0.0, 20.0, 40.0]))
    assert watts == pytest.approx([0.5 * 450 + 25] * 2, rel=0.15)


def test_a_run_that_falls_behind_is_overloaded() -> None:
    def told(arrived: Any, took: float, held: int | None = None) -> Any:
        come = np.asarray(arrived, float)
        traffic = Traffic(come, np.ones(len(come), int), np.ones(len(come), int), held)
        return steadiness(Record(come + took, come + took, come), traffic)

    calm = told(np.linspace(0, 100, 201), 2.0)
    assert calm.steady and not calm.overloaded and calm.verdict == "steady"
    assert calm.arrivals_per_s == pytest.approx(2.0) and calm.served_per_s == pytest.approx(201 / 102)
    short = told(np.linspace(0, 100, 201), 26.0)
    assert not short.steady and short.requests == 210 and "210 requests" in short.verdict
    assert told([3, 3, 3], 1.0).verdict.endswith("all come at once")
    closed = told(range(5), 1.0, held=2)
    assert closed.steady and closed.requests == 5 and not told(range(4), 1.0, held=2).steady


def test_energy_and_its_interval() -> None:
    board = SimpleNamespace(ends=lambda watts: (0.9 * watts, 1.1 * watts), spread=0.3)
    found = energy_figures(500.0, 4, 1000.0, board, 0.8)  # type: ignore[arg-type]
    assert (found["power_w"], found["power_w_low"], found["power_w_high"]) == (500, 450, 550)
    assert found["energy_j_per_output_token"] == 2 and found["energy_j_per_output_token_high"] == pytest.approx(
        2 * math.exp(0.5), rel=1e-5
    )
    assert found["energy_j_per_output_token_low"] == pytest.approx(2 * math.exp(-0.5), rel=1e-5)
    assert "energy_j_per_output_token" not in energy_figures(500.0, 4, 0.0, board, 0.8)  # type: ignore[arg-type]


def test_pages_and_what_stands_beside_the_cache() -> None:
    kv = KvBudget(10, 16, state_pages=3)
    assert [kv.pages_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2] and kv.held(17) == 5
    assert "160 tokens" in str(kv.too_small(200))
    memory = Budget(80.0, 20.0, 1.0, 1.0, 40.0, 18.0, 8000, state_pool=4.0)
    left = beside(memory, 10.0, 16, "drafts", "speculative", 0.5)
    assert (left.weights, left.kv, left.kv_tokens, left.state_pool) == (
        30,
        15,
        2992,
        1.5,
    )  # whole pages of 3,000 tokens
    with pytest.raises(DoesNotFit, match="drafts leave no KV cache"):
        beside(memory, 40.0, 16, "drafts", "speculative")
    assert kv.usable_prefix(np.array([5, 40]), 0).tolist() == [5, 40]
    assert KvBudget(10, 16, prefix_caching=False).usable_prefix(np.array([5]), 0).tolist() == [0]
    kept = KvBudget(10, 16, checkpoint=StateCheckpoint(EVERY_BLOCK, 16))
    assert kept.usable_prefix(np.array([5, 40]), 0).tolist() == [0, 32]


def test_tables_are_shared_between_sizes_of_one_power_of_two() -> None:
    assert _shared(5000, 300, 9000) == Sizes(8192, 512, 16384) == _shared(8192, 512, 16384)
    assert _shared(8193, 300, 9000).budget == 16384 and _shared(5000, 300, 9000, 77) == Sizes(8192, 512, 9000, 77)
    assert _shared(1, 1, 1).budget == 1


def test_grids_are_read_between_their_points() -> None:
    assert upto(10, (1, 4, 8, 16)) == [1, 4, 8, 10] and spaced(((1, 4, 1), (4, 20, 4)), 13) == [1, 2, 3, 4, 8, 12, 13]
    grid, values = (2.0, 4.0, 8.0), (10.0, 20.0, 60.0)
    assert [reader(grid, values).at(at) for at in (1, 2, 3, 6, 8, 12)] == [10, 10, 15, 40, 60, 100]
    read = reader(grid, values)
    assert [read.at(at) for at in (1, 3, 6, 12)] == [10, 15, 40, 100] == read.each(np.array([1.0, 3, 6, 12])).tolist()
    assert shares(grid, 5.0) == ((1, 0.75), (2, 0.25)) and shares((3.0,), 9.0) == ((0, 1.0),)
    found = at_every_count((1, 3), (16.0, 32.0), np.array([1.0, 2.0, 3.0, 6.0]))
    assert [found[n] for n in range(4)] == [[1, 2], [1, 2], [2, 4], [3, 6]]
    assert fresh([(5, 0), (6, 3), (7, 0)]) == 2
    assert dict(_prompt_shares((16, 64), (0, 512), 3, 32.0, 256.0)) == pytest.approx(
        {(k, q, p): 0.5 * share * 0.5 for k in (2, 4) for q, share in ((16, 2 / 3), (64, 1 / 3)) for p in (0, 512)})  # fmt: skip
    assert dict(_prompt_shares((16,), (0,), 128, 16.0, 0.0)) == {(64, 16, 0): 2.0}


def test_axes_and_sums_of_a_small_table() -> None:
    axes = Axes.of(Sizes(64, 4, 100))
    assert axes.caches == [16, 32, 64, 128] and axes.chunks == (16, 32, 64) and axes.prefixes == (0,)
    assert axes.counts == [1, 2, 3, 4] == axes.heads and axes.rows == [*range(1, 9), *range(16, 65, 8)]
    assert max(k * q for k, q, _ in axes.prompts) == 128 and len(axes.prompts) == 4 + 3 + 2
    assert Axes.of(Sizes(64, 4, 100), verify=3).rows[-1] == 76 and Axes.of(Sizes(1, 8, 5)).rows[-1] == 8
    assert (
        Axes.of(Sizes(64, 4, 5)).caches == CACHE_GRID[:1] and Axes.of(Sizes(64, 4, 100), mixed=True).mixed_prompt == 64
    )
    few = Axes.of(Sizes(64, 4, 100, 40))
    assert few.caches == [20, 70, 200] and few.chunks == (4, 16, 40, 64) and few.prefixes == (0, 100)
    decode = np.outer(axes.counts, [1.0, 2.0, 3.0, 4.0]).ravel()
    prompt = np.array([float(k * q) for k, q, _ in axes.prompts])
    sums = GridSums(axes, [np.array(axes.rows, float), 10.0 * np.array(axes.heads), 100 * decode, 1000 * prompt])
    at = axes.place(40, 2, 2, 96, [(24, 0), (40, 0)])  # 48 tokens each: 2.5 points
    assert sums.at(at) == pytest.approx(40 + 20 + 100 * 2 * 2.5 + 1000 * 64)
    assert sums.decoding(8, 3, 3) == [8 + 30 + 300 * n for n in (1, 2, 3, 4)] and sums.decoding(8, 3, 0) == [38]
    assert sums.prompt[4, 64, 0] == 2 * sums.prompt[2, 64, 0] and sums.prompt[64, 16, 0] == 1000 * 1024


def test_the_larger_half_of_a_rank() -> None:
    assert _half((5, 41, [(7, 3)])) == (3, 21, [(4, 3)]) and _half((4, 40, [(7, 3), (6, 2), (5, 1)])) == (
        2, 20, [(7, 3), (5, 1)])  # fmt: skip


def test_steps_that_stand_for_a_stretch() -> None:
    assert sample(3, 9, 6).tolist() == [3, 4, 5, 6, 7, 8] and sample(5, 5, 6).tolist() == []
    found = sample(10, 1010, 6)
    assert len(found) == 6 and (found[0], found[-1]) == (10, 1009) and found[1:-1].tolist() == [11, 246, 627, 863]


def test_requests_of_a_file_at_another_rate() -> None:
    ones = np.ones(5, int)
    told = Traffic(np.array([0.0, 1.0, 4.0, 4.0, 8.0]), ones, ones)
    assert _rescaled(told, 2.0).arrival_s.tolist() == [0, 0.25, 1, 1, 2]
    at_once = Traffic(np.zeros(5), ones, ones)
    assert _rescaled(at_once, 2.0).arrival_s.tolist() == [0, 0.5, 1, 1.5, 2]
    turns = Traffic(np.zeros(5), ones, ones, after=np.array([-1, 0, -1, 2, -1]), think_s=np.zeros(5))
    assert _rescaled(turns, 1.0).arrival_s.tolist() == [0, 0, 1, 1, 2]
    order, start = _in_order(np.array([5.0, 3.0, math.nan, math.nan]), np.array([-1, -1, 0, 2]), 3)
    assert order.tolist() == [1, 0, 2] and start.tolist() == [0, 2, 2]


def test_drawn_requests() -> None:
    made = synthetic(4000, input_len=100, output_len=10, rate=5.0, spread=0.2, seed=1)
    assert made.arrival_s[0] == 0 and made.arrival_s[-1] == pytest.approx(800, rel=0.05)
    assert set(made.input_len.tolist()) == set(range(80, 121)) and set(made.output_len.tolist()) == {8, 9, 10, 11, 12}
    gaps = np.diff(synthetic(4000, input_len=1, output_len=1, rate=5.0, burstiness=4.0).arrival_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05) and gaps.std() == pytest.approx(0.1, rel=0.1)
    assert lengths(3, 9, 0.9, np.random.default_rng(0)).min() >= 1
    assert (usual_count(None), usual_count(7)) == (1000, 70)
    some = Traffic(np.arange(3.0), np.array([10, 20, 30]), np.array([1, 2, 3]))
    assert (some.longest, some.sent, some.sessions) == (33, pytest.approx((0 + 1 + 3) / 6), 3)
    assert some.with_prefix(0.5).found_len.tolist() == [5, 10, 15]  # type: ignore[union-attr]
    assert some.with_prefix(1.0).found_len.tolist() == [9, 19, 29]  # type: ignore[union-attr]
    more = some.with_prefix_tokens(7)
    assert more.input_len.tolist() == [17, 27, 37] and more.found_len.tolist() == [0, 7, 7]  # type: ignore[union-attr]
    assert str(some) == "3 requests, over 2 s: 1 a second, 20 + 2 tokens on average"


def test_what_is_open_adds_up_as_variances_do() -> None:
    known = Uncertainty(0.3, "vllm", version_given=True)
    alone = math.hypot(0.3, known.server("tpot_ms"))
    assert known.half("tpot_ms") == pytest.approx(alone) and known.half("itl_ms") == pytest.approx(alone)
    more = Uncertainty(0.3, "vllm", version_given=True, pools=0.4, drafts=0.5)
    assert more.half("tpot_ms") == pytest.approx(math.hypot(alone, 0.4, 0.5))
    assert more.half("ttft_ms") == pytest.approx(math.hypot(0.3, known.server("ttft_ms"), 0.4))
    assert more.tried(8) == () and more.tried(None)[1] == pytest.approx(math.exp(more.half("tpot_ms")))
    assert more.tried(None)[0] == pytest.approx(math.exp(-more.half("tpot_ms")))
    assert Uncertainty(0.3, "none", version_given=True).server("tpot_ms") >= known.server("tpot_ms")
    assert Uncertainty(0.3, "vllm", version_given=False).half("tpot_ms") > alone
    assert Uncertainty(0.3, "vllm", version_given=True, ranks=True).half("tpot_ms") > alone
    assert f"kernels ± {100 * math.expm1(0.3):.0f} %" in known.note()


def test_a_conversation_is_as_many_turns_as_it_has_answers() -> None:
    said = [{"from": "gpt", "value": "hello"}, {"from": "human", "value": "x" * 9}, {"from": "gpt", "value": "y" * 4},
            {"from": "human", "value": ""}, {"from": "assistant", "value": "z" * 5}]  # fmt: skip
    found = [(row["conversations.turn"], row["conversations.prompt_tokens"], row["conversations.answer_tokens"])
             for row in _turns("one", said)]  # fmt: skip
    assert found == [(0, 2 + 3, 1), (1, 2 + 3 + 1 + 1, 2)]


def test_a_front_end_shares_messages_and_takes_its_machines_pace() -> None:
    front = Front(request_us=100.0, token_us=10.0, transit_us=50.0, stream_us=4.0, copied_us=3.0, variation=0.0)
    setup = Setup(front=front, pace=Pace(frontend=2.0), message_tokens=2, stream_interval=4)
    found = setup.streaming(2000.0)
    assert (setup.together, found.request_us, found.token_us, found.transit_us) == (4, 200, 20, 100)
    assert found.stream_us == pytest.approx((4 + 3 * 2) / 4)
