"""Disaggregated cases whose pools nothing gives: answered as public launches ran them."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.fabric import joined
from pipewave.models import load
from pipewave.models.expert_parallel import exchange_of
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.published_pools import Launch, Wanted, _decode, _launches, _prefill, _weights, near, send_ms
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.step import Engine, Runner, find_engine

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]}


def builtin(name: str) -> dict[str, Any]:
    return dict(json.loads((files("pipewave") / "data" / "models" / f"{name}.json").read_text("utf-8")))


CASE = {
    "model": "DeepSeek-R1",
    "gpu": "H100",
    "engine": "trtllm",
    "version": "0.8.1.post3",
    "tp": 16,
    "isl": 922,
    "osl": 100,
    "concurrency": 60,
    "requests": 120,
}
POOL = {"workers": 1, "tp": 16, "ep": 16}


def _answer(**more: Any) -> dict[str, Any]:
    return answer(from_dict(CASE | more))


def test_a_launch_is_named_in_the_notes() -> None:
    notes = _answer()["notes"]
    assert any("as launched in public for DeepSeek-R1 on H100" in note for note in notes)
    assert any("3 engines of tp 16" in note for note in notes)


def test_requests_wait_for_room_to_decode_before_their_first_token() -> None:
    """Three engines of one request each, and six requests in flight: each waits about as long as it decodes."""
    crowded = _answer(concurrency=6, requests=60, osl=200)
    decoding_ms = 199 * crowded["tpot_ms"]
    assert 0.7 * decoding_ms < crowded["ttft_ms"] < 1.3 * decoding_ms


def test_pools_that_are_given_are_taken_at_their_word() -> None:
    given = _answer(prefill=POOL, decode=POOL)
    assert not any("as launched in public" in note for note in given["notes"])
    assert given["tpot_ms"] > _answer()["tpot_ms"]  # one engine decodes what three shared


def test_a_dense_model_has_pools_that_match_its_rate() -> None:
    case = CASE | {"model": "Llama-3.1-8B", "tp": 1, "gpu": "H100", "disaggregated": True, "version": "1.2.0"}
    assert any("match the rate" in note for note in answer(from_dict(case))["notes"])


def test_output_maps_are_those_of_the_checkpoint_that_was_launched() -> None:
    """DeepSeek-R1-FP4-v2 holds them in NVFP4; a model in FP8 keeps its own."""
    folder = {**builtin("DeepSeek-R1"), "quantization_config": NVFP4}
    model = load(folder)
    launch = next(one for one in _launches() if one.of.get("output_maps"))
    kinds = {mixer.out.precision.dtype for layer in _weights(model, launch, "nvfp4").layers for mixer in layer.mixers}
    assert kinds == {"nvfp4"}
    assert _weights(load("DeepSeek-R1"), launch, "fp8_block") == load("DeepSeek-R1")


def test_tokens_of_prompts_are_gathered_by_adding_up() -> None:
    """SGLang's data-parallel prefill engines move the rows of all ranks twice, whole, where others gather and scatter."""
    parallel = Parallel(tp=1, pp=1, ep=8, dp=8)

    def moved(exchange: str) -> list[Any]:
        runner = Runner.of(Deployment(load("DeepSeek-R1"), parallel), find_gpu("B200"), _sglang(exchange))
        uses = runner.deployment.kernels(Batch((512,), (512,)))
        return [use.call for use in uses if use.name in ("moe_dispatch", "moe_combine")]

    added, gathered = moved("allreduce"), moved("allgather")
    assert {call.kernel for call in added} == {"all_reduce"}
    assert {call.bytes for call in added} == {8 * 512 * 7168 * 2}
    assert {call.bytes for call in gathered} == {8 * 512 * 7168 * 2}
    assert {call.kernel for call in gathered} == {"all_gather", "reduce_scatter"}


def _sglang(exchange: str) -> Engine:
    return find_engine("sglang:0.5.8").what_if(exchange=exchange_of(exchange))


