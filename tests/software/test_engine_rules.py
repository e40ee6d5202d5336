"""Rules of engines: what a version does on a card is what its source says, and what a user chose stays."""

from __future__ import annotations

import dataclasses

import pytest

from pipewave.errors import BadInput
from pipewave.gpus import all_gpus, find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.software import engine_rules
from pipewave.software.engine import Engine, names_known_version, numbered, resolve
from pipewave.software.engine import find as find_engine
from pipewave.software.engine_parts import DeploymentFacts, StateCheckpoints, StaticReserve
from pipewave.software.stacks import version_of
from pipewave.step import Runner
from pipewave.step.memory import DRIVER_GIB, budget
from pipewave.step.overlap import fused_us

NAMES = engine_rules.NAMES


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def on(name: str, gpu: str, tp: int = 1, model: str = "Llama-3.1-8B") -> Engine:
    return find_engine(name).on(Deployment(load(model), Parallel(tp)).facts(find(gpu)))


@pytest.mark.parametrize(
    ("written", "name", "version"),
    [
        ("vllm:0.19.0", "vllm", "0.19.0"),
        ("vllm-0.19.0", "vllm", "0.19.0"),
        ("vLLM==0.19.0", "vllm", "0.19.0"),
        ("TensorRT-LLM 1.3.0rc10", "trtllm", "1.3.0rc10"),
        ("sglang:0.5.8.post1", "sglang", "0.5.8.post1"),
        ("vllm:99", "vllm", "99"),
    ],
)
def test_an_engine_is_read_as_people_write_it(written: str, name: str, version: str) -> None:
    assert (find_engine(written).name, find_engine(written).version) == (name, version)
    assert names_known_version(written) == (version != "99")
    assert not names_known_version(name)


@pytest.mark.parametrize("written", ["vllm:0.27.x", "vLLM==0.27.*", "vllm-0.27.X"])
def test_a_line_of_versions_is_its_newest(written: str) -> None:
    line = [each for each in engine_rules.read("vllm")["known_versions"] if each.startswith("0.27.")]
    assert len(line) > 1 and find_engine(written).version == line[-1] and names_known_version(written)
    assert find_engine("sglang:0.5.5.x").version == "0.5.5.post3" and find_engine("trtllm:1.x").version == "1.3.0"
    assert find_engine("vllm:0.6.x").version == "0.6"


@pytest.mark.parametrize("version", ["99.0.x", "0.27.foo", "0.27.max", "0.2.x", "0.22.1.a"])
def test_a_line_of_which_no_version_is_known_is_refused(version: str) -> None:
    with pytest.raises(BadInput, match=r"vllm:.*: not known; the newest is 0") as told:
        find_engine(f"vllm:{version}")
    assert told.value.field == "engine" and version in str(told.value)


@pytest.mark.parametrize(
    "version", ["0.22.1.post1", "0.22.1rc2", "0.22.1.dev5", "0.5.1-rc0.pre3", "1.1.0-dev.2", "0.22"]
)
def test_candidates_and_builds_are_versions_of_their_own(version: str) -> None:
    assert find_engine(f"vllm:{version}").version == version


@pytest.mark.parametrize("written", ["vllm:x", "vlm", "vlm:0.19.0", ""])
def test_a_version_that_cannot_be_read_is_refused_as_an_unknown_engine_is(written: str) -> None:
    with pytest.raises(BadInput, match=r"alone or with its version \(vllm:"):
        find_engine(written)


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_names_its_source_and_sets_fields_of_their_types(name: str) -> None:
    document = engine_rules.read(name)
    assert all(rule["source"] for rule in (*document["rules"], *document["kernels"]))
    for rules in (
        engine_rules._cases(name, "rules"),
        engine_rules._cases(name, "kernels"),
    ):  # read: every value has its type
        assert rules and all(len(rule.source) > 10 for rule in rules)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gpu", [gpu.name for gpu in all_gpus()])
def test_every_engine_resolves_on_every_card(name: str, gpu: str) -> None:
    for tp in (1, 8):
        engine = on(name, gpu, tp)
        assert 0.3 < engine.memory.memory_share < 1
        assert engine.graphs.padded(engine.graphs.graph_limit) == engine.graphs.graph_limit
        assert engine.scheduler.max_batched_tokens <= engine.scheduler.prompt_tokens


