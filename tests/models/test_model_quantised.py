"""Quantisation sections of configs: which maps run in which type, and which are left as they are."""

from __future__ import annotations

import json

import pytest
from model_families import LLAMA, PUBLISHED, expand

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models import load
from pipewave.models.config import parse
from pipewave.models.precision import matches
from pipewave.models.quantization_config import read_quantization

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
        read_quantization({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {}}})
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"layers.1.mlp": {"quant_algo": "FP8"}}}
    assert dtypes(mixed, 0) == ["bf16"] * 5
    assert dtypes(mixed, 1) == ["bf16", "bf16", "fp8", "fp8", "bf16"]


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
