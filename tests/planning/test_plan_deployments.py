"""Data-parallel attention and drafts in the closed form of `plan`, against the simulator."""

from __future__ import annotations

import pytest

from pipewave.models import load
from pipewave.planning import Question, Space, Split, plan
from pipewave.planning.steady import Evaluated, evaluate
from pipewave.serving.run import Server
from pipewave.serving.setup import Setup
from pipewave.serving.speculative import of
from pipewave.serving.traffic import synthetic

MOE, DENSE = load("Qwen3-30B-A3B"), load("Llama-3.1-8B")


def _off(one: Evaluated, answer: dict[str, float]) -> dict[str, float]:
    names = {
        "tpot_ms": "tpot_mean_ms",
        "ttft_ms": "ttft_mean_ms",
        "tokens_per_s_per_gpu": "output_tokens_per_s_per_gpu",
    }
    return {name: float(one.columns[name][0]) / answer[theirs] - 1 for name, theirs in names.items()}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
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


def test_a_space_offers_both() -> None:
    space = Space(
        ("H200",), tps=(1, 4), dps=(1, 4), speculative=(None, "mtp,tokens=1"), budgets=(4096,), batches=(8, 64)
    )
    found = plan(MOE, Question(512, 128, tpot_ms=30), space)
    rows = [found.designs.row(i) for i in range(len(found.designs))]
    assert {(row["tp"], row["dp"]) for row in rows} >= {(1, 1), (1, 4), (4, 1)}
    assert {row["drafts"] for row in rows} == {"none", "mtp,tokens=1"}
    assert all(row["gpus"] == row["tp"] * row["dp"] for row in rows)
    assert len(found.designs) + found.designs.crowded_out + 2 * len(found.designs.refused) == space.size(MOE)
    dense = plan(DENSE, Question(512, 128), Space(("H200",), tps=(1,), dps=(1, 4), budgets=(4096,), batches=(8,)))
    assert {dense.designs.row(i)["dp"] for i in range(len(dense.designs))} == {1}
