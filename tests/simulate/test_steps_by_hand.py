"""Steps of ranks in lock step, of static batches and caches on their way, with made-up kernels that a pencil adds up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.simulate import pools as pooled
from pipewave.simulate.engine_step import Step
from pipewave.simulate.estimate import _energy
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.latency_breakdown import _batch, _drafting, _spread, _waited
from pipewave.simulate.policies import SglangPolicy, VllmPolicy
from pipewave.simulate.pools import Pools, Side, side_of
from pipewave.simulate.replay import _summary, workload
from pipewave.simulate.setup import AS_PREDICTED, Pace, Setup
from pipewave.simulate.static_batch import Schedule, StaticBatch, Timeline, first_steps
from pipewave.simulate.step_grids import Axes, GridSums, Sizes
from pipewave.simulate.step_table import StepTable
from pipewave.simulate.traffic import Traffic


def table(overlap: Any = None, exchange: str = "") -> StepTable:
    """Rows take 1 µs each, decodes a µs a cached token, prompts 1,000 a token; experts 10 a row and their exchange 100;
    launches 7 a request, and 5,000 more where kernels are launched one by one.
    """
    made, axes = StepTable.__new__(StepTable), Axes.of(Sizes(64, 16, 100))
    rows = np.array(axes.rows, float)
    decode = np.outer(axes.counts, axes.caches).ravel()
    prompt = 1000.0 * np.array([k * q for k, q, _ in axes.prompts])
    made.axes, made.verify, made.two_batch, made.most_requests = axes, 1, overlap, 16
    made.time = GridSums(axes, [rows, 0.0 * np.array(axes.heads), decode, prompt, 10 * rows, 100 * rows])
    made.owns, made.factor, made.prompt_us, made.pace = {}, 1e-6, 0.0, AS_PREDICTED
    made.decoders, made.joules = {}, made.time
    made.board = SimpleNamespace(at_limit_us=lambda joules: joules)  # type: ignore[assignment]
    made.engine = SimpleNamespace(
        scheduler=SimpleNamespace(overlaps=True),
        graphs=SimpleNamespace(graph_limit=8, padded=lambda count: 8, piecewise_limit=30),
        expert_parallel=SimpleNamespace(masks_padding=bool(exchange), exchange=exchange),
    )  # type: ignore[assignment]
    made.graph, made.pieces, made.eager = (
        SimpleNamespace(
            step_us=lambda kernels, limited, requests, more=more: kernels + 7 * requests + more, after_us=more / 4
        )
        for more in (0, 1000, 5000)
    )  # type: ignore[assignment]
    return made


TWO = [(2, 64, ()), (4, 256, ())]


def test_ranks_wait_for_the_fullest_and_share_their_experts() -> None:
    # Both are padded to 8 rows: 8 + 4·64 on the fuller rank, 80 of experts, 800 of exchange, 4 requests.
    assert table().group_seconds(TWO) == pytest.approx(1e-6 * (8 + 256 + 80 + 800 + 28))
    # What only fills the graph is not sent: 3 rows of a mean rank.
    assert table(exchange="deepep").group_seconds(TWO) == pytest.approx(1e-6 * (8 + 256 + 30 + 300 + 28))
    # Beyond the largest graph nothing is padded: 9 and 4 rows, 6 or 7 in the mean.
    found = table().group_seconds([(9, 288, ()), (4, 256, ())])
    assert found == pytest.approx(1e-6 * (9 + 288 + 60 + 600 + 63 + 1000))
    assert table().group_seconds([(0, 0, ()), (1, 16, ())]) == pytest.approx(1e-6 * (8 + 16 + 80 + 800 + 7))


def test_prompts_of_one_rank_keep_all_waiting() -> None:
    ranks = [(2, 64, ()), (0, 0, [(24, 0)])]
    whole = 24 + 24_000 + 130 + 1300 + 14 + 1000
    assert table().group_seconds(ranks) == pytest.approx(1e-6 * whole)
    assert table().encoding(50.0).group_seconds(ranks) == pytest.approx(1e-6 * (whole + 50))
    assert table().scaled(2.0).group_seconds(ranks) == pytest.approx(2e-6 * whole)
    large = table().group_seconds([(2, 64, ()), (0, 0, [(31, 0)])])  # above 30 rows
    assert large == pytest.approx(1e-6 * (31 + 31_000 + 160 + 1600 + 14 + 5000))


def test_a_step_is_cut_where_its_exchange_hides() -> None:
    asked: list[Any] = []

    def busy(kernels: float, moved: float, rows: float) -> float:
        asked.append((kernels, moved, rows))
        return kernels

    def cuts(least: int, *, prompts: bool) -> bool:
        return least >= 2 and prompts

    overlap = SimpleNamespace(cuts=cuts, busy=busy)
    ranks = [(2, 64, ()), (0, 0, [(24, 0)])]
    found = table(overlap).group_seconds(ranks)
    # Halves of 12 tokens cost as much as 16; 7 rows of experts each, twice.
    assert asked == [(2 * (12 + 16_000 + 70), 2 * 700.0, 6.5)]
    assert found == pytest.approx(1e-6 * (2 * 16_082 + 14 + 1000))
    assert table(overlap).group_seconds(TWO) == table().group_seconds(TWO)  # it cuts no decodes


def test_a_pace_is_of_kernels_with_prompts_or_without() -> None:
    made = table()
    made.pace = Pace(decode=2.0, prompt=3.0)
    assert made.group_seconds(TWO) == pytest.approx(1e-6 * (2 * 1144 + 28))
    assert made.group_seconds([(2, 64, ()), (0, 0, [(24, 0)])]) == pytest.approx(1e-6 * (3 * 25_454 + 1014))


def test_a_step_of_one_engine_adds_up() -> None:
    made = table()
    assert made.seconds(2, 64, ()) == pytest.approx(1e-6 * (8 + 64 + 14))
    assert made.seconds(2, 96, ()) == pytest.approx(1e-6 * (8 + 96 + 14))  # 48 tokens each, between two points
    assert made.seconds(9, 288, ()) == pytest.approx(1e-6 * (9 + 288 + 63 + 1000))  # beyond the largest graph
    mixed = 26 + 64 + 24_000 + 21 + 1000
    assert made.seconds(2, 64, [(24, 0)]) == pytest.approx(1e-6 * mixed)
    assert made.encoding(50.0).seconds(2, 64, [(24, 0)]) == pytest.approx(1e-6 * (mixed + 50))
    assert made.encoding(50.0).seconds(2, 64, [(24, 9)]) == pytest.approx(1e-6 * mixed)  # encoded with its first piece
    assert (made.hidden_s(2, [(24, 0)]), made.hidden_s(2, [(29, 0)])) == (pytest.approx(250e-6), 0)
    made.engine.scheduler.overlaps = False  # type: ignore[misc]
    assert made.hidden_s(2, [(24, 0)]) == 0


def test_watts_of_a_step_count_what_its_boards_wait() -> None:
    made, parallel = table(), SimpleNamespace(group=2)
    made.runner = SimpleNamespace(gpu=None, deployment=SimpleNamespace(parallel=parallel))  # type: ignore[assignment]
    made.board = SimpleNamespace(  # type: ignore[assignment]
        step_w=lambda joules, spins_s, seconds: (joules + 1e4 * spins_s) / seconds
    )
    assert made.watts(0.5, 2, 64, (), 1) == pytest.approx((72 + 1e4 * (0.5 - 72e-6)) / 0.5)
    # Of two ranks, the fuller one with half of what they hold, experts and exchange.
    assert made.watts(0.5, 3, 128, (), 2) == pytest.approx((952 + 1e4 * (0.5 - 952e-6)) / 0.5)
    assert made.watts(1e-5, 2, 64, (), 1) == pytest.approx(72e5)
    parallel.group = 1
    assert made.watts(0.5, 2, 64, (), 1) == pytest.approx(144)


class Runner:
    """Steps of 10 µs a request and one a token of its cache, three quarters of it in kernels; 100 W a request."""

    deployment = SimpleNamespace(model=SimpleNamespace(pooled=False))

    def batch(self, q_lens: Sequence[int], kv_lens: Sequence[int]) -> Any:
        return list(q_lens), list(kv_lens)

    def steps(self, batches: Sequence[Any]) -> Any:
        us = np.array([10.0 * len(q) + sum(kv) for q, kv in batches])
        watts = np.array([100.0 * len(q) for q, _ in batches])
        return SimpleNamespace(total_us=us, power_w=watts, families={"kernel": 0.75 * us}, gaps={"gap": 0.25 * us},
                               basis={"measured": 0.5 + 0 * us})  # fmt: skip


def schedule(requests: int, input_len: int, output_len: int, budget: int = 10, **policy: Any) -> Schedule:
    kind = SglangPolicy if policy else VllmPolicy
    kv = KvBudget(100, 16)
    return Schedule.of(kind(budget, 8, **policy), kv, StaticBatch(requests, input_len, output_len, budget))


def test_two_requests_in_steps_of_ten_tokens() -> None:
    """The second prompt is cut after two tokens; its rest shares a step with the first request's second token."""
    plan = schedule(2, 8, 5)
    assert [plan.lengths(step) for step in range(plan.total_steps)] == [
        ([8, 2], [8, 2]), ([1, 6], [9, 8]), ([1, 1], [10, 9]), ([1, 1], [11, 10]), ([1, 1], [12, 11]), ([1], [12])]  # fmt: skip
    assert (plan.prompt_steps, plan.total_steps, plan.full_range()) == (2, 6, (2, 5))
    line = Timeline(Runner(), plan)  # type: ignore[arg-type]
    us = [30.0, 37, 39, 41, 43, 22]
    assert line.times() == pytest.approx({"prefill_ms": 0.067, "tpot_ms": 0.041, "e2e_ms": sum(us) / 1000})
    assert line.watts() == pytest.approx((200, (123 * 200 + 22 * 100) / 145))
    assert line.breakdown() == {"prefill_ms": pytest.approx({"kernel": 0.75 * 0.067, "gap": 0.25 * 0.067}),
                                "decode_step_ms": pytest.approx({"kernel": 0.75 * 0.041, "gap": 0.25 * 0.041})}  # fmt: skip
    assert line.basis() == pytest.approx({"measured": 0.5})


