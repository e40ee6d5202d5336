"""Sections of tools that narrow weights: AWQ, GPTQ, AutoRound, bitsandbytes, Quark, torchao.

Bytes are those of the tensors a checkpoint holds: packed weights, scales and zero points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipewave.errors import UnsupportedModel
from pipewave.models.patterns import Names
from pipewave.models.precision import BF16, FP8, INT8, MXFP4, MXFP8, NVFP4, Precision, int4, int8
from pipewave.models.quantised import FIELD, Quantisation, ignored, kv_type

WIDENED = "8-bit weights of 16-bit products: answered as int8 products, which long prompts run up to twice as fast"
# AutoRound's `data_type` with its bits; plain integers are the rest.
FLOATS = {("nv_fp", 4): NVFP4, ("mx_fp", 4): MXFP4, ("mx_fp", 8): MXFP8, ("fp", 8): FP8}
BLOCK, SUPER = 64, 256  # bitsandbytes: weights a scale, scales a second scale
QUARK = {"fp8": FP8, "fp4": MXFP4, "int8": INT8, "bf": BF16, "fl": BF16}
QUARK_INTEGERS = {"int4": False, "uint4": True}  # whether groups have zero points
TORCHAO: Mapping[str, Callable[[Mapping[str, Any]], Precision]] = {
    "Int4WeightOnly": lambda config: int4(_group(config, 128)),
    "Int8WeightOnly": lambda config: int8(_group(config, -1), zeros=False),
    "Int8DynamicActivationInt8Weight": lambda _: INT8,
    "Float8": lambda _: FP8,
    "Int8DynamicActivationInt4Weight": lambda config: int4(_group(config, 32), zeros=False),
    "Int8DynamicActivationIntxWeight": lambda config: _intx(config),
    "NVFP4": lambda _: NVFP4,
    "MX": lambda config: MXFP4 if "4" in str(config.get("elem_dtype", "")) else MXFP8,
}


def weight_only(section: Mapping[str, Any]) -> Quantisation:
    """AWQ, GPTQ and AutoRound: integers with a scale and a zero point a group, some modules with bits of their own."""
    bits, group = section.get("bits", section.get("w_bit")), section.get("group_size", section.get("q_group_size", 128))
    floats = _floats(section, bits)
    if floats is None and (bits not in (4, 8) or not isinstance(group, int)):
        raise UnsupportedModel(f"quantization_config.bits = {bits!r}: only 4 and 8 are modelled", field="bits")
    own = list(_rules(section))
    skipped = [name for name, rule, off in own if off or rule.get("bits") in (16, 32)]
    kept = section.get("modules_to_not_convert") or []
    notes = (WIDENED,) if floats is None and bits == 8 else ()
    groups = [(Names.of([name]), _integers(rule["bits"], rule.get("group_size", group)))
              for name, rule, off in own if not off and rule.get("bits") in (4, 8)]  # fmt: skip
    return Quantisation(
        floats or _integers(bits, group), ignored({"ignore": [*kept, *skipped]}, "ignore"),
        lm_head=bool(section.get("lm_head", False)), notes=notes, groups=tuple(groups),
    )  # fmt: skip


def _floats(section: Mapping[str, Any], bits: Any) -> Precision | None:
    named = str(section.get("data_type", "int"))
    return next((found for (kind, wide), found in FLOATS.items() if named.startswith(kind) and wide == bits), None)


def _integers(bits: int, group: int) -> Precision:
    return int4(group) if bits == 4 else int8(group)


def _mapping(section: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = section.get(name)
    return found if isinstance(found, Mapping) else {}


def _rules(section: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Patterns, what they say, and whether modules stay as they are: GPTQ's expressions, AutoRound's names."""
    for name, rule in _mapping(section, "dynamic").items():
        bare = name[2:] if name[:2] in ("-:", "+:") else name
        yield f"re:{bare}", rule if isinstance(rule, Mapping) else {}, name.startswith("-:")
    for name, rule in _mapping(section, "extra_config").items():
        pattern = f"re:{name}" if any(mark in name for mark in "^$\\+[(") or ".*" in name else name
        yield pattern, rule if isinstance(rule, Mapping) else {}, False


def bitsandbytes(section: Mapping[str, Any]) -> Quantisation:
    """4-bit normal floats with an fp32 scale per 64 weights (8 bits if scaled in turn), or 8-bit integers."""
    names = ignored(section, "llm_int8_skip_modules")
    if section.get("load_in_4bit"):
        scale = 1.0 + 4.0 / SUPER if section.get("bnb_4bit_use_double_quant") else 4.0
        return Quantisation(Precision("int4", 0.5 + scale / BLOCK), names)
    if section.get("load_in_8bit"):
        return Quantisation(INT8, names)
    raise UnsupportedModel("quantization_config: bitsandbytes needs load_in_4bit or load_in_8bit", field=FIELD)


