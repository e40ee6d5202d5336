"""Configs become models: known parameter totals, quantisation sections, and nothing dropped silently."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import PUBLISHED, expand

from pipewave.errors import BadFile, BadInput, MissingField, PipewaveError, UnknownModel, UnsupportedModel
from pipewave.models import Mla, Moe, load, names
from pipewave.models.config import parse
from pipewave.models.quant import matches, read
from pipewave.models.shard import ALONE, Parallel, active_parameters, parameters, stage_bytes, weight_bytes

# Parameter totals of the published checkpoints (sum of tensor sizes in their safetensors index or model card).
TOTALS = {
    "Llama-2-7B": 6_738_415_616,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Mixtral-8x7B": 46_702_792_704,
    "Mixtral-8x22B": 140_630_071_296,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V2": 235_741_434_880,
    "DeepSeek-V3": 671_026_419_200,
    "Gemma-2-9B": 9_241_705_984,
    "Gemma-2-27B": 27_227_128_320,
    "Gemma-3-1B": 999_885_952,
    "Gemma-3-4B": 4_300_079_472,
    "Gemma-3-27B": 27_432_406_640,
    "Phi-2": 2_779_683_840,
    "Phi-3-mini-4k": 3_821_079_552,
    "Phi-4": 14_659_507_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "GLM-4.5-Air": 106_852_251_264,
    "Command-R": 34_980_831_232,
    "Command-R-Plus": 103_810_674_688,
    "Command-R7B": 8_028_033_024,
    "OLMoE-1B-7B": 6_919_161_856,
    "Phi-3.5-MoE": 41_873_153_344,
    "Mistral-Small-3.1-24B": 24_011_361_280,
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
SMALL = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_parameters_match_published_checkpoints(name: str, total: int) -> None:
    assert parameters(load(name)) == total


def test_active_parameters_of_moe_models() -> None:
    assert active_parameters(load("Qwen3-30B-A3B")) == pytest.approx(3.35e9, rel=0.01)
    assert active_parameters(load("DeepSeek-V3")) == pytest.approx(37.6e9, rel=0.01)
    assert active_parameters(load("Llama-3.1-8B")) == parameters(load("Llama-3.1-8B"))


@pytest.mark.parametrize("name", names())
def test_bytes_of_an_unquantised_model_are_two_a_parameter(name: str) -> None:
    model = load(name)
    if any(not linear.precision.full for linear in model.linears()):
        pytest.skip("quantised")
    if model.is_moe and any(isinstance(x.ffn, Moe) and not x.ffn.precision.full for x in model.layers):
        pytest.skip("quantised experts")
    # Engines pad the vocabulary to 64 rows; nothing else may differ.
    assert weight_bytes(model) == pytest.approx(2 * parameters(model), rel=1e-3)
    assert weight_bytes(model) >= 2 * parameters(model)


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-20b"])
def test_shards_hold_the_model_between_them(name: str) -> None:
    model = load(name)
    for parallel in (Parallel(2), Parallel(2, 2), Parallel(4, 1, 2)):
        if parallel.ep > 1 and not model.is_moe:
            continue
        held = sum(stage_bytes(model, parallel, stage) for stage in range(parallel.pp)) * parallel.tp
        assert held >= weight_bytes(model) * 0.999
        assert held <= weight_bytes(model) * 1.2  # what every rank repeats: norms, router, latent projections


def test_stages_cover_all_layers_once() -> None:
    for pp in range(1, 9):
        stages = Parallel(1, pp).stages(61)
        assert [first for first, _ in stages[1:]] == [last for _, last in stages[:-1]]
        assert (stages[0][0], stages[-1][1]) == (0, 61)
        assert max(b - a for a, b in stages) - min(b - a for a, b in stages) <= 1


def test_layer_kinds_follow_the_config() -> None:
    gemma, gpt, qwen, deepseek = (load(n) for n in ("Gemma-3-27B", "gpt-oss-20b", "Qwen2.5-14B", "DeepSeek-V3"))
    assert [layer.mixer.window for layer in gemma.layers[:7]] == [1024] * 5 + [None, 1024]
    assert [layer.mixer.window for layer in gpt.layers[:4]] == [128, None, 128, None]
    assert all(layer.mixer.window is None for layer in qwen.layers)
    assert isinstance(deepseek.layers[0].mixer, Mla)
    assert [isinstance(layer.ffn, Moe) for layer in deepseek.layers[:5]] == [False, False, False, True, True]


def test_a_window_that_is_stated_twice_must_agree() -> None:
    gemma = LLAMA | {"model_type": "gemma2", "sliding_window": 64}
    assert parse(gemma | {"sliding_window_size": 64}, "x") == parse(gemma, "x")
    with pytest.raises(BadInput, match="must be sliding_window = 64"):
        parse(gemma | {"sliding_window_size": 32}, "x")


def test_only_the_block_of_a_family_that_is_modelled_passes() -> None:
    cohere = LLAMA | {"model_type": "cohere2", "sliding_window": 64, "use_parallel_block": True}
    assert [layer.mixer.window for layer in parse(cohere, "x").layers] == [64, 64, 64, None]
    with pytest.raises(UnsupportedModel, match="only True is modelled"):
        parse(cohere | {"use_parallel_block": False}, "x")


def test_wide_weights_of_narrow_products_are_told() -> None:
    eight = LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 128}}
    assert "twice as fast" in parse(eight, "x").notes[0]


def test_a_type_never_seen_is_the_sum_of_the_parts_its_fields_name() -> None:
    new = parse(LLAMA | {"model_type": "brand_new"}, "x")
    assert (new.layers, parameters(new)) == (parse(LLAMA, "x").layers, parameters(parse(LLAMA, "x")))
    assert "brand_new" in new.notes[0]
    sparse = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    routed = parse(LLAMA | {"model_type": "brand_new"} | sparse, "x")
    assert all(layer.moes[0].experts == 8 for layer in routed.layers)


def test_unknown_field_that_may_matter_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="mamba_layers") as caught:
        parse(LLAMA | {"mamba_layers": 3}, "x")
    assert caught.value.field == "mamba_layers"
    assert parse(LLAMA | {"mamba_layers": 3}, "x", ignore=("mamba_layers",)).hidden == 256


@pytest.mark.parametrize("off", [None, False, 0, "", [], {}])
def test_unknown_field_that_is_off_is_harmless(off: object) -> None:
    assert parse(LLAMA | {"new_feature": off, "rope_theta": 1e6}, "x") == parse(LLAMA, "x")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"hidden_size": None}, MissingField),
        ({"hidden_size": "4096"}, BadInput),
        ({"num_hidden_layers": 10**9}, BadInput),
        ({"num_attention_heads": 0}, BadInput),
        ({"num_key_value_heads": 3}, BadInput),
        ({"vocab_size": -5}, BadInput),
        ({"model_type": 7}, BadInput),
        ({"model_type": None}, MissingField),
        ({"hidden_act": "exotic"}, UnsupportedModel),
        ({"torch_dtype": "float8"}, UnsupportedModel),
        ({"layer_types": ["linear_attention"] * 4}, UnsupportedModel),
        ({"layer_types": ["full_attention"]}, BadInput),
        ({"layer_types": [None, *["full_attention"] * 31]}, UnsupportedModel),
        ({"hybrid_override_pattern": [None, *["*"] * 31]}, UnsupportedModel),
        ({"attention_bias": "yes"}, BadInput),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, UnsupportedModel),
        ({"quantization_config": 7}, BadInput),
    ],
)
def test_bad_configs_name_the_field(change: dict[str, object], error: type[PipewaveError]) -> None:
    with pytest.raises(error) as caught:
        parse(LLAMA | change, "x")
    assert caught.value.field in (next(iter(change)), "quantization_config")


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*LLAMA, "head_dim", "quantization_config", "sliding_window", "layer_types", "rope_scaling"]),
        st.one_of(
            st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(), st.text(), st.lists(st.integers())
        ),
    )
)
def test_any_config_is_a_model_or_a_typed_error(change: dict[str, object]) -> None:
    try:
        model = parse(LLAMA | change, "x")
    except PipewaveError:
        return
    assert parameters(model) > 0
    assert weight_bytes(model) > 0


FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["lm_head", "re:.*down_proj$"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
}


def dtypes(config: dict[str, object], index: int = 0) -> list[str]:
    model = parse(LLAMA | {"quantization_config": config}, "x")
    return [linear.precision.dtype for linear in (*model.layers[index].linears(), model.lm_head)]


def test_quantised_matrices_and_ignored_ones() -> None:
    assert dtypes(FP8_BLOCK) == ["fp8_block"] * 4 + ["bf16"]
    assert dtypes(COMPRESSED) == ["fp8", "fp8", "fp8", "bf16", "bf16"]
    assert parse(LLAMA | {"quantization_config": COMPRESSED}, "x").kv_dtype == "fp8"
    assert dtypes({"quant_method": "awq", "bits": 4, "group_size": 128}) == ["int4"] * 4 + ["bf16"]
    by_layer = FP8_BLOCK | {"modules_to_not_convert": ["model.layers.1"]}
    assert (dtypes(by_layer, 0)[0], dtypes(by_layer, 1)[0]) == ("fp8_block", "bf16")
    assert len(parse(LLAMA | {"quantization_config": by_layer}, "x").grouped()) == 2


def test_hf_quant_config_beside_the_model(tmp_path: object) -> None:
    folder = tmp_path
    (folder / "config.json").write_text(json.dumps(LLAMA))  # type: ignore[operator]
    side = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(side))  # type: ignore[operator]
    model = load(str(folder))
    assert model.layers[0].ffn.linears()[0].precision.dtype == "nvfp4"
    assert (model.lm_head.precision.dtype, model.kv_dtype) == ("bf16", "fp8")
    # 4-bit weights with one byte of scale per sixteen
    assert model.layers[0].ffn.linears()[1].weight_bytes() == 256 * 512 * (0.5 + 1 / 16)


def test_ignore_patterns() -> None:
    assert matches("model.layers.3.mlp.gate", "re:.*mlp.gate$")
    assert matches("model.layers.3.self_attn.q_proj", "model.layers.*.self_attn")
    assert matches("model.layers.3.self_attn.q_proj", "self_attn")
    assert not matches("model.layers.3.mlp.gate_proj", "gate")
    assert not matches("model.layers.13.mlp", "model.layers.1")
    with pytest.raises(BadInput, match="too complex"):
        matches("a" * 40, "re:(a+)+$")


def test_mixed_quantisation_names_modules() -> None:
    with pytest.raises(UnsupportedModel, match="quant_algo"):
        read({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {}}})
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"layers.1.mlp": {"quant_algo": "FP8"}}}
    assert dtypes(mixed, 0) == ["bf16"] * 5
    assert dtypes(mixed, 1) == ["bf16", "bf16", "fp8", "fp8", "bf16"]


def test_files_that_are_no_config(tmp_path: object) -> None:
    path = tmp_path / "config.json"  # type: ignore[operator]
    for content in ("", "{", "[1]", "[" * 100_000):
        path.write_text(content)
        with pytest.raises(BadFile):
            load(str(path))
    path.write_text(json.dumps(LLAMA | {"hidden_size": float("nan")}))
    with pytest.raises(BadInput, match="hidden_size = nan"):
        load(str(path))
    with pytest.raises(BadFile):
        load(str(tmp_path / "missing.json"))  # type: ignore[operator]
    with pytest.raises(UnknownModel, match=r"did you mean Llama-3\.1-8B"):
        load("Llama-3.1-8")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mamba-2.8b", "configs of type mamba are read, none is built in"),
        ("state-spaces/mamba-370m-hf", "configs of type mamba are read"),
        ("Lama-3.1-8B", "did you mean Llama-3.1-8B"),
        ("nvidia/DeepSeek-V3-0324-FP4", "did you mean DeepSeek-V3-0324"),
    ],
)
def test_a_suggestion_is_of_the_same_architecture(name: str, said: str) -> None:
    with pytest.raises(UnknownModel, match=re.escape(said)):
        load(name)


def test_a_name_of_no_family_suggests_nothing() -> None:
    with pytest.raises(UnknownModel) as refusal:
        load("NotAModel-7B")
    assert "did you mean" not in str(refusal.value)


def test_names_ignore_case_and_organisation() -> None:
    assert load("meta-llama/llama-3.1-8b") is load("Llama-3.1-8B")
    assert load("meta-llama/Meta-Llama-3.1-8B-Instruct") is load("Llama-3.1-8B")
    assert ALONE.world == 1


def test_a_repository_of_the_local_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for revision, hidden in (("old", 128), ("new", 256)):
        folder = tmp_path / "models--vendor--Some-Model" / "snapshots" / revision
        folder.mkdir(parents=True)
        unbounded = {"time_step_limit": [0.0, float("inf")]}
        (folder / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": hidden} | unbounded))
    refs = tmp_path / "models--vendor--Some-Model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("new")
    assert load("vendor/Some-Model").hidden == load("Some-Model").hidden == 256
    assert load("vendor/Some-Model").name == "vendor/Some-Model"
    with pytest.raises(UnknownModel):
        load("../models--vendor--Some-Model")


def test_a_list_that_names_every_expert_and_map() -> None:
    """ModelOpt's mixed precision of a hybrid model: maps of recurrences in fp8, every expert in nvfp4."""
    base = expand(PUBLISHED["Nemotron-Nano-9B-v2"]["config"]) | {
        "hybrid_override_pattern": "ME*", "num_hidden_layers": 3, "n_routed_experts": 64, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
    }  # fmt: skip
    layers = {f"backbone.layers.1.mixer.experts.{i}.{m}": {"quant_algo": "NVFP4"}
              for i in range(64) for m in ("up_proj", "down_proj")}  # fmt: skip
    layers |= {f"backbone.layers.0.mixer.{m}": {"quant_algo": "FP8"} for m in ("in_proj", "out_proj")}
    model = parse(base | {"quantization_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}, "x")
    mamba, routed, attention = model.layers
    assert {linear.precision.dtype for linear in mamba.linears()} == {"fp8"}
    assert routed.moes[0].precision.dtype == "nvfp4"
    assert {linear.precision.dtype for linear in attention.linears()} == {"bf16"}


def test_fused_maps_are_ignored_by_their_own_names() -> None:
    kept = FP8_BLOCK | {"modules_to_not_convert": ["model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.down_proj"]}
    assert dtypes(kept) == ["bf16", "fp8_block", "fp8_block", "bf16", "bf16"]


@pytest.mark.parametrize(
    ("stated", "heads"),
    [
        ({}, 0),
        ({"num_nextn_predict_layers": 1}, 1),
        ({"num_nextn_predict_layers": 0}, 0),
        ({"mtp_num_hidden_layers": 2}, 2),
        ({"num_mtp_modules": 3, "num_nextn_predict_layers": 1, "use_mtp": True}, 3),
        ({"num_mtp_modules": 3, "use_mtp": False}, 0),
        ({"model_type": "qwen3_next"}, 1),  # in the checkpoint, and not in the config
    ],
)
def test_heads_for_drafting_are_counted(stated: dict[str, object], heads: int) -> None:
    assert load(SMALL | stated).mtp_heads == heads


def test_embeddings_of_another_width_are_refused() -> None:
    """ALBERT and ELECTRA embed tokens in a width of their own, which was read as the vocabulary's second name."""
    config = SMALL | {"model_type": "electra", "embedding_size": 128}
    with pytest.raises(UnsupportedModel, match="embedding_size = 128"):
        load(config)
    assert load(config | {"embedding_size": 256}).vocab == 1000


@pytest.mark.parametrize(
    ("named", "pooled"), [("GPT2LMHeadModel", False), ("GPT2Model", True), ("MinistralModel", True)]
)
def test_a_model_with_a_head_generates(named: str, pooled: bool) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 32}
    assert load(config | {"architectures": [named]}).pooled is pooled


def test_layers_that_run_several_times_are_refused() -> None:
    config = SMALL | {"model_type": "ouro", "total_ut_steps": 4}
    with pytest.raises(UnsupportedModel, match="total_ut_steps = 4"):
        load(config)
    assert any(
        "dense attention" in note for note in load(config | {"total_ut_steps": 1, "sparse_config": {"topk": 64}}).notes
    )


def test_a_missing_field_is_named_as_most_configs_name_it() -> None:
    config = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 99,
    }
    with pytest.raises(MissingField, match="'num_attention_heads'"):
        parse(config, "headless")


def test_no_latent_heads_leave_values_as_wide_as_keys() -> None:
    """DeepSeek-OCR's text says 0 of each width that latent attention would have."""
    config = {
        "model_type": "deepseek_v2", "hidden_size": 1280, "intermediate_size": 6848, "moe_intermediate_size": 896,
        "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 10, "num_key_value_heads": 10,
        "num_experts_per_tok": 6, "num_hidden_layers": 12, "first_k_dense_replace": 1, "vocab_size": 129280,
        "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
    }  # fmt: skip
    assert parameters(parse(config, "ocr")) / 1e9 == pytest.approx(2.94, rel=0.01)  # 3.34 B with towers of 0.4