def test_prompts_in_steps_of_their_own() -> None:
    plan = schedule(2, 8, 3, mixes_phases=False)
    assert [plan.lengths(step) for step in range(plan.total_steps)] == [
        ([8, 2], [8, 2]), ([6], [8]), ([1, 1], [9, 9]), ([1, 1], [10, 10])]  # fmt: skip


def test_steps_between_sampled_ones_are_read_on_their_line() -> None:
    plan = schedule(3, 50, 400, budget=16)
    line = Timeline(Runner(), plan)  # type: ignore[arg-type]
    us = [10.0 * len(q) + sum(kv) for q, kv in map(plan.lengths, range(plan.total_steps))]
    first, last = plan.full_range()
    found = line.times()
    assert len(line.points) < 30 and found["tpot_ms"] == pytest.approx(1e-3 * np.mean(us[first:last]))
    assert found["e2e_ms"] == pytest.approx(1e-3 * sum(us), rel=0.02)
    assert line.between(line.points.astype(float)).tolist() == pytest.approx(range(plan.total_steps))
    middle = 0.75e-3 * us[int(line.points[np.searchsorted(line.points, (first + last) // 2)])]
    assert line.breakdown()["decode_step_ms"]["kernel"] == pytest.approx(middle)


def test_a_batch_without_later_tokens_shows_the_step_it_would_decode_in() -> None:
    line = Timeline(Runner(), schedule(2, 5, 1))  # type: ignore[arg-type]
    full = 20 + 2 * 6
    assert line.times() == pytest.approx({"prefill_ms": 0.03, "tpot_ms": full / 1000, "e2e_ms": 0.03})
    assert line.breakdown()["decode_step_ms"] == pytest.approx({"kernel": 0.00075 * full, "gap": 0.00025 * full})
    assert line.watts() == (200, 200)


def test_the_first_steps_of_a_batch() -> None:
    runner: Any = Runner()
    runner.engine = SimpleNamespace(
        name="vllm", memory=SimpleNamespace(page_size=16), host=SimpleNamespace(compile_us=0.0),
        scheduler=SimpleNamespace(max_batched_tokens=99, max_requests=3, mixes_phases=True, chunks=True, overlaps=False),
    )  # fmt: skip
    found = first_steps(runner, Setup(), StaticBatch(5, 20, 9, 50))
    assert found == {"prefill": ([20, 20, 10], [20, 20, 10]), "decode": ([1] * 3, [25] * 3)}


@pytest.mark.parametrize(
    ("names", "workers", "rate"), [(("H200", "H200"), 1, 450.0), (("H200", "H200"), 2, 50.0), (("H100", "H200"), 1, 50.0),
                                   (("H200", "H100"), 1, 50.0)]
)  # fmt: skip
def test_caches_cross_nvlink_where_it_joins_all(
    names: tuple[str, str], workers: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled, "cache_bytes", lambda each, tokens: each * tokens)
    monkeypatch.setattr(pooled, "joined", lambda gpu: 8)
    monkeypatch.setattr(pooled, "network_gbps", lambda gpu: 50.0)
    servers: Any = tuple(
        SimpleNamespace(runner=SimpleNamespace(deployment=each, gpu=SimpleNamespace(name=name, link_gbps=450.0)),
                        boards=lambda count: SimpleNamespace(gpus=4 * count))
        for name, each in zip(names, (2e6, 1e6), strict=True)
    )  # fmt: skip
    made = Pools(servers, (1, workers))
    assert made.gpus == 4 + 4 * workers
    assert made.transfer_s(1000) == pytest.approx(1e-3 + 2e9 / (1e9 * rate))


def test_sides_have_gpus_of_all_their_workers() -> None:
    side = side_of("workers=2,tp=4,pp=3,dp=5", "prefill")
    assert side.gpus == 120 and side.of(Setup(replicas=7, max_num_seqs=9)).max_num_seqs == 9
    assert (side.of(Setup()).tp, side.of(Setup(replicas=7)).replicas) == (4, 1)
    assert Side(max_num_seqs=3).of(Setup(max_num_seqs=9)).max_num_seqs == 3


def test_parts_of_a_time_go_by_steps_that_last() -> None:
    """Of a step of 3 s and one of 1: three samples of four are the long one's."""
    families = {"a": np.array([8.0, 1.0]), "b": np.array([2.0, 9.0])}
    runner = SimpleNamespace(
        batch=lambda q, kv: (q, kv),
        steps=lambda batches: SimpleNamespace(families=families, gaps={}, total_us=np.array([10.0, 10.0])))  # fmt: skip
    server: Any = SimpleNamespace(runner=runner, drafted=None)
    steps = [Step(0.0, 3.0, 2, [(0, 8, 4)], cached=21), Step(3.0, 1.0, 2, [], cached=30)]
    found = _spread(server, steps, 100.0)
    assert found == pytest.approx({"a": 75 * 0.8 + 25 * 0.1, "b": 75 * 0.2 + 25 * 0.9, "drafting": 0})
    assert _spread(server, [], 100.0) == {} and _spread(server, steps, 0.0) == {}
    assert _batch(server, steps[0]) == ((1, 1, 8), (10, 10, 12)) and _drafting(server, steps[0]) == 0
    drafts = SimpleNamespace(seconds=lambda decoding, cached: 1.0)
    server.drafted = SimpleNamespace(drafts=drafts, verifying=SimpleNamespace(verify=4, seconds=lambda *_: 3.0))
    assert _drafting(server, steps[1]) == 0.25
    drafted = _batch(server, steps[1])
    assert (drafted.q_lens, drafted.kv_lens, drafted.verify) == ((4, 4), (18, 18), 4)
    record: Any = SimpleNamespace(
        steps=[(0, steps[0])], first_made_s=np.array([4.0, 5.0]), reached_s=np.array([-1.0, 2.0])
    )
    assert _waited(record, 2).tolist() == [1, 3]


def test_a_replay_sums_prompts_and_takes_the_mean_of_decode_steps() -> None:
    us = np.array([100.0, 20.0, 30.0])
    steps: Any = SimpleNamespace(total_us=us, low_us=0.5 * us, high_us=2.0 * us, families={"kernel": 0.75 * us},
                                 gaps={"gap": 0.25 * us}, basis={"measured": np.array([1.0, 0.0, 0.5])})  # fmt: skip
    work: Any = SimpleNamespace(phases=("prefill", "decode", "decode"), batches=(1, 2, 3))
    found = _summary(work, steps, "H200", "vllm")
    assert (found.iterations, found.prefill_ms, found.decode_ms_mean) == (3, 0.1, pytest.approx(0.025))
    assert (found.total_ms, found.total_ms_low, found.total_ms_high) == pytest.approx((0.15, 0.075, 0.3))
    assert found.decode_ms_mean_high == pytest.approx(0.05) and found.basis == {"measured": pytest.approx(115 / 150)}
    assert found.breakdown["prefill_ms"] == pytest.approx({"kernel": 0.075, "gap": 0.025})
    assert found.breakdown["decode_ms"] == pytest.approx({"kernel": 0.0375, "gap": 0.0125})


def test_a_workload_decodes_until_each_request_is_done() -> None:
    made = workload("Qwen2.5-14B", Traffic(np.zeros(3), np.array([30, 40, 50]), np.array([3, 1, 2])))
    assert [made[name] for name in ("tp_size", "pp_size", "ep_size")] == [1, 1, 1]
    assert made["iterations"] == [
        {"iteration": 1, "phase": "prefill", "batch_size": 3, "q_lengths": [30, 40, 50], "kv_lengths": [30, 40, 50],
         "num_tokens": 120},
        {"iteration": 2, "phase": "decode", "batch_size": 2, "q_lengths": [1, 1], "kv_lengths": [31, 51], "num_tokens": 2},
        {"iteration": 3, "phase": "decode", "batch_size": 1, "q_lengths": [1], "kv_lengths": [32], "num_tokens": 1},
    ]  # fmt: skip
    assert made["model_params"] == {
        "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 13824, "vocab_size": 152064, "num_hidden_layers": 48}  # fmt: skip


def test_joules_of_a_batch_before_and_after_its_first_tokens() -> None:
    board: Any = SimpleNamespace(ends=lambda watts: (watts, watts), spread=math.log(2))
    found = _energy({"prefill_ms": 100.0, "e2e_ms": 500.0}, (400.0, 200.0), 2, 100, board, 0.0)
    assert (found["prefill_energy_j"], found["decode_energy_j"], found["power_w"]) == pytest.approx((80, 160, 240))
    assert found["energy_j_per_output_token"] == pytest.approx(2.4)
    assert (found["prefill_energy_j_low"], found["decode_energy_j_high"]) == pytest.approx((40, 320))
    none = _energy({"prefill_ms": 100.0, "e2e_ms": 100.0}, (400.0, 200.0), 2, 0, board, 0.0)
    assert (none["prefill_energy_j_high"], none["decode_energy_j"], none["power_w"]) == pytest.approx((80, 0, 400))