@pytest.mark.parametrize(
    ("version", "gpu", "tp", "share", "chunk", "graphs"),
    [
        # By hand from server_args.py: 1 - (512 + 1.5 chunk + 2 graphs + 128 GPUs, at least 10 GiB) / MiB of the card.
        ("0.5.14", "H100", 1, 0.835, 8192, 256),
        ("0.5.14", "H200", 8, 0.897, 8192, 512),
        ("0.5.14", "B200", 8, 0.852, 16384, 512),
        ("0.5.14", "L40S", 1, 0.851, 4096, 32),
        ("0.5.1.post1", "H100", 1, 0.874, 8192, 160),
        ("0.5.1.post1", "H200", 8, 0.886, 8192, 256),
    ],
)
def test_sglang_works_out_its_memory_share(
    version: str, gpu: str, tp: int, share: float, chunk: int, graphs: int
) -> None:
    engine = on(f"sglang:{version}", gpu, tp)
    assert engine.memory.memory_share == pytest.approx(share, abs=0.002)
    assert (engine.scheduler.max_batched_tokens, engine.graphs.graph_limit) == (chunk, graphs)


def test_vllm_changes_its_defaults_with_the_card_and_the_version() -> None:
    large, small = on("vllm", "H100"), on("vllm", "L40S")
    assert (large.scheduler.max_batched_tokens, large.scheduler.max_requests) == (8192, 1024)
    assert (small.scheduler.max_batched_tokens, small.scheduler.max_requests) == (2048, 256)
    assert on("vllm", "A100").scheduler.max_batched_tokens == 2048  # 80 GB, but slowed down by more
    assert (on("vllm:0.19.0", "H100").memory.memory_share, large.memory.memory_share) == (0.9, 0.92)
    assert not on("vllm:0.12.0", "H100").scheduler.overlaps


def test_a_choice_by_hand_outlives_every_rule() -> None:
    chosen = find_engine("sglang").what_if(memory_share=0.7, max_batched_tokens=1000)
    engine = chosen.on(DeploymentFacts(gib=45.0, mma="mma"))
    assert (engine.memory.memory_share, engine.scheduler.max_batched_tokens) == (0.7, 1000)
    assert engine.graphs.graph_limit == 32
    few = find_engine("vllm").what_if(max_requests=4).on(DeploymentFacts())
    assert few.graphs.graph_limit == 8  # twice max_num_seqs


def test_versions_are_read_as_people_write_them() -> None:
    assert numbered("v0.5.8.post1-cu126") == "0.5.8.post1-cu126"
    assert numbered("nightly-dev") == numbered(None) == ""
    assert find_engine("sglang:nightly") == find_engine("sglang")
    assert find_engine("sglang:0.5.9").version == "0.5.9"
    with pytest.raises(BadInput, match="trtllm"):
        find_engine("tgi")


@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_another_version_are_named_and_those_of_the_own_are_not(name: str) -> None:
    rows = find_engine(name).stack.partition("-")[2]
    assert find_engine(f"{name}:{rows}").substituted == ""
    for version in ("0.1.2", "99.0"):
        said = find_engine(f"{name}:{version}").substituted
        assert f"{name}-{version}" in said
        assert rows in said


@pytest.mark.parametrize("name", NAMES)
def test_memory_parts_add_up_under_every_law(name: str) -> None:
    deployment, gpu = Deployment(load("DeepSeek-R1"), Parallel(8)), find("H200")
    found = budget(deployment, gpu, find_engine(name))
    parts = found.weights + found.activations + found.engine + found.kv + found.free
    assert parts == pytest.approx(found.total) == pytest.approx(gpu.dram_gib - DRIVER_GIB)


def test_sglang_keeps_activations_out_of_its_static_share() -> None:
    deployment = Deployment(load("DeepSeek-R1"), Parallel(8))
    found = budget(deployment, find("H200"), find_engine("sglang").what_if(memory_share=0.82))
    # (memory before loading) × share − weights: 137.3 GiB in a log of eight H200s, 70,272 bytes a token.
    assert found.kv == pytest.approx(137.3 * 0.82 - found.weights, abs=0.3)
    assert found.kv_tokens == pytest.approx(found.kv * 2**30 / 70272, rel=1e-3)


