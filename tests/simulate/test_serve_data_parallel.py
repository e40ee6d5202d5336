"""Attention data parallelism: what it splits, a plain simulator of ranks in lock step, and how cases are read."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from pipewave.errors import CannotShard
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.expert_parallel import is_shared
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel, kv_bytes_per_token, weight_bytes
from pipewave.physics.arith import SCALAR
from pipewave.physics.power import limited_us
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.unstated import degrees_of
from pipewave.simulate import estimate
from pipewave.simulate.data_parallel import DataParallelGroup
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import SchedulingPolicy, VllmPolicy
from pipewave.simulate.replica import Replica
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import Pool, Simulation
from pipewave.simulate.step_grids import Sizes
from pipewave.simulate.step_table import StepTable
from pipewave.simulate.traffic import Traffic, synthetic
from pipewave.step import Runner, find_engine
from tests.simulate.serving import serve

MODEL, WIDE = load("DeepSeek-V3"), Parallel(tp=1, ep=8, dp=8)
SENDING = find_engine("vllm").what_if(exchange="deepep_ll_narrow")


@pytest.fixture(scope="module")
def table() -> StepTable:
    runner = Runner.of(Deployment(load("Qwen3-30B-A3B"), Parallel(dp=4, ep=4)), find("H200"), find_engine("vllm"))
    return StepTable(runner, Sizes(2048, 64, 4096))


def test_ranks_hold_whole_attention_and_their_share_of_experts() -> None:
    tensor = Parallel(tp=8, ep=8)
    assert WIDE.world == tensor.world == 8
    assert WIDE.moe_tp == tensor.moe_tp == 1
    assert weight_bytes(MODEL, WIDE) > weight_bytes(MODEL, tensor)  # attention and dense parts are repeated
    assert kv_bytes_per_token(MODEL, WIDE) == kv_bytes_per_token(
        MODEL, tensor
    )  # so eight ranks hold eight times as much
    with pytest.raises(CannotShard, match="tp × dp"):
        Parallel(tp=2, dp=2, ep=8)
    with pytest.raises(CannotShard, match="replicas"):
        Parallel(dp=2).check(load("Llama-3.1-8B"))


def test_experts_meet_the_tokens_of_all_ranks() -> None:
    """Tokens × ranks enter the experts, those of the fullest rank; an exchange before and after; no all-reduce."""
    uses = Deployment(MODEL, WIDE).kernels(Batch.of([1] * 16, [512] * 16))
    calls = {use.name: use.call for use in uses}
    assert 16 * 8 < calls["fused_moe"].tokens < 1.15 * 16 * 8  # type: ignore[attr-defined]
    assert calls["moe_dispatch"].bytes == 16 * 8 * MODEL.hidden * 2  # type: ignore[attr-defined]
    assert {"moe_dispatch", "moe_combine"} <= set(calls)
    assert not {"ffn_all_reduce", "attention_all_reduce"} & set(calls)
    sent = Deployment(MODEL, WIDE, engine=SENDING).kernels(Batch.of([1] * 16, [512] * 16))
    calls = {use.name: use.call for use in sent}
    assert (calls["moe_dispatch"].tokens, calls["moe_dispatch"].dtype) == (16, "fp8_block")  # type: ignore[attr-defined]
    assert {use.name for use in sent if is_shared(use)} >= {"fused_moe", "moe_dispatch", "moe_combine"}


def test_equal_ranks_take_a_step_of_one(table: StepTable) -> None:
    """The table of a group, read for ranks that do the same, is the step that the deployment predicts."""
    work = (16, 16 * 700, ())
    step = table.runner.steps([table.runner.batch([1] * 16, [700] * 16)]).total_us[0]
    assert 1e6 * table.group_seconds([work] * 4) == pytest.approx(step, rel=0.05)
    prompts = (8, 8 * 700, [(512, 0)])
    step = table.runner.steps([table.runner.batch([*[1] * 8, 512], [*[700] * 8, 512])]).total_us[0]
    assert 1e6 * table.group_seconds([prompts] * 4) == pytest.approx(step, rel=0.05)


def test_steps_that_only_decode_read_the_same_table(table: StepTable) -> None:
    """The short way of such steps, beside the sums that every step adds up: a rank's kernels, the group's, the gaps."""
    for ranks in ([(16, 16 * 700, ()), (9, 4000, ()), (0, 0, ()), (3, 100, ())], [(60, 60 * 3000, ())] * 4):
        engine, most = table.engine, max(decoding for decoding, _, _ in ranks)
        rows = engine.graphs.padded(most)
        parts = [
            max(sums.at(table.axes.place(rows, n, n, cached, ())) for n, cached, _ in ranks)
            + sums.group[rows]
            + sums.moved[rows]
            for sums in (table.time, table.joules)
        ]
        busy = max(parts[0] + table.graph.between_us, table.graph.beside_us) + table.graph.after_us
        whole = limited_us(busy + most * engine.each_request_us, table.board.at_limit_us(parts[1]), SCALAR)
        assert 1e6 * table.group_seconds(ranks) == pytest.approx(whole, rel=1e-12)


def test_a_rank_that_only_decodes_does_what_a_whole_step_does(
    table: StepTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches so small that requests wait and are thrown out, too."""
    traffic = synthetic(60, input_len=300, output_len=80, concurrency=24, spread=0.3, seed=2)
    runs = []
    for _ in range(2):
        pool = Pool(table, VllmPolicy(2048, 8), KvBudget(90, 16), ranks=4)
        runs.append(Simulation(traffic, pool).run())
        monkeypatch.setattr(Replica, "quiet_steps", lambda rank, most: 0)
    quick, whole = runs
    assert quick.log.preempted == whole.log.preempted
    assert [step for _, step in quick.steps] == [step for _, step in whole.steps]
    np.testing.assert_array_equal(quick.done_s, whole.done_s)


