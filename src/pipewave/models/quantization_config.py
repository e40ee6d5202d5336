"""Reads `quantization_config`, or the side file `hf_quant_config.json`, of every tool that engines load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.files import packaged
from pipewave.models.precision import (
    BF16,
    FIELD,
    FP8,
    FP8_BLOCK,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    Names,
    Precision,
    Quantisation,
    cache_notes,
    ignored,
    integers,
    kv_type,
    modules,
)

WIDENED = "8-bit weights of 16-bit products: answered as int8 products, which long prompts run up to twice as fast"
# AutoRound's `data_type` with its bits; plain integers are the rest.
FLOATS = {("nv_fp", 4): NVFP4, ("mx_fp", 4): MXFP4, ("mx_fp", 8): MXFP8, ("fp", 8): FP8}
BLOCK, SUPER = 64, 256  # bitsandbytes: weights a scale, scales a second scale
QUARK_INTEGERS = {"int4": False, "uint4": True}  # whether groups have zero points
TORCHAO: Mapping[str, Callable[[Mapping[str, Any]], Precision]] = {
    "Int4WeightOnly": lambda config: integers(4, _group(config, 128)),
    "Int8WeightOnly": lambda config: integers(8, _group(config, -1), zeros=False),
    "Int8DynamicActivationInt8Weight": lambda _: INT8,
    "Float8": lambda _: FP8,
    "Int8DynamicActivationInt4Weight": lambda config: integers(4, _group(config, 32), zeros=False),
    "Int8DynamicActivationIntxWeight": lambda config: _intx(config),
    "NVFP4": lambda _: NVFP4,
    "MX": lambda config: MXFP4 if "4" in str(config.get("elem_dtype", "")) else MXFP8,
}
Made = TypeVar("Made")
KEPT = ("ignored_layers", "modules_to_not_convert", "ignore")  # lists of modules in 16 bits
_SECTIONS = packaged.document(packaged.ROOT / "data" / "quantization.json")
# What vLLM and SGLang make of 16-bit weights while they load them, by the word of `--quantization`: one scale a matrix,
# inputs quantised as they come (`layers/quantization/fp8.py` of both).
ONLINE: dict[str, dict[str, Any]] = _SECTIONS["online"]
ONLINE_ENGINES: list[str] = _SECTIONS["online_engines"]
# What quantised checkpoints of 16-bit models state, by name of the format.
FORMATS: dict[str, dict[str, Any]] = ONLINE | _SECTIONS["checkpoints"]
KINDS = {"bf16": BF16, "fp8": FP8, "fp8_block": FP8_BLOCK, "int8": INT8, "nvfp4": NVFP4, "mxfp4": MXFP4, "mxfp8": MXFP8,
         "int4 in 128": integers(4, 128, zeros=False), "int8 in rows": integers(8, -1, zeros=False)}  # fmt: skip
# Words of tools for types; those of ModelOpt are its `quant_algo`.
EXPERT_DTYPES, FP_QUANT, QUARK, ALGORITHMS = (
    {word: KINDS[kind] for word, kind in words.items()} for words in _SECTIONS["words"].values()
)


def _known(what: str, word: object, table: Mapping[str, Made], field: str = FIELD) -> Made:
    """What a table says of a word. Raises UnsupportedModel, which lists the words that it knows."""
    if str(word) not in table:
        raise UnsupportedModel(f"{what} {word!r}: not modelled; known: {', '.join(table)}", field=field)
    return table[str(word)]


def weight_only(section: Mapping[str, Any]) -> Quantisation:
    """AWQ, GPTQ and AutoRound: integers with a scale and a zero point a group, some modules with bits of their own."""
    bits, group = section.get("bits", section.get("w_bit")), _group(section, _group(section, 128, "q_group_size"))
    named = str(section.get("data_type", "int"))
    floats = next((kind for (word, wide), kind in FLOATS.items() if named.startswith(word) and wide == bits), None)
    if floats is None and bits not in (4, 8):
        raise UnsupportedModel(f"quantization_config.bits = {bits!r}: only 4 and 8 are modelled", field="bits")
    own = list(_rules(section))
    skipped = [name for name, rule, off in own if off or rule.get("bits") in (16, 32)]
    kept = section.get("modules_to_not_convert") or []
    notes = (WIDENED,) if floats is None and bits == 8 else ()
    groups = [(Names.of([name]), integers(rule["bits"], _group(rule, group)))
              for name, rule, off in own if not off and rule.get("bits") in (4, 8)]  # fmt: skip
    return Quantisation(
        floats or integers(bits, group), ignored({"ignore": [*kept, *skipped]}, "ignore"),
        lm_head=bool(section.get("lm_head", False)), notes=notes, groups=tuple(groups),
    )  # fmt: skip


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
        return integers(4, _group(weight, 128), zeros=QUARK_INTEGERS[dtype])
    found = next((precision for name, precision in QUARK.items() if dtype.startswith(name)), None)
    if found is None:
        raise UnsupportedModel(f"quark weights of type {dtype!r}: not modelled", field=FIELD)
    return found


def torchao(section: Mapping[str, Any]) -> Quantisation:
    """torchao: the type of the default, or of the linear maps, as its config class names it."""
    default = _mapping(section, "quant_type").get("default", section.get("quant_type"))
    data = _mapping(default, "_data") if isinstance(default, Mapping) else {}
    by_name = next((data[name] for name in ("fqn_to_config", "module_fqn_to_config") if name in data), None)
    if isinstance(by_name, Mapping):  # what it says of the modules that it does not name
        default = by_name.get("_default") or default
    named = str(default.get("_type", "")) if isinstance(default, Mapping) else str(default or "")
    config = _mapping(default, "_data") if isinstance(default, Mapping) else section
    key = named.replace("_", "").lower()
    begun = next((name for name in TORCHAO if key.startswith(name.lower())), named)
    make = _known("torchao quant_type", begun, TORCHAO)
    return Quantisation(make(config), ignored(section, "modules_to_not_convert"))


def _intx(config: Mapping[str, Any]) -> Precision:
    """Integers of the bits that a config names, with a scale a group."""
    dtype = _mapping(config, "weight_dtype").get("_data", config.get("weight_dtype", "int4"))
    group = _group(_mapping(_mapping(config, "weight_granularity"), "_data"), -1)
    return integers(_known("torchao weight_dtype", dtype, {"int4": 4, "int8": 8}), group, zeros=False)


def hqq(section: Mapping[str, Any]) -> Quantisation:
    """Half-quadratic quantisation: integers with a 16-bit scale and a 16-bit zero point a group."""
    params = _mapping(_mapping(section, "quant_config"), "weight_quant_params") or section
    bits, group = params.get("nbits", params.get("bits")), _group(params, 64)
    if bits not in (4, 8):
        raise UnsupportedModel(f"quantization_config: hqq of {bits!r} bits: only 4 and 8 are modelled", field=FIELD)
    scales = 4 / group if group > 0 else 0.0
    return Quantisation(Precision(f"int{bits}", bits / 8 + scales), ignored(section, "skip_modules"))


def fp_quant(section: Mapping[str, Any]) -> Quantisation:
    """FP-Quant: the 4-bit floats of its forward pass."""
    kind = _known("fp_quant forward_dtype", section.get("forward_dtype", "mxfp4"), FP_QUANT)
    return Quantisation(kind, ignored(section, "modules_to_not_convert"))


def _group(config: Mapping[str, Any], otherwise: int, name: str = "group_size") -> int:
    """Weights that share a scale; -1: those of a row."""
    found = config.get(name)
    if found is None:
        return otherwise
    if not isinstance(found, int):
        raise BadInput(f"{name} = {found!r}: must be a whole number, or -1 for a row", field=name)
    return found


def read_quantization(section: Mapping[str, Any]) -> Quantisation:
    """Read a `quantization_config` section; an empty one means 16-bit weights."""
    if not section:
        return Quantisation()
    method = section.get("quant_method") or ("modelopt" if "quant_algo" in section else None)
    if method is None and "config_groups" in section:
        method = "compressed-tensors"
    found = _known("quantization_config.quant_method =", str(method).lower().replace("_", "-"), _READERS)(section)
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
    kv_dtype = kv_type(section.get("kv_cache_quant_algo"))
    return Quantisation(_blocks(section.get("weight_block_size")), ignored(section, *KEPT), kv_dtype=kv_dtype)


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


_algorithm = partial(_known, "quant_algo =", table=ALGORITHMS, field="quant_algo")


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
        targets = modules(group, "targets") or ["Linear"]
        if any(target in ("Linear", "LinearBase", "FusedMoE", "MoE") for target in targets):
            common = precision
        else:
            named.append((Names.of(targets), precision))
    return Quantisation(common, ignored(section, "ignore"), kv_dtype=kv, groups=tuple(named))


def _compressed_precision(weights: Mapping[str, Any], inputs: Any) -> Precision:
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    group, zeros = _group(weights, -1), not weights.get("symmetric", True)
    if kind == "float" and bits == 8:
        return MXFP8 if group == 32 else FP8_BLOCK if strategy == "block" else FP8
    if kind == "float" and bits == 4:
        return MXFP4 if group == 32 else NVFP4
    if kind == "int" and bits in (4, 8):
        return INT8 if inputs and bits == 8 else integers(bits, group, zeros=zeros)
    raise UnsupportedModel(f"config_groups weights of {bits} bits, type {kind!r}: not modelled", field="config_groups")


def _one_type(precision: Precision, experts_only: bool = False) -> Callable[[Mapping[str, Any]], Quantisation]:
    """A reader of methods whose name says it all."""
    return lambda section: Quantisation(precision, ignored(section, *KEPT), experts_only=experts_only)


def _w4afp8(section: Mapping[str, Any]) -> Quantisation:
    """4-bit routed experts, 8-bit products and all else in FP8 blocks."""
    experts = integers(4, _group(section, 128), zeros=False)
    return Quantisation(
        _blocks(section.get("weight_block_size") or [128, 128]), ignored(section, *KEPT), experts=experts
    )


# By `quant_method`.
_READERS: dict[str, Callable[[Mapping[str, Any]], Quantisation]] = {
    **dict.fromkeys(("fp8", "fbgemm-fp8", "ptpc-fp8"), _fp8),
    **dict.fromkeys((f"modelopt{kind}" for kind in ("", "-fp4", "-fp8", "-mixed", "-mxfp8", "-nvfp4")), _modelopt),
    "petit-nvfp4": _modelopt,
    "compressed-tensors": _compressed,
    **dict.fromkeys(("awq", "awq-marlin", "gptq", "gptq-marlin", "moe-wna16"), weight_only),
    **dict.fromkeys(("auto-round", "intel/auto-round", "inc"), weight_only),
    "mxfp4": _one_type(MXFP4, experts_only=True),
    "mxfp8": _one_type(MXFP8),
    "bitsandbytes": bitsandbytes,
    "quark": quark,
    "hqq": hqq,
    "fp-quant": fp_quant,
    "eetq": _one_type(integers(8, -1, zeros=False)),
    "torchao": torchao,
    "w8a8-int8": _one_type(INT8),
    "w8a8-fp8": _one_type(FP8),
    "w4afp8": _w4afp8,
}