def test_resolving_is_a_function_of_its_arguments() -> None:
    assert resolve("vllm", "0.19.0", DeploymentFacts(tp=2)) is resolve("vllm", "0.19.0", DeploymentFacts(tp=2))


def deployment_of_experts() -> Deployment:
    return Deployment(load("gpt-oss-120b"), Parallel(2))


def test_a_backend_of_experts_is_chosen_by_name_or_refused() -> None:
    runner = Runner.of(deployment_of_experts(), find("B200"), find_engine("vllm"))
    batch = runner.batch([1] * 32, [1000] * 32)
    chosen = {
        name: float(
            Runner.of(deployment_of_experts(), find("B200"), find_engine("vllm").what_if(moe_backend=name))
            .steps([batch])
            .total_us[0]
        )
        for name in ("flashinfer_trtllm_mxfp8", "flashinfer_trtllm_bf16", "marlin")
    }
    assert (
        float(runner.steps([batch]).total_us[0]) == chosen["flashinfer_trtllm_mxfp8"] < chosen["flashinfer_trtllm_bf16"]
    )
    with pytest.raises(BadInput, match="marlin"):
        Runner.of(deployment_of_experts(), find("B200"), find_engine("vllm").what_if(moe_backend="deepep"))


def test_four_bit_experts_on_hopper_read_four_bits_in_both_engines() -> None:
    # SGLang's own rows are of its fallback, which expands weights to 16 bits: it takes triton_kernels as vLLM can.
    step = {}
    for name, backend in (("sglang", ""), ("vllm", "triton")):
        runner = Runner.of(deployment_of_experts(), find("H200"), find_engine(name).what_if(moe_backend=backend))
        step[name] = float(runner.steps([runner.batch([1] * 32, [1000] * 32)]).families["fused_moe"][0])
    assert step["sglang"] == pytest.approx(step["vllm"], rel=1e-6)


@pytest.mark.parametrize(("engine", "gpu"), [("sglang", "MI355X"), ("vllm", "MI300X"), ("vllm", "H200")])
def test_weights_of_a_type_that_a_gpu_lacks_run_in_one_it_has_and_say_so(engine: str, gpu: str) -> None:
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    model, found = load({**LLAMA, "quantization_config": quantised}), find(gpu)
    runner = Runner.of(Deployment(model, Parallel(4)), found, find_engine(engine))
    steps = runner.steps([runner.batch([1] * 8, [1000] * 8)])
    layers = 32 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336) * 0.5 / 4  # bytes at four bits, by hand
    assert steps.total_us[0] > layers / found.dram_peak_gbps * 1e-3
    assert any("NVFP4 answered as MXFP4" in note for note in steps.notes)


@pytest.mark.parametrize(
    ("model_type", "first"),
    [("deepseek_v3", "0.5.4"), ("qwen3_moe", "0.5.8"), ("qwen3_5_moe_text", "0.5.10"), ("minimax_m2", "")],
)
def test_norms_are_fused_into_all_reduces_for_models_that_a_version_names(model_type: str, first: str) -> None:
    facts = DeploymentFacts(gpu="B200", mma="tcgen05", gib=178.0, tp=4, experts=True, model_type=model_type)
    versions = ("0.5.3", "0.5.4", "0.5.6", "0.5.8", "0.5.9", "0.5.10", "0.5.14")
    fused = [bool(engine_rules.fields("sglang", version, facts).get("fused_norm_mib")) for version in versions]
    assert fused == [bool(first) and version_of(version) >= version_of(first) for version in versions]
    assert not engine_rules.fields("sglang", "0.5.14", dataclasses.replace(facts, dp=4)).get("fused_norm_mib")


@pytest.mark.parametrize(("dp", "first"), [(1, "0.17.0"), (4, "0.21.0")])
def test_vllm_fuses_norms_by_default_since_017_and_beside_data_parallel_ranks_since_021(dp: int, first: str) -> None:
    facts = DeploymentFacts(gpu="B200", mma="tcgen05", tp=4, dp=dp, hidden=8192)
    versions = ("0.11.1", "0.14.0", "0.16.0", "0.17.0", "0.20.0", "0.21.0", "0.24.0")
    fused = [bool(engine_rules.fields("vllm", version, facts).get("fused_norm_mib")) for version in versions]
    assert fused == [version_of(version) >= version_of(first) for version in versions]


