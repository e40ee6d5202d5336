"""Quantisation sections as tools write them: types of maps, and the bytes of the tensors that checkpoints hold."""

from __future__ import annotations

from typing import Any

import pytest

from pipewave.errors import UnsupportedModel
from pipewave.models.config import parse

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
    "sglang int8": ({"quant_method": "w8a8_int8"}, packed(WIDE, INTER, 8, -1)),
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
