"""Which linear maps are quantised and how, from `quantization_config` or a side file `hf_quant_config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.patterns import Names, matches
from pipewave.models.precision import BF16, FP8, FP8_BLOCK, INT8, MXFP4, MXFP8, NVFP4, Precision, int4, int8
from pipewave.models.quant_weights import bitsandbytes, fp_quant, hqq, quark, torchao, weight_only
from pipewave.models.quantised import Quantisation, cache_notes, ignored, kv_type

__all__ = ["Quantisation", "matches", "read", "read_hf_quant"]

ALGORITHMS = {
    "FP8": FP8,
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "FP8_PB_WO": FP8_BLOCK,
    "FP8_PB_REAL": FP8_BLOCK,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_BLOCK_SCALES": FP8_BLOCK,
    "MXFP4": MXFP4,
    "W4A8_MXFP4_FP8": MXFP4,
    "W4A16_MXFP4": MXFP4,
    "MXFP8": MXFP8,
    "INT8_SQ": INT8,
    "W8A8_SQ_PER_CHANNEL": INT8,
    "W4A16_AWQ": int4(128, zeros=False),
    "INT4_AWQ": int4(128, zeros=False),
    "W4A8_AWQ": int4(128, zeros=False),
    "W8A16": int8(-1, zeros=False),
}
KEPT = ("ignored_layers", "modules_to_not_convert", "ignore")  # lists of modules in 16 bits
# What vLLM and SGLang make of 16-bit weights while they load them, by the word of `--quantization`: one scale a matrix,
# inputs quantised as they come (`layers/quantization/fp8.py` of both).
ONLINE = {"fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
EXPERT_DTYPES = {"fp4": MXFP4, "mxfp4": MXFP4, "fp8": FP8_BLOCK}


def read(section: Mapping[str, Any]) -> Quantisation:
    """Read a `quantization_config` section; an empty one means 16-bit weights."""
    if not section:
        return Quantisation()
    method = section.get("quant_method") or ("modelopt" if "quant_algo" in section else None)
    if method is None and "config_groups" in section:
        method = "compressed-tensors"
    reader = _READERS.get(str(method).lower().replace("_", "-"))
    if reader is None:
        raise UnsupportedModel(
            f"quantization_config.quant_method = {method!r}: not modelled; known: {', '.join(_READERS)}",
            field="quantization_config",
        )
    found = reader(section)
    return replace(found, notes=(*found.notes, *cache_notes(section)))


def read_hf_quant(document: Mapping[str, Any]) -> Quantisation:
    """Read NVIDIA ModelOpt's side file `hf_quant_config.json`."""
    section = document.get("quantization", document)
    if not isinstance(section, Mapping):
        raise BadInput("hf_quant_config.json: 'quantization' must be an object", field="quantization")
    found = _modelopt(section)
    return replace(found, notes=(*found.notes, *cache_notes(section)))


def _fp8(section: Mapping[str, Any]) -> Quantisation:
    if section.get("quantized_layers"):
        return _mixed(section)
    block = section.get("weight_block_size")
    ignore = ignored(section, *KEPT)
    return Quantisation(_blocks(block), ignore, kv_dtype=kv_type(section.get("kv_cache_quant_algo")))


def _blocks(block: Any) -> Precision:
    """FP8 with one fp32 scale for every block of weights, or one for a whole matrix."""
    if block is None:
        return FP8
    sides = isinstance(block, Sequence) and len(block) == 2 and all(isinstance(s, int) and s > 0 for s in block)
    if not sides:
        raise UnsupportedModel(f"weight_block_size = {block!r}: must be two sizes", field="weight_block_size")
    if list(block) == [128, 128]:
        return FP8_BLOCK
    return MXFP8 if list(block) == [1, 32] else Precision("fp8_block", 1.0 + 4 / (block[0] * block[1]), quantize=True)


def _modelopt(section: Mapping[str, Any]) -> Quantisation:
    if isinstance(section.get("quantization"), Mapping):  # the side file's object inside the section, as vLLM takes it
        return _modelopt(section["quantization"])
    if section.get("quantized_layers"):
        return _mixed(section)
    algorithm = section.get("quant_algo")
    if algorithm is None and not section.get("config_groups"):
        return Quantisation(kv_dtype=kv_type(section.get("kv_cache_quant_algo")))
    precision = _algorithm(algorithm) if algorithm else _compressed(section).precision
    ignore = ignored(section, "exclude_modules", "ignore")
    named = section.get("kv_cache_quant_algo") or ("FP8" if section.get("kv_cache_scheme") else None)
    return Quantisation(precision, ignore, kv_dtype=kv_type(named))


def _algorithm(name: Any) -> Precision:
    if str(name) not in ALGORITHMS:
        raise UnsupportedModel(
            f"quant_algo = {name!r}: not modelled; known: {', '.join(ALGORITHMS)}", field="quant_algo"
        )
    return ALGORITHMS[str(name)]