def test_vllm_captures_larger_graphs_for_gpt_oss() -> None:
    facts = DeploymentFacts(gpu="B200", mma="tcgen05", model_type="gpt_oss")
    limits = [engine_rules.fields("vllm", version, facts)["graph_limit"] for version in ("0.11.0", "0.11.1", "0.22.1")]
    assert limits == [992, 1024, 1024]


@pytest.mark.parametrize("model", ["Qwen3.5-35B-A3B", "Qwen3-32B"])
def test_an_fp8_cache_slows_no_prompt_of_sglang_on_blackwell(model: str) -> None:
    """Its kernel there casts queries to FP8, too; with heads of 256 Triton's took seven times as long."""
    took = {}
    for version, cache in (("0.5.9", None), ("0.5.9", "fp8"), ("0.5.5", "fp8")):
        runner = Runner.of(Deployment(load(model), Parallel(1), cache), find("B200"), find_engine(f"sglang:{version}"))
        took[version, cache] = float(runner.steps([runner.batch([7373], [7373])]).families["attention"][0])
    assert took["0.5.9", "fp8"] == pytest.approx(took["0.5.9", None], rel=0.1)
    assert took["0.5.5", "fp8"] > 1.2 * took["0.5.9", "fp8"]


def test_fused_norms_and_shared_experts_only_ever_save_time() -> None:
    deployment = Deployment(load("DeepSeek-R1"), Parallel(8))
    alone = {"fused_norm_mib": 0.0, "shared_experts": "added"}
    for name, gpu in (("vllm", "B200"), ("sglang", "B200"), ("sglang", "H200"), ("trtllm", "B200")):
        plain = Runner.of(deployment, find(gpu), find_engine(name).what_if(**alone))
        batches = [plain.batch([1] * n, [2000] * n) for n in (1, 16, 128)]
        fused = Runner.of(deployment, find(gpu), find_engine(name)).steps(batches)
        assert (fused.total_us < plain.steps(batches).total_us).all(), (name, gpu)
        for column in (fused.families, fused.gaps):
            assert all(len(values) == len(batches) for values in column.values())
        parts = sum(fused.families.values()) + sum(fused.gaps.values())
        assert parts == pytest.approx(fused.total_us, rel=1e-6)


def test_a_message_takes_longer_the_more_ranks_and_bytes() -> None:
    gpu = find("B200")
    assert fused_us(2**16, 2, gpu) < fused_us(2**16, 8, gpu) < fused_us(2**20, 8, gpu)
    assert fused_us(2**20, 8, gpu) > 7 * 2**20 / (1e3 * gpu.link_gbps)  # no faster than the link


def test_a_host_that_does_not_overlap_adds_its_time() -> None:
    load_of = Deployment(load("Llama-3.1-8B"))
    ahead, behind = (
        Runner.of(load_of, find("H100"), find_engine("vllm").what_if(overlaps=overlaps)) for overlaps in (True, False)
    )
    batch = ahead.batch([1] * 64, [4000] * 64)
    added = behind.steps([batch]).total_us - ahead.steps([batch]).total_us
    assert 0.9 * ahead.engine.host.step_us < float(added[0]) <= ahead.engine.host.step_us


def test_prompts_replay_graphs_in_pieces_up_to_a_limit() -> None:
    new, old = find_engine("sglang:0.5.14"), find_engine("sglang:0.5.9")
    assert new.graphs.piecewise_limit >= new.scheduler.max_batched_tokens > old.graphs.piecewise_limit == 0
    assert find_engine("vllm").graphs.piecewise_limit == find_engine("vllm").graphs.graph_limit
    kind = {"graph": False, "nodes": 300.0, "launches": 400.0, "layers": 32.0}
    inside, beyond = (
        new.gaps_of(rows=rows, **kind) for rows in (new.graphs.piecewise_limit, new.graphs.piecewise_limit + 1)
    )
    assert inside.between_us < beyond.between_us
    assert inside.beside_us == pytest.approx(new.host.step_us + 32 * new.host.layer_us)