@pytest.mark.parametrize("pages", [90, 5000])
def test_ranks_that_only_decode_are_read_between_a_few_steps(table: StepTable, pages: int) -> None:
    """Long answers, also in caches so small that requests wait and are thrown out."""
    traffic = synthetic(40, input_len=300, output_len=400, concurrency=24, spread=0.3, seed=2)
    pool = Pool(table, VllmPolicy(2048, 8), KvBudget(pages, 16), ranks=4)
    one_by_one, read = (Simulation(traffic, pool, keep_steps=keep).run() for keep in (True, False))
    assert read.log.preempted == one_by_one.log.preempted and read.log.decoding == one_by_one.log.decoding
    np.testing.assert_allclose(read.done_s, one_by_one.done_s, rtol=1e-6)
    np.testing.assert_allclose(read.first_s, one_by_one.first_s, rtol=1e-6)


def test_one_busy_rank_holds_up_the_others(table: StepTable) -> None:
    even, lone = [(8, 8000, ())] * 4, [(8, 8000, [(1024, 0)]), *[(8, 8000, ())] * 3]
    every = [(8, 8000, [(1024, 0)])] * 4
    assert table.group_seconds(even) < table.group_seconds(lone) < table.group_seconds(every)  # type: ignore[arg-type]


def _plain(table: StepTable, traffic: Traffic, ranks: int, budget: int) -> tuple[list[float], list[float]]:
    """Every request of every rank walked in every step: vLLM's schedule without limits of memory."""
    prompts, outputs = traffic.input_len.tolist(), traffic.output_len.tolist()
    queues: list[deque[int]] = [deque() for _ in range(ranks)]
    running: list[dict[int, int]] = [{} for _ in range(ranks)]  # request → tokens made
    cut: list[dict[int, int]] = [{} for _ in range(ranks)]  # request in the middle of its prompt → tokens done
    first, done = [np.nan] * len(prompts), [np.nan] * len(prompts)
    come, now = deque(enumerate(traffic.arrival_s.tolist())), 0.0
    while come or any(queues) or any(running) or any(cut):
        if not (any(queues) or any(running) or any(cut)):
            now = max(now, come[0][1])
        while come and come[0][1] <= now:
            request = come.popleft()[0]
            load_of = [len(q) + len(r) + len(c) for q, r, c in zip(queues, running, cut, strict=True)]
            queues[load_of.index(min(load_of))].append(request)
        work, ends = [], []
        for rank in range(ranks):
            room, pieces = budget - len(running[rank]), []
            finished = []
            while room > 0 and (cut[rank] or queues[rank]):
                request, before = cut[rank].popitem() if cut[rank] else (queues[rank].popleft(), 0)
                take = min(prompts[request] - before, room)
                pieces.append((take, before))
                room -= take
                if before + take == prompts[request]:
                    finished.append(request)
                else:
                    cut[rank][request] = before + take
            held = sum(prompts[r] + made for r, made in running[rank].items())
            work.append((len(running[rank]), held + len(running[rank]), pieces))
            ends.append(finished)
        now += table.group_seconds([(d, c - 0, p) for d, c, p in work])
        for rank in range(ranks):
            for request in list(running[rank]):
                running[rank][request] += 1
                if running[rank][request] == outputs[request]:
                    done[request] = now
                    del running[rank][request]
            for request in ends[rank]:
                first[request] = now
                if outputs[request] == 1:
                    done[request] = now
                else:
                    running[rank][request] = 1
    return first, done