def _mixed(section: Mapping[str, Any]) -> Quantisation:
    """ModelOpt's mixed precision: a list of modules with an algorithm each; all others keep the section's own."""
    layers = section["quantized_layers"]
    if not isinstance(layers, Mapping) or not all(isinstance(each, Mapping) for each in layers.values()):
        raise BadInput("quantized_layers: must map modules to objects with a quant_algo", field="quantized_layers")
    algorithms = sorted({str(each.get("quant_algo")) for each in layers.values()})
    groups = tuple(
        (Names.of(name for name, each in layers.items() if str(each.get("quant_algo")) == one), _algorithm(one))
        for one in algorithms
    )
    blocks = section.get("weight_block_size")
    rest = _blocks(blocks) if blocks else BF16
    # Beside an fp8 checkpoint, the modules left out of the list's algorithms stay as they were: in fp8.
    ignore = ignored(section, *(("modules_to_not_convert",) if blocks else ("exclude_modules", "ignore")))
    return Quantisation(rest, ignore, kv_dtype=kv_type(section.get("kv_cache_quant_algo")), groups=groups)


def _mxfp4(section: Mapping[str, Any]) -> Quantisation:
    return Quantisation(MXFP4, ignored(section, "modules_to_not_convert"), experts_only=True)


def _compressed(section: Mapping[str, Any]) -> Quantisation:
    groups = section.get("config_groups")
    kv = kv_type("FP8" if section.get("kv_cache_scheme") else None)
    if not groups and kv:
        return Quantisation(kv_dtype=kv)
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedModel("config_groups: must hold at least one group", field="config_groups")
    common, named = BF16, []
    for group in groups.values():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights") or {}, Mapping):
            raise BadInput("config_groups: each group must be an object with weights", field="config_groups")
        precision = _compressed_precision(group.get("weights") or {}, group.get("input_activations"))
        targets = [str(target) for target in group.get("targets") or ["Linear"]]
        if any(target in ("Linear", "LinearBase", "FusedMoE", "MoE") for target in targets):
            common = precision
        else:
            named.append((Names.of(targets), precision))
    return Quantisation(common, ignored(section, "ignore"), kv_dtype=kv, groups=tuple(named))


def _compressed_precision(weights: Mapping[str, Any], inputs: Any) -> Precision:
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    group, zeros = weights.get("group_size") or -1, not weights.get("symmetric", True)
    if kind == "float" and bits == 8:
        return MXFP8 if group == 32 else FP8_BLOCK if strategy == "block" else FP8
    if kind == "float" and bits == 4:
        return MXFP4 if group == 32 else NVFP4
    if kind == "int" and bits == 8:
        return INT8 if inputs else int8(int(group), zeros=zeros)
    if kind == "int" and bits == 4:
        return int4(int(group), zeros=zeros)
    raise UnsupportedModel(f"config_groups weights of {bits} bits, type {kind!r}: not modelled", field="config_groups")


def _whole(precision: Precision) -> Callable[[Mapping[str, Any]], Quantisation]:
    """A reader of methods whose name says it all."""
    return lambda section: Quantisation(precision, ignored(section, *KEPT))


def _w4afp8(section: Mapping[str, Any]) -> Quantisation:
    """4-bit routed experts, 8-bit products and all else in FP8 blocks."""
    blocks = _blocks(section.get("weight_block_size") or [128, 128])
    names = ignored(section, *KEPT)
    return Quantisation(blocks, names, experts=int4(int(section.get("group_size", 128)), zeros=False))


def _mxfp8(section: Mapping[str, Any]) -> Quantisation:
    return Quantisation(MXFP8, ignored(section, *KEPT))


_READERS = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "ptpc-fp8": _fp8,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-fp8": _modelopt,
    "modelopt-mixed": _modelopt,
    "modelopt-mxfp8": _modelopt,
    "modelopt-nvfp4": _modelopt,
    "petit-nvfp4": _modelopt,
    "compressed-tensors": _compressed,
    "awq": weight_only,
    "awq-marlin": weight_only,
    "gptq": weight_only,
    "gptq-marlin": weight_only,
    "moe-wna16": weight_only,
    "auto-round": weight_only,
    "intel/auto-round": weight_only,
    "inc": weight_only,
    "mxfp4": _mxfp4,
    "mxfp8": _mxfp8,
    "bitsandbytes": bitsandbytes,
    "quark": quark,
    "hqq": hqq,
    "fp-quant": fp_quant,
    "eetq": _whole(int8(-1, zeros=False)),
    "torchao": torchao,
    "w8a8-int8": _whole(INT8),
    "w8a8-fp8": _whole(FP8),
    "w4afp8": _w4afp8,
}
