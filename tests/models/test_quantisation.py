"""Quantisation sections as tools write them: types of maps, and the bytes of the tensors that checkpoints hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.files import packaged
from pipewave.models.config import parse
from pipewave.models.load import CHECKPOINTS as LISTED
from pipewave.models.load import load
from pipewave.models.shard import ALONE, weight_bytes

ROWS, WIDE, INTER = 64, 256, 512
BASE = {
    "model_type": "llama", "hidden_size": WIDE, "intermediate_size": INTER, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip
MOE = BASE | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}


def of(section: dict[str, Any], base: dict[str, Any] = BASE) -> Any:
    return parse(base | {"quantization_config": section}, "x")


def packed(rows: int, columns: int, bits: int, group: int, *, scale: int = 2, zero_bits: int = 0) -> float:
    """Bytes of packed weights, their scales and zero points, tensor by tensor."""
    groups = rows * columns // group if group > 0 else 0
    return rows * columns * bits / 8 + groups * scale + groups * zero_bits / 8


def compressed(bits: int, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", **weights}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


BYTES = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, packed(WIDE, INTER, 4, 128, zero_bits=4)),
    "gptq 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, packed(WIDE, INTER, 8, 32, zero_bits=8)),
    "gptq 8 bits, a scale a row": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, packed(WIDE, INTER, 8, -1)),
    "packed, 8 bits, a scale a row": (compressed(8, strategy="channel", symmetric=True), packed(WIDE, INTER, 8, -1)),
    "packed, 8 bits": (compressed(8, strategy="group", group_size=64, symmetric=True), packed(WIDE, INTER, 8, 64)),
    "packed, 4 bits": (compressed(4, strategy="group", group_size=32, symmetric=True), packed(WIDE, INTER, 4, 32)),
    "packed, with zeros": (
        compressed(4, strategy="group", group_size=128, symmetric=False),
        packed(WIDE, INTER, 4, 128, zero_bits=4),
    ),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, packed(WIDE, INTER, 4, 64, scale=4)),
    "bitsandbytes, doubled": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        packed(WIDE, INTER, 4, 64, scale=1) + WIDE * INTER / 64 / 256 * 4,
    ),
    "auto-round nvfp4": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 16, "data_type": "nv_fp"},
        packed(WIDE, INTER, 4, 16, scale=1),
    ),
    "auto-round mxfp8": (
        {"quant_method": "auto-round", "bits": 8, "group_size": 32, "data_type": "mx_fp"},
        packed(WIDE, INTER, 8, 32, scale=1),
    ),
    "torchao int4": (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}}},
        packed(WIDE, INTER, 4, 64, zero_bits=4),
    ),
    "torchao float8": (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig"}}},
        packed(WIDE, INTER, 8, -1),
    ),
    "torchao by module": (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "FqnToConfig", "_data": {"fqn_to_config": {
            "_default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}, "lm_head": None}}}}},
        packed(WIDE, INTER, 4, 32, zero_bits=4),
    ),
    "torchao integers of named bits": (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8DynamicActivationIntxWeightConfig", "_data": {
            "weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
            "weight_granularity": {"_type": "PerGroup", "_data": {"group_size": 32}}}}}},
        packed(WIDE, INTER, 4, 32),
    ),
    "modelopt, its side file inside": (
        {"quant_method": "modelopt", "quantization": {"quant_algo": "MXFP8", "kv_cache_quant_algo": "FP8"}},
        packed(WIDE, INTER, 8, 32, scale=1),
    ),
    "sglang int8": ({"quant_method": "w8a8_int8"}, packed(WIDE, INTER, 8, -1)),
    "hqq": (
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
        packed(WIDE, INTER, 4, 64, zero_bits=16),
    ),
    "hqq, a scale a row": ({"quant_method": "hqq", "nbits": 8, "group_size": -1}, packed(WIDE, INTER, 8, -1)),
    "eetq": ({"quant_method": "eetq"}, packed(WIDE, INTER, 8, -1)),
    "modelopt, 8-bit weights alone": ({"quant_algo": "W8A16"}, packed(WIDE, INTER, 8, -1)),
    "modelopt mxfp8": (
        {"quant_method": "modelopt_mxfp8", "quant_algo": "MXFP8"}, packed(WIDE, INTER, 8, 32, scale=1),
    ),
    "fp_quant": ({"quant_method": "fp_quant", "forward_dtype": "nvfp4"}, packed(WIDE, INTER, 4, 16, scale=1)),
    "quark uint4": (
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint4", "group_size": 64}}},
        packed(WIDE, INTER, 4, 64, zero_bits=4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_a_map_are_those_of_its_tensors(name: str) -> None:
    section, wanted = BYTES[name]
    down = of(section).layers[0].ffn.linears()[1]
    assert (down.out, down.inp) == (WIDE, INTER)
    assert down.weight_bytes() == pytest.approx(wanted, rel=1e-12)


def test_modules_with_bits_of_their_own() -> None:
    """AutoRound names modules, GPTQ writes expressions."""
    named = {
        "model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 128},
        ".*self_attn.*": {"bits": 16},
    }  # fmt: skip
    rounded = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": named}
    first, second = of(rounded).layers
    assert [linear.precision.dtype for linear in first.linears()] == ["bf16", "bf16", "int4", "int8"]
    assert [linear.precision.dtype for linear in second.linears()] == ["bf16", "bf16", "int4", "int4"]
    dynamic = {"-:.*attn.*": {}, "+:.*down_proj.*": {"bits": 8}}
    gptq = of({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic}).layers[1]
    assert [linear.precision.dtype for linear in gptq.linears()] == ["bf16", "bf16", "int4", "int8"]


def test_quark_keeps_layers_of_another_type_and_an_8_bit_cache() -> None:
    fp8, fp4 = ({"weight": {"dtype": name}} for name in ("fp8_e4m3", "fp4"))
    cache = {"*k_proj": fp8 | {"output_tensors": {"dtype": "fp8_e4m3"}}}
    layers = {"*self_attn*": fp8, **cache}
    model = of(
        {"quant_method": "quark", "global_quant_config": fp4, "layer_quant_config": layers, "exclude": ["lm_head"]}
    )
    assert [linear.precision.dtype for linear in model.layers[0].linears()] == ["fp8", "fp8", "mxfp4", "mxfp4"]
    assert model.kv_dtype == "fp8"


def test_four_bit_experts_beside_eight_bit_maps() -> None:
    model = of({"quant_method": "w4afp8", "group_size": 128}, MOE)
    assert model.layers[0].moes[0].precision.dtype == "int4"
    assert model.layers[0].linears()[0].precision.dtype == "fp8_block"


@pytest.mark.parametrize(
    "section",
    [{"quant_method": "torchao", "quant_type": "uint3"}, {"quant_method": "gptq", "bits": 3}, {"quant_method": "aqlm"}],
)
def test_what_is_not_modelled_is_named(section: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"not modelled|only 4 and 8"):
        of(section)


@pytest.mark.parametrize(
    "section",
    [
        compressed(4, group_size="nan"),
        {"quant_method": "awq", "bits": 4, "group_size": "128"},
        {"quant_method": "w4afp8", "group_size": 1e3},
        {"quant_method": "gptq", "bits": 4, "dynamic": {"a": {"bits": 8, "group_size": [64]}}},
    ],
)
def test_a_group_of_weights_is_a_whole_number(section: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="group_size"):
        of(section)


def test_targets_are_a_list() -> None:
    section = compressed(4, group_size=128)
    section["config_groups"]["group_0"]["targets"] = 1e-300
    with pytest.raises(BadInput, match="targets"):
        of(section)


def test_a_method_in_capitals_is_the_same_method() -> None:
    lower, upper = (of({"quant_method": name, "activation_scheme": "dynamic"}) for name in ("fp8", "FP8"))
    assert upper.layers == lower.layers


def test_a_section_may_narrow_the_cache_alone() -> None:
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    model = of({"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": cache})
    assert model.kv_dtype == "fp8"
    assert {linear.precision.dtype for linear in model.layers[0].linears()} == {"bf16"}


def test_packed_weights_that_name_no_method_are_not_taken_for_16_bits() -> None:
    """MLX writes `quantization` with bits and a group and nothing else: no engine here runs such weights."""
    with pytest.raises(UnsupportedModel, match="quant_method"):
        parse(BASE | {"quantization": {"group_size": 64, "bits": 4}}, "x")


HEADS, KV, DIM, MOE_INTER, EXPERTS, LAYERS, VOCAB = 4, 2, WIDE // 4, 128, 4, 2, 1024
MAPS = {  # weights of one layer by part, and what stays in 16 bits whatever a section says
    "attention": (HEADS * DIM + 2 * KV * DIM) * WIDE + WIDE * HEADS * DIM,
    "experts": EXPERTS * 3 * MOE_INTER * WIDE,
    "router": EXPERTS * WIDE,
}
NORMS = LAYERS * (2 * WIDE + 2 * DIM) + WIDE  # two a layer, one a head of queries and keys, the last


def whole(attention: float, experts: float, head: float = 2.0) -> float:
    """Bytes of the model of `MOE` when its parts take so many bytes a weight."""
    layer = MAPS["attention"] * attention + MAPS["experts"] * experts + MAPS["router"] * 2.0
    return LAYERS * layer + VOCAB * WIDE * (2.0 + head) + 2.0 * NORMS


def grouped(*groups: tuple[str, dict[str, Any]], ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
    named = {f"group_{n}": {"targets": [target], "weights": weights} for n, (target, weights) in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore)}


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
W8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
NV = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
W4_BYTES, NV_BYTES = 0.5 + 2 / 32, 0.5 + 1 / 16
CHECKPOINTS = {
    "experts alone, attention by expression kept": (
        grouped(("Linear", W4), ignore=("lm_head", "re:.*self_attn.*", "re:.*mlp.gate$")), whole(2.0, W4_BYTES),
    ),
    "fp8 attention beside 4-bit experts": (
        grouped(("re:.*self_attn.*", W8), ("re:.*experts.*", NV), ignore=("lm_head", "re:.*gate$")),
        whole(1.0, NV_BYTES),
    ),
    "modelopt keeps attention of all layers": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.self_attn*"]},
        whole(2.0, NV_BYTES),
    ),
    "modelopt, a list of modules": (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
            f"model.layers.{layer}.{name}": {"quant_algo": algorithm}
            for layer in range(LAYERS)
            for name, algorithm in (
                ("self_attn.q_proj", "FP8"), ("self_attn.k_proj", "FP8"), ("self_attn.v_proj", "FP8"),
                ("self_attn.o_proj", "FP8"), ("mlp.experts.0.gate_proj", "NVFP4"), ("mlp.experts.0.down_proj", "NVFP4"),
            )
        }},
        whole(1.0, NV_BYTES),
    ),
    "blocks, router and head kept by name": (
        {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]},
        whole(1 + 4 / 128**2, 1 + 4 / 128**2),
    ),
    "mxfp4 experts": (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        whole(2.0, 0.5 + 1 / 32),
    ),
    "awq keeps attention": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["mlp.gate", "self_attn"]},
        whole(2.0, 0.5 + 2.5 / 128),
    ),
    "quark, attention in 8 bits": (
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}, "exclude": ["lm_head"],
         "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}}},
        whole(1.0, 0.5 + 1 / 32),
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "self_attn"]},
        whole(2.0, 0.5 + 4 / 64),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_bytes_of_a_whole_model_by_hand(name: str) -> None:
    section, wanted = CHECKPOINTS[name]
    assert weight_bytes(of(section, MOE | {"vocab_size": VOCAB}), ALONE) == pytest.approx(wanted, rel=1e-12)


def test_a_cache_narrower_than_what_is_answered_is_told() -> None:
    model = of({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"})
    assert model.kv_dtype == "fp8"
    assert any("4-bit KV cache" in note for note in model.notes)


def test_one_name_of_a_fused_map_keeps_it() -> None:
    """Qwen3.5 ships z, a and b apart from the maps that engines fuse them with."""
    hybrid = BASE | {
        "model_type": "qwen3_5", "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
    }  # fmt: skip
    kept = grouped(("Linear", W4), ignore=("lm_head", "re:.*linear_attn.in_proj_a$"))
    types = {linear.name: linear.precision.dtype for linear in of(kept, hybrid).layers[0].linears()}
    assert (types["in_proj_ba"], types["in_proj_qkvz"]) == ("bf16", "int4")


def test_listed_checkpoints_are_read_by_their_names() -> None:
    listed = packaged.shared(LISTED)
    assert len(listed) > 15
    for model, forms in listed.items():
        for name, form in forms.items():
            found, made = load(name), load(model, online=form)
            assert found == load(name.rpartition("/")[2])
            assert replace(found, name=name) == replace(made, name=name)  # some are built in under a name of their own
            assert found == load(name, online="fp8")  # quantised already