def test_lock_step_is_that_of_a_plain_simulator(table: StepTable) -> None:
    traffic = synthetic(60, input_len=600, output_len=30, rate=60, spread=0.8, seed=4)
    pool = Pool(table, VllmPolicy(2048, 1 << 20), KvBudget(1 << 30, 16), ranks=4)
    record = Simulation(traffic, pool).run()
    first, done = _plain(table, traffic, 4, 2048)
    # A decoding step counts its own token among those it holds, here as there, up to the newest of each request.
    assert record.first_s == pytest.approx(np.array(first), rel=2e-3)
    assert record.done_s == pytest.approx(np.array(done), rel=2e-3)


def test_prompts_wait_for_a_rank_without_any(table: StepTable) -> None:
    """Held back while other ranks decode and have no prompt, no longer than the policy says."""
    traffic = Traffic(np.array([0.0, 0.0, 0.0, 0.0, 0.05]), np.full(5, 64), np.full(5, 200))
    waits = {}
    for steps in (0, 20):
        policy = SchedulingPolicy(2048, 1 << 20, prefill_wait_steps=steps)
        record = Simulation(traffic, Pool(table, policy, KvBudget(1 << 30, 16), ranks=4)).run()
        waits[steps] = record.first_s[4] - 0.05
    step = table.group_seconds([(1, 100, ())] * 4)
    assert waits[20] - waits[0] == pytest.approx(19 * step, rel=0.2)


def test_a_group_has_the_face_of_a_replica(table: StepTable) -> None:
    group = DataParallelGroup(
        table, VllmPolicy(2048, 64), KvBudget(1000, 16), synthetic(8, input_len=64, output_len=4), 4
    )
    assert group.idle
    group.waiting.extend(range(8))
    assert (group.load, group.idle) == (8, False)
    step = group.step(0.0)
    assert sorted(step.first) == list(range(8))
    assert [rank.running for rank in group.ranks] == [2, 2, 2, 2]


def test_an_estimate_shares_its_batch_among_ranks() -> None:
    wide = estimate(MODEL, "H200", batch=64, input_len=512, output_len=8, ep=8, dp=8, kv_dtype="fp8")
    each = estimate(MODEL, "H200", batch=57, input_len=512, output_len=8, ep=8, dp=8, kv_dtype="fp8")
    assert wide.gpus == 8
    assert wide.tpot_ms == each.tpot_ms  # the fullest rank has eight of either
    assert wide.output_tokens_per_s == pytest.approx(each.output_tokens_per_s * 64 / 57)


def test_ranks_of_a_dense_model_are_replicas() -> None:
    traffic = synthetic(20, input_len=256, output_len=16, concurrency=8)
    both = [serve(Server.of("Llama-3.1-8B", "H200", setup, 512), traffic) for setup in (Setup(dp=2), Setup(replicas=2))]
    assert both[0].answer == both[1].answer
    assert both[0].answer["gpus"] == 2


def test_published_tables_count_a_group_twice() -> None:
    assert degrees_of("trtllm", 1, 8, 64, None)[:3] == (1, 8, 8)
    assert degrees_of("trtllm", 1, 8, 64, 64)[:3] == (1, 8, 64)
    assert degrees_of("trtllm", 1, 8, 8, None) == (1, 8, 8, "")
    assert degrees_of("vllm", 4, 16, 4, None)[:3] == (4, 4, 1)
    assert degrees_of("vllm", 4, 16, 4, 16) == (4, 16, 4, "")
    assert degrees_of("sglang", 4, 16, 4, None) == (4, 16, 4, "")
    assert degrees_of("sglang", 16, 4, 1, None)[:3] == (4, 4, 1)
    assert degrees_of("sglang", 16, 4, 1, 16) == (16, 4, 1, "")
    assert degrees_of("trtllm", 4, 2, 1, None) == (4, 2, 1, "")
    assert degrees_of("trtllm", 4, 2, 1, None, tagged=True)[:3] == (2, 2, 1)
    assert degrees_of("trtllm", 4, 2, 1, 4, tagged=True) == (4, 2, 1, "")


def test_a_case_names_its_ranks() -> None:
    case = {"model": "Qwen3-30B-A3B", "gpu": "H200", "isl": 256, "osl": 16, "concurrency": 8, "requests": 16}
    wide = answer(from_dict(case | {"dp": 4, "ep": 4}))
    squared = answer(from_dict(case | {"engine": "trtllm", "dp": 16, "ep": 4}))
    plain = answer(from_dict(case | {"engine": "trtllm", "dp": 4, "ep": 4}))
    assert wide["tpot_ms"] > 0
    assert squared["tpot_ms"] == plain["tpot_ms"]
    assert any("counts it twice" in note or "count it twice" in note for note in squared["notes"])
    assert replace(from_dict(case), dp=4).deployment != from_dict(case).deployment


def test_power_of_a_step_whose_long_prompts_meet_on_one_rank_is_known(table: StepTable) -> None:
    pieces = [(table.axes.rows[-1], 0), (1, 0)] * 4
    assert 100.0 < table.watts(0.1, 0, 0, pieces, 2) <= find("H200").tdp_w
