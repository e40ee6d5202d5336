"""Mistral's own params.json against the same model's config.json."""

from __future__ import annotations

from typing import Any

import pytest

from pipewave.errors import UnsupportedModel
from pipewave.models import load
from pipewave.models.shard import parameters, weight_bytes

SMALL = {
    "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 32768, "n_heads": 32, "n_kv_heads": 8,
    "rope_theta": 1e9, "norm_eps": 1e-5, "vocab_size": 131072, "max_position_embeddings": 131072,
}  # fmt: skip
TOWER = {
    "hidden_size": 1024, "num_channels": 3, "image_size": 1540, "patch_size": 14, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "adapter_bias": False, "mm_projector_id": "patch_merge",
    "spatial_merge_size": 2, "rope_theta": 10000.0,
}  # fmt: skip
MIXTRAL = {
    "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
    "norm_eps": 1e-5, "vocab_size": 32000, "moe": {"num_experts_per_tok": 2, "num_experts": 8},
}  # fmt: skip
LARGE = {
    "dim": 7168, "n_layers": 61, "head_dim": 128, "hidden_dim": 16384, "n_heads": 128, "n_kv_heads": 128,
    "norm_eps": 1e-6, "vocab_size": 131072, "tied_embeddings": False, "model_type": "transformer",
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "kv_lora_rank": 512, "v_head_dim": 128,
    "moe": {"expert_parallel": 1, "route_every_n": 1, "first_k_dense_replace": 3, "num_experts": 128,
            "num_experts_per_tok": 4, "expert_hidden_dim": 4096, "num_shared_experts": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions"),
    [(SMALL, 23.57), (SMALL | {"vision_encoder": TOWER}, 24.01), (MIXTRAL, 46.70), (LARGE, 673.0)],
)
def test_parameters_are_those_of_the_card(config: dict[str, Any], billions: float) -> None:
    """Mistral Small 3 and 3.2, Mixtral 8x7B, and the text of Mistral Large 3 (675 B with a tower of 2 B)."""
    assert parameters(load(config)) / 1e9 == pytest.approx(billions, rel=0.002)


def test_it_is_the_model_of_its_config_json() -> None:
    """Every layer of Mixtral's params.json is that of the built-in config.json."""
    native, hub = load(MIXTRAL), load("Mixtral-8x7B")
    assert parameters(native) == parameters(hub)
    assert [layer.mixers for layer in native.layers] == [layer.mixers for layer in hub.layers]


def test_an_fp8_file_weighs_half() -> None:
    """Embedding and head stay in 16 bits, every matrix of a layer takes one byte an element."""
    plain = load(SMALL)
    narrow = load(SMALL | {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}})
    kept = 2 * SMALL["vocab_size"] * SMALL["dim"]
    assert weight_bytes(narrow) == pytest.approx(weight_bytes(plain) / 2 + kept, rel=0.001)


def test_a_section_that_nobody_explains_is_refused() -> None:
    """A quantisation by another name, and an object that holds counts, stop the reading."""
    with pytest.raises(UnsupportedModel, match="qformat_weight"):
        load(SMALL | {"quantization": {"qformat_weight": "int3"}})
    with pytest.raises(UnsupportedModel, match="surprise"):
        load(SMALL | {"surprise": {"num_experts": 8}})
