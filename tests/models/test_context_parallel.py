"""Decode context parallelism: ranks that would hold the same keys part the tokens of each cache between them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import pipewave as pw
from pipewave.calls.families import Attention, Mla
from pipewave.cli import run as command_line
from pipewave.errors import BadInput, CannotShard
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel, cache_bytes, copies_of_keys, kv_bytes_per_token
from pipewave.step import Runner, find_engine

DECODE = Batch.of([1] * 8, [4096, 4096, 5000, 1, 3, 900, 4096, 17])
EXCHANGED = {"dcp_query_all_gather", "dcp_lse_all_gather", "dcp_rescale", "dcp_reduce_scatter"}


def kernels(model: str, batch: Batch, tp: int, dcp: int) -> dict[str, Any]:
    return {use.name: use.call for use in Deployment(load(model), Parallel(tp, dcp=dcp)).kernels(batch)}


def test_ranks_that_hold_the_same_keys_may_part_them() -> None:
    held = {"DeepSeek-V3": 8, "Qwen3-235B-A22B": 2, "Llama-3.1-70B": 1, "Gemma-3-27B": 1, "DeepSeek-V3.2": 1}
    assert {name: copies_of_keys(load(name), 8) for name in held} == held
    for name, dcp in (("DeepSeek-V3", 3), ("Llama-3.1-70B", 2), ("Gemma-3-27B", 2), ("Qwen3-Next-80B-A3B", 2)):
        with pytest.raises(CannotShard, match=f"dcp = {dcp}: must divide the ranks that part a cache"):
            Parallel(8, dcp=dcp).check(load(name))


@pytest.mark.parametrize(("model", "dcp"), [("DeepSeek-V3", 8), ("DeepSeek-V3", 2), ("Qwen3-235B-A22B", 2)])
def test_a_rank_holds_its_part_of_a_cache_and_attends_to_it_with_all_heads(model: str, dcp: int) -> None:
    spec, whole, parted = load(model), Parallel(8), Parallel(8, dcp=dcp)
    assert kv_bytes_per_token(spec, parted) * dcp == kv_bytes_per_token(spec, whole)
    assert cache_bytes(spec, 4096, parted) * dcp == cache_bytes(spec, 4096, whole)
    alone, cut = (kernels(model, DECODE, 8, each) for each in (1, dcp))
    name = "mla_generation" if "mla_generation" in alone else "attention"
    one, other = alone[name], cut[name]
    assert isinstance(one, Attention | Mla) and other.heads == dcp * one.heads
    assert other.kv_lens == tuple(-(-length // dcp) for length in one.kv_lens)
    assert set(cut) - set(alone) == EXCHANGED
    sizes = 2 * len(DECODE.q_lens) * other.heads
    query, out = (576, 512) if name == "mla_generation" else (128, 128)
    assert (cut["dcp_query_all_gather"].bytes, cut["dcp_reduce_scatter"].bytes) == (sizes * query, sizes * out)
    assert cut["dcp_query_all_gather"].world == dcp


def test_prompts_are_as_without() -> None:
    prompt = Batch.of([512, 2048], [512, 2048])
    assert kernels("DeepSeek-V3", prompt, 8, 8) == kernels("DeepSeek-V3", prompt, 8, 1)


def test_long_contexts_gain_and_short_ones_do_not() -> None:
    deployments = [Deployment(load("DeepSeek-V3"), Parallel(8, dcp=dcp)) for dcp in (1, 8)]
    alone, parted = (Runner.of(one, find("H200"), find_engine("vllm:0.22.1")) for one in deployments)
    batches = [Batch.of([1] * 32, [length] * 32) for length in (64, 100_000)]
    (short, long), (short_parted, long_parted) = (one.steps(batches).total_us for one in (alone, parted))
    assert short_parted > short and long_parted < long


def test_engines_that_are_not_known_to_part_caches_refuse() -> None:
    for engine in ("sglang:0.5.14", "trtllm:1.2.0", "vllm:0.11.0"):
        with pytest.raises(BadInput, match=r"dcp = 2: .* is not known to part caches"):
            Runner.of(Deployment(load("DeepSeek-V3"), Parallel(8, dcp=2)), find("H200"), find_engine(engine))


def test_a_pasted_command_an_option_and_python_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    load_of = ["--gpu", "H200", "--concurrency", "4", "--requests", "8", "--input-len", "900", "--output-len", "16"]
    pasted = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --decode-context-parallel-size 8"
    model = ["--model", "DeepSeek-V3", "--engine", "vllm:0.22.1", "--tp", "8"]
    found = []
    for words in (["--from-command", pasted, "--engine", "vllm:0.22.1"], [*model, "--dcp", "8"]):
        assert command_line(["serve", *words, *load_of, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    more = {"concurrency": 4, "requests": 8, "input_len": 900, "output_len": 16}
    python = pw.serve("DeepSeek-V3", "H200", engine="vllm:0.22.1", tp=8, dcp=8, **more)
    assert found[0]["tpot_mean_ms"] == found[1]["tpot_mean_ms"] == pytest.approx(python.tpot_ms, abs=1e-3)
    assert found[1]["kv_tokens"] > 7 * pw.serve("DeepSeek-V3", "H200", engine="vllm:0.22.1", tp=8, **more).kv_tokens