@pytest.mark.parametrize(
    ("version", "model", "fuses"),
    [
        # modeling_qwen3.py norms in a layer of its own; modeling_llama.py joins both from 1.0.0rc5 on, above a width of 4,096.
        ("1.2.0", "Qwen3-32B", False),
        ("1.2.0", "Llama-3.1-8B", False),
        ("1.2.0", "Llama-3.1-70B", True),
        ("1.0.0rc3", "Llama-3.1-70B", False),
        ("0.12.0", "Mixtral-8x7B", False),
        ("1.2.0", "gpt-oss-120b", True),
        ("1.2.0", "DeepSeek-V3", True),
    ],
)
def test_tensorrt_llm_joins_reductions_and_norms_of_those_models_that_its_source_joins(
    version: str, model: str, fuses: bool
) -> None:
    engine, deployment = find_engine(f"trtllm:{version}"), Deployment(load(model), Parallel(8))
    plain = Runner.of(deployment, find("H200"), engine.what_if(fused_norm_mib=0.0))
    batch = plain.batch([1] * 8, [1000] * 8)
    saved = plain.steps([batch]).total_us - Runner.of(deployment, find("H200"), engine).steps([batch]).total_us
    assert (float(saved[0]) > 0.0) == fuses


def test_a_rule_of_a_candidate_holds_for_its_release_and_one_of_a_release_for_its_candidates() -> None:
    """A version of two numbers is a release, too."""
    facts = DeploymentFacts(tp=2, model_type="llama", hidden=8192)
    fused = {version: engine_rules.fields("trtllm", version, facts).get("fused_norm_mib", 0)
             for version in ("0.21.0", "1.0.0rc4", "1.0.0rc5", "1.0.0", "1.0", "1.1.0rc1")}  # fmt: skip
    assert fused == {"0.21.0": 0, "1.0.0rc4": 0, "1.0.0rc5": 8, "1.0.0": 8, "1.0": 8, "1.1.0rc1": 8}
    hybrid = DeploymentFacts(states="gdn")
    saved = {version: engine_rules.fields("trtllm", version, hybrid)["states"].places
             for version in ("1.3.0rc20", "1.3.0", "1.3")}  # fmt: skip
    assert saved == dict.fromkeys(("1.3.0rc20", "1.3.0", "1.3"), "blocks")


def test_experts_in_python_keep_the_host_busy() -> None:
    deployment = Deployment(load("gpt-oss-120b"), Parallel(8))
    prompt = {}
    for gpu in ("H200", "B200"):
        runner = Runner.of(deployment, find(gpu), find_engine("trtllm"))
        prompt[gpu] = float(runner.steps([runner.batch([500], [500])]).total_us[0])
    matmuls_us = 37 * runner.engine.host.launch_us * 36  # in each of 36 layers
    assert prompt["H200"] > matmuls_us > prompt["B200"]


def test_a_rule_changes_only_the_parts_of_states_and_reserve_that_it_names() -> None:
    setting = DeploymentFacts(model_type="qwen3_next", states="gdn")
    assert engine_rules.fields("vllm", "0.14.0", setting)["states"] == StateCheckpoints(element_bytes=2)
    both = StateCheckpoints(places="steps", opt_in=True, element_bytes=2)
    assert engine_rules.fields("vllm", "0.15.0", setting)["states"] == both
    hopper, small = DeploymentFacts(gib=80.0), DeploymentFacts(gib=24.0)
    common = StaticReserve(fixed_mib=512, chunk_token_mib=1.5, graph_request_mib=2, rank_mib=128, dp_request_mib=3)
    assert engine_rules.fields("sglang", "0.5.9", small)["reserve"] == common
    larger = dataclasses.replace(common, dp_request_mib=4.5, least_mib=10240)
    assert engine_rules.fields("sglang", "0.5.9", hopper)["reserve"] == larger
    assert engine_rules.fields("sglang", "0.5.1", hopper)["reserve"] == StaticReserve(fixed_mib=9728, rank_mib=512)


@pytest.mark.parametrize("name", NAMES)
def test_only_a_version_with_rules_or_rows_of_its_own_narrows_an_interval(name: str) -> None:
    default = find_engine(name).version
    assert names_known_version(f"{name}:{default}")
    assert not any(names_known_version(f"{name}:{version}") for version in ("99.0.0", "0.1.2", f"{default}9"))
    assert "interval as of no named version" in find_engine(f"{name}:99.0.0").substituted