def test_launches_say_how_their_prefill_engines_run() -> None:
    """A prompt's chunk and exchange are the prefill engines' own, and no product is assumed where a launch names none."""
    launch = next(one for one in _launches() if one.of["gpu"] == "B200" and one.flights == (1024, 2048, 4096))
    assert (launch.prompt_tokens, launch.of["prompt_tokens"]) == (4096, 32768)
    setup = Setup(engine="sglang:0.5.8", gemm_backend="flashinfer_trtllm")
    prefill, decode = _prefill(setup, launch, load("DeepSeek-R1")), _decode(setup, launch, load("DeepSeek-R1"), 1024)
    assert (prefill.exchange, decode.exchange, prefill.gemm_backend) == ("allreduce", None, "flashinfer_trtllm")
    plain = next(one for one in _launches() if one.of.get("plain") and one.prefill.dp > 1)
    assert _prefill(setup, plain, load("DeepSeek-R1")).gemm_backend is None


def fabric(launch: Launch) -> tuple[str, str]:
    crossed = "nvlink" if launch.gpus <= joined(find_gpu(launch.of["gpu"])) else "network"
    return crossed, "data_parallel" if launch.prefill.dp > 1 else "tensor"


def test_only_those_who_send_in_the_scheduler_wait_for_it() -> None:
    by_gpu = {
        (one.of["gpu"], one.prefill.dp > 1): send_ms("sglang", *fabric(one))
        for one in _launches()
        if one.of["engine"] == "sglang"
    }
    assert by_gpu["H200", False] == by_gpu["H100", False]
    assert 0.0 < by_gpu["H200", False] < by_gpu["GB200", False] < by_gpu["GB200", True] < by_gpu["B200", True]
    assert not any(send_ms("trtllm", *fabric(one)) for one in _launches())


def test_writes_over_nvlink_cross_no_network() -> None:
    """32 ranks of a GB200 lie on eight hosts that one NVLink joins; DeepEP's calls still say so."""
    model, split = load("DeepSeek-R1"), Parallel(1, 1, 32, 32)
    calls = {}
    for word in ("flashinfer_nvlink_one_sided", "deepep"):
        engine = find_engine("trtllm").what_if(exchange=exchange_of(word))
        runner = Runner.of(Deployment(model, split), find_gpu("GB200"), engine)
        uses = runner.deployment.kernels(Batch((1,) * 8, (100,) * 8))
        calls[word] = next(use.call for use in uses if use.name == "moe_dispatch")
    assert [call.nodes for call in calls.values()] == [1, 8]  # type: ignore[attr-defined]


def test_one_graph_of_a_size_makes_decode_steps_alike() -> None:
    """Few requests take nearly as long as hundreds where the launch captured one graph; experts see no padding."""
    shape = {"tp": 1, "dp": 16, "ep": 16, "engine": "sglang:0.5.3", "exchange": "deepep_low_latency"}
    plain, alike = (
        Server.of("DeepSeek-R1", "GB200", Setup(**shape, **graphs), 2048)  # type: ignore[arg-type]
        for graphs in ({}, {"graph_limit": 768, "graph_step": 768})
    )
    few, many = [(4, 4 * 1000, ())] * 16, [(256, 256 * 1000, ())] * 16
    assert alike.table.group_seconds(few) > 1.3 * plain.table.group_seconds(few)
    assert plain.table.group_seconds(many) - plain.table.group_seconds(few) > alike.table.group_seconds(
        many
    ) - alike.table.group_seconds(few)
    padded = alike.table.engine.what_if(masks_padding=False)
    assert alike.table.under(padded).group_seconds(few) > 1.2 * alike.table.group_seconds(few)


def test_runs_that_kept_no_version_were_launched_as_at_their_time() -> None:
    facts = DeploymentFacts(gpu="GB200", model_type="deepseek_v3", dtype="fp8_block", experts=True)
    wanted = Wanted(facts, 256, "sglang", "", (7373.0, 922.0), 1024, 72)
    assert near(wanted)[0].of.get("only_graph") == 768
    assert near(replace(wanted, version="0.5.8.post1"))[0].of.get("only_graph") is None