def quark(section: Mapping[str, Any]) -> Quantisation:
    """AMD Quark: the weights' type of the global section, modules with one of their own, an 8-bit cache."""
    given = _mapping(section, "layer_quant_config")
    layers = {name: each for name, each in given.items() if isinstance(each, Mapping)}
    groups = tuple((Names.of([name]), _quark_type(each)) for name, each in layers.items() if _quark_weight(each))
    cached = any(
        "k_proj" in name and isinstance(each, Mapping) and each.get("output_tensors") for name, each in layers.items()
    )
    kv = kv_type(section.get("kv_cache_quant_algo")) or ("fp8" if cached else None)
    return Quantisation(
        _quark_type(section.get("global_quant_config")), ignored(section, "exclude"), kv_dtype=kv, groups=groups
    )


def _quark_weight(part: Any) -> Mapping[str, Any]:
    weight = part.get("weight") if isinstance(part, Mapping) else None
    weight = weight[0] if isinstance(weight, list) and weight else weight
    return weight if isinstance(weight, Mapping) else {}


def _quark_type(part: Any) -> Precision:
    weight = _quark_weight(part)
    dtype = str(weight.get("dtype", ""))
    if dtype in QUARK_INTEGERS:
        return int4(_group(weight, 128), zeros=QUARK_INTEGERS[dtype])
    found = next((precision for name, precision in QUARK.items() if dtype.startswith(name)), None)
    if found is None:
        raise UnsupportedModel(f"quark weights of type {dtype!r}: not modelled", field=FIELD)
    return found


def torchao(section: Mapping[str, Any]) -> Quantisation:
    """torchao: the type of the default, or of the linear maps, as its config class names it."""
    kinds = section.get("quant_type")
    default = _mapping(section, "quant_type").get("default", kinds)
    default = _by_name(default) or default
    named = str(default.get("_type", "")) if isinstance(default, Mapping) else str(default or "")
    config = _mapping(default, "_data") if isinstance(default, Mapping) else section
    key = named.replace("_", "").lower()
    found = next((make for name, make in TORCHAO.items() if key.startswith(name.lower())), None)
    if found is None:
        raise UnsupportedModel(f"torchao quant_type {named!r}: not modelled; known: {', '.join(TORCHAO)}", field=FIELD)
    return Quantisation(found(config), ignored(section, "modules_to_not_convert"))


def _by_name(default: Any) -> Any:
    """What a config by module names says of the modules that it does not name, if it is one."""
    data = _mapping(default, "_data") if isinstance(default, Mapping) else {}
    named = next((data[name] for name in ("fqn_to_config", "module_fqn_to_config") if name in data), None)
    return named.get("_default") if isinstance(named, Mapping) else None


def _intx(config: Mapping[str, Any]) -> Precision:
    """Integers of the bits that a config names, with a scale a group."""
    bits = str(_mapping(config, "weight_dtype").get("_data", config.get("weight_dtype", "int4")))
    group = _group(_mapping(_mapping(config, "weight_granularity"), "_data"), -1)
    makers = {"int4": int4, "int8": int8}
    if bits not in makers:
        raise UnsupportedModel(f"torchao weight_dtype {bits!r}: not modelled; known: int4, int8", field=FIELD)
    return makers[bits](group, zeros=False)


def hqq(section: Mapping[str, Any]) -> Quantisation:
    """Half-quadratic quantisation: integers with a 16-bit scale and a 16-bit zero point a group."""
    params = _mapping(_mapping(section, "quant_config"), "weight_quant_params") or section
    bits, group = params.get("nbits", params.get("bits")), _group(params, 64)
    if bits not in (4, 8):
        raise UnsupportedModel(f"quantization_config: hqq of {bits!r} bits: only 4 and 8 are modelled", field=FIELD)
    return Quantisation(Precision(f"int{bits}", bits / 8 + 4 / group), ignored(section, "skip_modules"))


def fp_quant(section: Mapping[str, Any]) -> Quantisation:
    """FP-Quant: the 4-bit floats of its forward pass."""
    kind = str(section.get("forward_dtype", "mxfp4"))
    if kind not in ("mxfp4", "nvfp4"):
        raise UnsupportedModel(f"fp_quant forward_dtype {kind!r}: not modelled; known: mxfp4, nvfp4", field=FIELD)
    return Quantisation(MXFP4 if kind == "mxfp4" else NVFP4, ignored(section, "modules_to_not_convert"))


def _group(config: Mapping[str, Any], otherwise: int) -> int:
    found = config.get("group_size")
    return found if isinstance(found, int) else otherwise
