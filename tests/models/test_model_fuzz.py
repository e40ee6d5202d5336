"""Configs of a hundred families with fields dropped, mistyped or exchanged: a model, or an error that has a type."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from model_families import FAMILIES, expand

from pipewave.errors import PipewaveError
from pipewave.models.config import parse
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import parameters, weight_bytes
from pipewave.models.summary import blocks
from tests.sampled import examples

CONFIGS = {name: expand(case["config"]) for name, case in FAMILIES.items()}
NAMES = sorted({field for config in CONFIGS.values() for field in config} | {
    "quantization_config", "vision_config", "text_config", "block_configs", "hybrid_override_pattern", "architectures",
    "linear_attn_config", "compress_ratios", "sparse_attention_config", "layer_types", "moe_layers_enum", "dtype",
    "per_layer_config", "attention_other_setting", "indexer_types", "swa_head_dim", "share_q_dim", "attn_type_list",
})  # fmt: skip
QUANTISED = [
    {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["lm_head", "model.layers.0"]},
    {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"layers.0.mlp": {"quant_algo": "NVFP4"}}},
    {"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["re:.*experts.*"], "weights": {
        "num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}}}},
    {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*attn.*": {}, "+:.*mlp.*": {"bits": 8}}},
]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.integers(-(2**40), 2**40), st.floats(), st.text(max_size=8),
    st.lists(st.one_of(st.integers(-2, 64), st.text(max_size=6), st.none()), max_size=70),
    st.dictionaries(st.sampled_from(NAMES), st.integers(-2, 300), max_size=3), st.sampled_from(QUANTISED),
    st.lists(st.dictionaries(st.sampled_from(["attention", "ffn"]), st.dictionaries(
        st.sampled_from(["n_heads_in_group", "no_op", "ffn_mult", "intermediate_size"]), st.integers(-1, 9))), max_size=3),
)  # fmt: skip
BATCH = Batch((1, 7), (90, 7))


def check(config: dict[str, Any]) -> None:
    """A model whose numbers are sound, or a typed error."""
    try:
        model = parse(config, "x")
        found = blocks(model)
        calls = Deployment(model).kernels(BATCH)
    except PipewaveError as problem:
        assert str(problem)
        return
    assert parameters(model) > 0
    assert weight_bytes(model) > 0
    assert sum(block.count for block in found.blocks) == len(model.layers)
    assert calls


@examples(400)
@given(name=st.sampled_from(sorted(CONFIGS)), change=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
def test_changed_fields(name: str, change: dict[str, Any]) -> None:
    check(CONFIGS[name] | change)


@examples(200)
@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_dropped_fields(name: str, data: st.DataObject) -> None:
    config = CONFIGS[name]
    gone = data.draw(st.sets(st.sampled_from(sorted(config)), max_size=4))
    check({field: value for field, value in config.items() if field not in gone})


@examples(200)
@given(names=st.tuples(*[st.sampled_from(sorted(CONFIGS))] * 2))
def test_one_family_under_the_name_of_another(names: tuple[str, str]) -> None:
    config = json.loads(json.dumps(CONFIGS[names[0]])) | {"model_type": CONFIGS[names[1]].get("model_type", names[1])}
    check(config)
