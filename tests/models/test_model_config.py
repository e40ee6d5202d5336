"""Configs become models, and nothing is dropped silently."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_families import LLAMA, PUBLISHED

from pipewave.errors import BadFile, BadInput, MissingField, PipewaveError, UnknownModel, UnsupportedModel
from pipewave.models import Mla, Moe, load
from pipewave.models.config import parse
from pipewave.models.load import cached, config_name
from pipewave.models.shard import ALONE, parameters, weight_bytes
from tests.sampled import examples

SMALL = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip


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


@examples(200)
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
    for other in ("zero", "another"):  # of several, the first by name, in whatever order folders are listed
        (tmp_path / f"models--{other}--Some-Model").symlink_to(tmp_path / "models--vendor--Some-Model")
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: sorted(glob(path, pattern), reverse=True))
    assert cached("Some-Model") == tmp_path / "models--another--Some-Model" / "snapshots" / "new" / "config.json"


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
        "model_type": "ember",
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


@pytest.mark.parametrize(("file", "name"), [("config", "your model"), ("my-llama", "my-llama")])
def test_a_config_is_never_called_config(tmp_path: Path, file: str, name: str) -> None:
    path = tmp_path / f"{file}.json"
    path.write_text(json.dumps(LLAMA), "utf-8")
    expected = tmp_path.name if file == "config" else name
    assert load(path).name == LLAMA.get("_name_or_path", expected)
    assert config_name({}, file) == name and config_name({"_name_or_path": "a/b"}, file) == "a/b"


def test_a_vendors_and_transformers_fields_of_one_recurrence_are_one_model() -> None:
    """Kimi Linear: the section that its repository publishes, and the fields that transformers saves."""
    config = PUBLISHED["Kimi-Linear-48B-A3B"]["config"]
    saved = {name: value for name, value in config.items() if name != "linear_attn_config"}
    section, layers = config["linear_attn_config"], range(1, config["num_hidden_layers"] + 1)
    saved["layer_types"] = [f"{'linear' if n in section['kda_layers'] else 'full'}_attention" for n in layers]
    saved |= {"linear_num_heads": section["num_heads"], "linear_head_dim": section["head_dim"]}
    saved |= {"linear_conv_kernel_dim": section["short_conv_kernel_size"]}
    for model_type in (config["model_type"], "never_seen"):
        named = {"model_type": model_type, "architectures": ["SomeForCausalLM"]}
        assert parse(saved | named, "saved").layers == parse(config | named, "published").layers
