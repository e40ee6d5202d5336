"""Requests from numbers and from traces, workloads made of them, and the served answer."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadFile, BadInput, MissingField, PipewaveError
from pipewave.export.runs import write_perfetto
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.published.answers import deploy
from pipewave.published.unstated import Stated
from pipewave.simulate.arrival_files import read_trace
from pipewave.simulate.pools import Pools, Side
from pipewave.simulate.replay import read_workload, replay, workload
from pipewave.simulate.report import limits_of
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.step_grids import Axes, Sizes
from pipewave.simulate.step_table import StepTable
from pipewave.simulate.traffic import SPREAD, synthetic, usual_count
from pipewave.step import Runner, find_engine
from tests.simulate.serving import serve

DATA = Path(os.environ.get("PIPEWAVE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def test_rates_and_lengths_are_as_asked() -> None:
    traffic = synthetic(20_000, input_len=1000, output_len=100, rate=50, spread=0.5, seed=3)
    assert 20_000 / traffic.arrival_s[-1] == pytest.approx(50, rel=0.05)
    assert traffic.input_len.mean() == pytest.approx(1000, rel=0.02)
    assert (traffic.input_len.min(), traffic.input_len.max()) == (500, 1500)
    gaps = np.diff(traffic.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.05)  # Poisson
    bursty = np.diff(synthetic(20_000, input_len=8, output_len=8, rate=50, burstiness=0.25).arrival_s)
    assert bursty.std() / bursty.mean() == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"requests": 0}, {"input_len": 0}, {"output_len": -1}, {"rate": 0.0}, {"concurrency": 0}, {"spread": 1.0}],
)
def test_impossible_traffic_is_named(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput) as caught:
        synthetic(**{"requests": 4, "input_len": 8, "output_len": 8} | wrong)  # type: ignore[arg-type]
    assert caught.value.field == next(iter(wrong))


TRACES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.6805900,396,109\n",
    "vidur.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,374,44\n2.5,396,109\n",
    "mooncake.jsonl": '{"timestamp": 1000, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
    '{"timestamp": 3000, "input_length": 396, "output_length": 109}\n',
}


@pytest.mark.parametrize("name", TRACES)
def test_traces_in_the_wild_are_the_same_requests(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(TRACES[name])
    traffic = read_trace(path)
    assert traffic.arrival_s.tolist() == [0.0, 2.0]
    assert traffic.input_len.tolist() == [374, 396]
    assert traffic.output_len.tolist() == [44, 109]
    assert read_trace(path, rate=4).arrival_s.tolist() == [0.0, 0.25]
    assert len(read_trace(path, requests=1)) == 1


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("arrival_time", (0.5, 2.5)), ("timestamp_ms", (500, 2500)), ("time_s", (0.5, 2.5)),
        ("timestamp", (1_700_000_000, 1_700_000_002)), ("time", (1_700_000_000_000, 1_700_000_002_000)),
        ("time", ("2024-05-01 10:00:00", "2024-05-01 10:00:02")),
    ],
)  # fmt: skip
def test_times_are_read_by_their_names_and_units(tmp_path: Path, column: str, values: tuple[Any, Any]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{column},input_tokens,output_tokens\n{values[0]},374,44\n{values[1]},396,109\n")
    traffic = read_trace(path)
    assert traffic.arrival_s.tolist() == [0.0, 2.0]
    assert traffic.input_len.tolist() == [374, 396]
    assert str(traffic) == "2 requests, over 2 s: 0.5 a second, 385 + 76.5 tokens on average"


@pytest.mark.parametrize("column", ["timestamp", "time", "Timestamp", "request_time", "date"])
def test_a_column_of_times_whose_unit_cannot_be_told_is_refused(tmp_path: Path, column: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{column},prompt_tokens,output_tokens\n0.5,374,44\n50,396,109\n")
    with pytest.raises(BadInput, match="unit is not known; name it arrival_time"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", BadFile),
        ("a,b\n1,2\n", MissingField),
        ("input_len,output_len\n5\n", BadInput),
        ("input_len,output_len\n5,x\n", BadInput),
        ("input_len,output_len\n5,0\n", BadInput),
        ("input_len,output_len\n5,inf\n", BadInput),
        ('{"input_len": 5, "output_len"', BadFile),
        ("[1]\n", PipewaveError),
        ("arrived_at,input_len,output_len\nnan,5,5\n1,5,5\n", BadInput),
    ],
)
def test_broken_traces_are_errors(tmp_path: Path, text: str, error: type[PipewaveError]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(error):
        read_trace(path)
    with pytest.raises(BadFile):
        read_trace(tmp_path / "missing.csv")


def test_a_workload_replays_as_its_requests() -> None:
    requests = synthetic(6, input_len=500, output_len=20, spread=0.5)
    made = workload("Qwen2.5-14B", requests)
    assert replay(made, "H200").total_ms == pytest.approx(replay(json.loads(json.dumps(made)), "H200").total_ms)
    assert len(made["iterations"]) == int(requests.output_len.max())
    tokens = sum(entry["num_tokens"] for entry in made["iterations"])
    assert tokens == int(requests.input_len.sum() + (requests.output_len - 1).sum())


@pytest.mark.parametrize("name", ["gpt-oss-20b", "Qwen3-30B-A3B", "DeepSeek-V3", "Llama-3.2-1B"])
def test_any_model_survives_the_round_trip(name: str) -> None:
    made = json.loads(json.dumps(workload(name, synthetic(2, input_len=9, output_len=3), tp=2)))
    work = read_workload(made)
    assert work.model.layers == load(name).layers
    assert work.parallel.tp == 2


@pytest.mark.skipif(not DATA.is_dir(), reason="corpus absent")
@pytest.mark.parametrize(
    ("table", "model", "file"),
    [
        ("arxiv_8", "Qwen2.5-14B", "Qwen2.5-14B_arxiv_8_fa3_tp1_pp1"),
        ("splitwise_48", "Qwen3-32B", "Qwen3-32B_splitwise_48_fa3_tp2_pp1"),
        ("vllm_arxiv16", "Llama-3.1-70B", "Llama-3.1-70B_vllm_arxiv16_fa3_tp4_pp2"),
    ],
)
def test_workloads_are_those_of_the_papers_generator(table: str, model: str, file: str) -> None:
    folder = DATA / "pipeweave" / "workload"
    published = json.loads((folder / f"{file}.json").read_text())
    requests = read_trace(folder / f"{table}.csv", rate=math.inf)
    made = workload(model, requests, tp=published["tp_size"], pp=published["pp_size"])
    assert {k: made[k] for k in ("model", "model_params", "tp_size", "pp_size")} == {
        k: published[k] for k in ("model", "model_params", "tp_size", "pp_size")
    }
    for ours, theirs in zip(made["iterations"], published["iterations"], strict=True):
        assert {k: v for k, v in theirs.items() if k != "operators"} == ours


@pytest.mark.parametrize(
    ("model", "engine", "gpu"),
    [("Llama-3.1-8B", "vllm", "H200"), ("Qwen3-30B-A3B", "sglang", "H200"), ("Qwen3-14B", "vllm", "A100")],
)
def test_the_table_is_close_to_the_steps_it_stands_for(model: str, engine: str, gpu: str) -> None:
    runner = Runner.of(Deployment(load(model)), find(gpu), find_engine(engine))
    table = StepTable(runner, Sizes(4096, 64, 8192))
    rng = np.random.default_rng(1)
    batches, read = [], []
    for _ in range(40):
        count = int(rng.integers(1, 64))
        cached = rng.integers(1, 4000, count)
        pieces = [(int(rng.integers(1, 1000)), int(rng.integers(0, 2000)))] if rng.random() < 0.5 else []
        q_lens = [1] * count + [tokens for tokens, _ in pieces]
        batches.append(runner.batch(q_lens, [*cached.tolist(), *(tokens + before for tokens, before in pieces)]))
        read.append(table.seconds(count, int(cached.sum()), pieces))
    error = 1e6 * np.array(read) / runner.steps(batches).total_us - 1
    assert np.abs(error).mean() < 0.05
    assert table.scaled(2.0).seconds(4, 400, []) == pytest.approx(2 * table.seconds(4, 400, []))


def test_steps_of_requests_of_different_lengths_are_read_as_such() -> None:
    """Equal caches fill the waves of split decode attention at some numbers of requests: 5, 8, 12 to 16."""
    runner = Runner.of(Deployment(load("Llama-3.1-8B")), find("H200"), find_engine("vllm"))
    even, uneven = (StepTable(runner, Sizes(4096, 64, 16384, spread=one)) for one in (0.0, SPREAD))
    rng = np.random.default_rng(1)
    batches, read = [], []
    for _ in range(60):
        held = rng.uniform(3500, 12000, int(rng.integers(4, 33))).astype(int).tolist()
        batches.append(runner.batch([1] * len(held), held))
        read.append([table.seconds(len(held), sum(held), []) for table in (even, uneven)])
    error = 1e6 * np.array(read) / runner.steps(batches).total_us[:, None] - 1
    assert error[:, 0].mean() < -0.03 and abs(error[:, 1].mean()) < 0.01
    assert even.seconds(3, 2048 * 3, []) == pytest.approx(
        1e-6 * runner.steps([runner.batch([1] * 3, [2048] * 3)]).total_us[0]
    )


def test_cache_lengths_spread_where_requests_differ_widely(tmp_path: Path) -> None:
    assert synthetic(50, input_len=1000, output_len=100, rate=4.0).spread == 0.0
    assert synthetic(50, input_len=1000, output_len=100, rate=4.0, spread=0.111).spread == 0.0  # as published runs are
    path = tmp_path / "arrivals.csv"
    path.write_text("arrival_time,prompt_tokens,output_tokens\n" + "".join(f"{i},{300 * i + 64},9\n" for i in range(9)))
    ready = deploy(Stated(load("Llama-3.1-8B"), "H200", Setup(), "vllm"), read_trace(path))
    assert ready.engines.decode.table.axes.spread == SPREAD


def test_lengths_of_a_table_lie_about_their_mean() -> None:
    even, uneven = (Axes.of(Sizes(4096, 64, 16384, spread=one)) for one in (0.0, SPREAD))
    runner = Runner.of(Deployment(load("Llama-3.1-8B")), find("H200"), find_engine("vllm"))
    for plain, wide in zip(even.batches(runner)[2][1], uneven.batches(runner)[2][1], strict=True):
        assert len(plain.kv_lens) == len(wide.kv_lens) and len(set(plain.kv_lens)) == 1
        assert np.mean(wide.kv_lens) == pytest.approx(plain.kv_lens[0], abs=1.0)
        assert max(wide.kv_lens) <= (1 + SPREAD) * plain.kv_lens[0]


def served(rate: float | None = 4.0, **setup: int) -> Server:
    return Server.of("Llama-3.1-8B", "H200", Setup(**setup), 4096)  # type: ignore[arg-type]


def test_load_raises_latency_and_intervals_hold_it() -> None:
    server = served()
    quiet, busy = (serve(server, synthetic(300, input_len=1000, output_len=50, rate=r)).answer for r in (1.0, 30.0))
    assert quiet["ttft_p50_ms"] < busy["ttft_p50_ms"]
    assert quiet["tpot_p50_ms"] < busy["tpot_p50_ms"]
    both = serve(server, synthetic(100, input_len=1000, output_len=50, rate=4), interval=True).answer
    assert both["tpot_p50_ms_low"] < both["tpot_p50_ms"] < both["tpot_p50_ms_high"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("input_len", "output_len"), [(1, 1), (1, 2), (3, 5)])
def test_requests_of_a_few_tokens_are_served(engine: str, input_len: int, output_len: int) -> None:
    traffic = synthetic(20, input_len=input_len, output_len=output_len, rate=50)
    record = serve(Server.of("Qwen3-0.6B", "H200", Setup(engine=engine), traffic.longest), traffic).record
    assert (record.arrival_s < record.first_s).all()
    assert (record.first_s <= record.done_s).all()


def test_goodput_falls_with_the_limit() -> None:
    server = served()
    traffic = synthetic(200, input_len=1000, output_len=50, rate=20)
    shares = [serve(server, traffic, limits_of(tpot_ms=limit)).answer["good_share"] for limit in (1.0, 15.0, 1000.0)]
    assert shares[0] == 0.0
    assert shares[0] <= shares[1] <= shares[2] == 1.0


def test_disaggregation_keeps_prompts_out_of_decode_steps() -> None:
    traffic = synthetic(300, input_len=2000, output_len=100, rate=15)
    together = serve(served(replicas=2), traffic).answer
    apart = serve(Pools.of("Llama-3.1-8B", "H200", Setup(), 4096, (Side(), Side())), traffic).answer
    assert apart["gpus"] == together["gpus"] == 2
    assert apart["itl_p99_ms"] < together["itl_p99_ms"]


def test_the_trace_opens_in_perfetto(tmp_path: Path) -> None:
    run = serve(served(), synthetic(20, input_len=100, output_len=10), keep_steps=True)
    write_perfetto(tmp_path / "trace.json", run.record, run.traffic)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(run.record.steps)
    assert sum(e["ph"] == "b" for e in events) == sum(e["ph"] == "e" for e in events) == 40
    with pytest.raises(BadFile):
        write_perfetto(tmp_path / "no" / "trace.json", run.record, run.traffic)


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": 0},
        {"max_num_seqs": 0},
        {"gpu_memory_utilization": 1.5},
        {"max_num_batched_tokens": -1},
    ],
)
def test_impossible_setups_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput) as caught:
        Setup(**wrong)  # type: ignore[arg-type]
    assert caught.value.field == next(iter(wrong))


def test_no_more_are_in_flight_than_may_be_and_none_is_sent_before_its_time() -> None:
    """As `vllm bench serve` does with a rate and a concurrency: a request waits, unmeasured, until it may be sent."""
    deployed = deploy(Stated(load("Qwen3-0.6B"), "H100", Setup()), synthetic(
        60, input_len=500, output_len=40, rate=200.0, concurrency=3))  # fmt: skip
    record, planned = deployed.run(), deployed.traffic.arrival_s
    assert (record.arrival_s >= planned).all() and (record.arrival_s > planned + 1e-3).any()
    flight = [int(((record.arrival_s <= t) & (record.done_s > t)).sum()) for t in record.arrival_s]
    assert max(flight) == 3
    seldom = replace(deployed, traffic=replace(deployed.traffic, arrival_s=planned * 200.0))
    assert seldom.run().arrival_s.tolist() == seldom.traffic.arrival_s.tolist()


def test_a_concurrency_takes_the_place_of_the_times_of_a_file_and_a_rate_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "vidur.csv"
    path.write_text(TRACES["vidur.csv"])
    closed, paced = read_trace(path, concurrency=2), read_trace(path, concurrency=2, rate=0.5)
    assert closed.closed == 2 and "its times do not count" in closed.notes[0] and str(closed).count("2 in flight")
    assert "200,000 + 300 tokens" in str(synthetic(2, input_len=200_000, output_len=300))
    assert paced.closed is None and paced.arrival_s.tolist() == [0.0, 2.0] and "at most 2 in flight" in str(paced)


def test_a_concurrency_of_none_is_named_as_that_and_not_as_the_requests_that_follow_from_it() -> None:
    with pytest.raises(BadInput) as found:
        synthetic(usual_count(0), input_len=8, output_len=8, rate=10.0, concurrency=0)
    assert found.value.field == "concurrency"
