"""Data-parallel attention and drafts in the closed form of `plan`, against the simulator."""

from __future__ import annotations

import math

import pytest

from pipewave.models import load
from pipewave.planning import Question, Space, Split, plan
from pipewave.planning.steady import Evaluated, evaluate
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of
from pipewave.simulate.traffic import synthetic
from studies import plan_pools
from studies.plan_steady import Load, compare

MOE, DENSE = load("Qwen3-30B-A3B"), load("Llama-3.1-8B")


def _off(one: Evaluated, answer: dict[str, float]) -> dict[str, float]:
    names = {
        "tpot_ms": "tpot_mean_ms",
        "ttft_ms": "ttft_mean_ms",
        "tokens_per_s_per_gpu": "output_tokens_per_s_per_gpu",
    }
    return {name: float(one.columns[name][0]) / answer[theirs] - 1 for name, theirs in names.items()}


@pytest.mark.parametrize("engine", ["vllm:0.22.1", "sglang:0.5.14"])
@pytest.mark.parametrize(("lane", "isl", "osl"), [(4, 1024, 128), (16, 512, 256), (32, 2000, 200)])
def test_ranks_in_lock_step(engine: str, lane: int, isl: int, osl: int) -> None:
    split = Split("H200", ep=4, engine=engine, dp=4)
    one = evaluate(MOE, split, Question(isl, osl), [4096], [lane])
    traffic = synthetic(40 * lane, input_len=isl, output_len=osl, concurrency=4 * lane, spread=0.5)
    setup = Setup(ep=4, dp=4, engine=engine, max_num_batched_tokens=4096)
    off = _off(one, dict(Server.of(MOE, "H200", setup, traffic.longest).run(traffic).answer))
    assert one.batches[0] == 4 * lane
    assert abs(off["tpot_ms"]) < 0.2
    assert abs(off["tokens_per_s_per_gpu"]) < 0.2


@pytest.mark.parametrize("drafts", ["eagle3,tokens=3", "mtp,tokens=1,acceptance=0.9", "ngram,tokens=4"])
@pytest.mark.parametrize("batch", [4, 48])
def test_drafts(drafts: str, batch: int) -> None:
    one = evaluate(DENSE, Split("H200", speculative=drafts), Question(1024, 200), [4096], [batch])
    traffic = synthetic(10 * batch, input_len=1024, output_len=200, concurrency=batch, spread=0.5)
    setup = Setup(max_num_batched_tokens=4096, speculative=of(drafts))
    off = _off(one, dict(Server.of(DENSE, "H200", setup, traffic.longest).run(traffic).answer))
    assert abs(off["tpot_ms"]) < 0.12
    assert abs(off["tokens_per_s_per_gpu"]) < 0.12


@pytest.mark.parametrize("engine", ["vllm:0.22.1", "sglang:0.5.14"])
def test_drafts_under_every_engine(engine: str) -> None:
    """Also where prompts and decodes do not meet in a step. What TensorRT-LLM's launches add, only runs know."""
    split = Split("H200", tp=8, engine=engine, speculative="method=mtp,tokens=3,acceptance=0.62")
    off = compare(Load("DeepSeek-V3", split, 8192, 16, 1024, 512)).percent
    assert abs(off["tpot_ms"]) < 8 and abs(off["ttft_ms"]) < 12


@pytest.mark.parametrize("engine", ["vllm:0.22.1", "sglang:0.5.14"])
def test_latent_prompts_of_ranks(engine: str) -> None:
    """Attention is a large part of these prompts."""
    off = compare(Load("DeepSeek-V3", Split("H200", ep=8, dp=8, engine=engine), 8192, 16, 2000, 500)).percent
    assert abs(off["tpot_ms"]) < 10 and abs(off["ttft_ms"]) < 15


@pytest.mark.parametrize("load_", [plan_pools.LOADS[1], plan_pools.LOADS[3]], ids=["tensor", "ranks"])
def test_pools_apart(load_: plan_pools.Load) -> None:
    planned, served, _ = plan_pools.compare(load_)
    off = {name: abs(planned[name] / served[name] - 1) for name in planned}
    assert off["tpot_ms"] < 0.05 and off["e2e_ms"] < 0.06 and off["ttft_ms"] < 0.15


def test_longer_prompts_come_later() -> None:
    found = [evaluate(DENSE, Split("H200"), Question(isl, 128), [8192], [1]) for isl in (200, 1000, 2000, 5000)]
    ttft = [float(one.columns["ttft_ms"][0]) for one in found]
    assert ttft == sorted(ttft)


@pytest.mark.slow
def test_an_assumed_acceptance_widens_by_the_range_of_the_model() -> None:
    """DeepSeek's heads are open from 0.4 to 0.85, GLM-4.5's from 0.5 to 0.75."""
    for name, low, high in (("DeepSeek-V3", 0.4, 0.85), ("GLM-4.5-Air", 0.5, 0.75)):
        space = Space(("B200",), tps=(8,), speculative=("mtp,tokens=2",), budgets=(8192,), batches=(4,))
        designs = plan(load(name), Question(512, 128), space).designs
        ends = [1 + rate + rate**2 for rate in (low, high)]
        assert designs.uncertain(0).drafts == pytest.approx(0.5 * math.log(ends[1] / ends[0]))


def test_a_space_offers_both() -> None:
    space = Space(("H200",), tps=(1, 4), dps=(1, 4), speculative=(None, "mtp,tokens=1"), budgets=(4096,), batches=(8,))
    found = plan(MOE, Question(512, 128, tpot_ms=30), space)
    rows = [found.designs.row(i) for i in range(len(found.designs))]
    assert {(row["tp"], row["dp"]) for row in rows} >= {(1, 1), (1, 4), (4, 1)}
    assert {row["drafts"] for row in rows} == {"none", "mtp,tokens=1"}
    assert all(row["gpus"] == row["tp"] * row["dp"] for row in rows)
    assert len(found.designs) + found.designs.crowded_out + 2 * len(found.designs.refused) == space.size(MOE)
    dense = plan(DENSE, Question(512, 128), Space(("H200",), tps=(1,), dps=(1, 4), budgets=(4096,), batches=(8,)))
    assert {dense.designs.row(i)["dp"] for i in range(len(dense.designs))} == {1}
