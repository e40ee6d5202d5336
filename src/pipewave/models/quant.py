"""Which linear maps are quantised and how, from `quantization_config` or a side file `hf_quant_config.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.patterns import Names, matches
from pipewave.models.precision import BF16, FP8, FP8_BLOCK, INT8, MXFP4, MXFP8, NVFP4, Precision, int4

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
}
WIDENED = "8-bit weights of 16-bit products: answered as int8 products, which long prompts run up to twice as fast"
ROUTER_PARTS = ("gate", "router", "shared_expert_gate")
EXPERT_DTYPES = {"fp4": MXFP4, "mxfp4": MXFP4, "fp8": FP8_BLOCK}


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The quantised precision, the modules left in 16 bits, and the type of the KV cache (None = the model's).

    `groups`: precisions of the modules that a list names, before the common one. `experts`: that of routed experts.
    """

    precision: Precision = BF16
    ignore: Names = field(default_factory=Names)
    lm_head: bool = False
    kv_dtype: str | None = None
    experts_only: bool = False
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[Names, Precision], ...] = ()
    experts: Precision | None = None

    def of(self, modules: Sequence[str], base: Precision) -> Precision:
        """Precision of a module by the names checkpoints give it, such as `layers.0.self_attn.q_proj`."""
        routed = any(".experts" in module for module in modules)
        if modules[0].rsplit(".", 1)[-1] in ROUTER_PARTS:
            return base
        for names, precision in self.groups:
            if any(names.name(module) for module in modules):
                return precision
        if self.precision.full and not (routed and self.experts):
            return base
        if (self.experts_only and not routed) or (modules[0] == "lm_head" and not self.lm_head):
            return base
        ignored = any(self.ignore.name(module) for module in modules)
        return base if ignored else (self.experts if routed and self.experts else self.precision)

    def key(self, index: int) -> object:
        """Equal for layers that are quantised alike."""
        return (self.ignore.key(index), *(names.key(index) for names, _ in self.groups))


def read(section: Mapping[str, Any]) -> Quantisation:
    """Read a `quantization_config` section; an empty one means 16-bit weights."""
    if not section:
        return Quantisation()
    method = section.get("quant_method") or ("modelopt" if "quant_algo" in section else None)
    if method is None and "config_groups" in section:
        method = "compressed-tensors"
    reader = _READERS.get(str(method).replace("_", "-"))
    if reader is None:
        raise UnsupportedModel(
            f"quantization_config.quant_method = {method!r}: not modelled; known: {', '.join(_READERS)}",
            field="quantization_config",
        )
    return reader(section)


def read_hf_quant(document: Mapping[str, Any]) -> Quantisation:
    """Read NVIDIA ModelOpt's side file `hf_quant_config.json`."""
    section = document.get("quantization", document)
    if not isinstance(section, Mapping):
        raise BadInput("hf_quant_config.json: 'quantization' must be an object", field="quantization")
    return _modelopt(section)


def _ignored(section: Mapping[str, Any], *names: str) -> Names:
    found: list[str] = []
    for name in names:
        entries = section.get(name) or []
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise BadInput(f"quantization_config.{name}: must be a list of module names", field=name)
        found += [str(entry) for entry in entries]
    return Names.of(found)


def _fp8(section: Mapping[str, Any]) -> Quantisation:
    if section.get("quantized_layers"):
        return _mixed(section)
    block = section.get("weight_block_size")
    ignore = _ignored(section, "ignored_layers", "modules_to_not_convert", "ignore")
    return Quantisation(_blocks(block), ignore, kv_dtype=_kv(section.get("kv_cache_quant_algo")))


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
    if section.get("quantized_layers"):
        return _mixed(section)
    algorithm = section.get("quant_algo")
    if algorithm is None and not section.get("config_groups"):
        return Quantisation(kv_dtype=_kv(section.get("kv_cache_quant_algo")))
    precision = _algorithm(algorithm) if algorithm else _compressed(section).precision
    ignore = _ignored(section, "exclude_modules", "ignore")
    named = section.get("kv_cache_quant_algo") or ("FP8" if section.get("kv_cache_scheme") else None)
    return Quantisation(precision, ignore, kv_dtype=_kv(named))


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
    ignore = _ignored(section, *(("modules_to_not_convert",) if blocks else ("exclude_modules", "ignore")))
    return Quantisation(rest, ignore, kv_dtype=_kv(section.get("kv_cache_quant_algo")), groups=groups)


def _weight_only(section: Mapping[str, Any]) -> Quantisation:
    bits, group = section.get("bits", section.get("w_bit")), section.get("group_size", section.get("q_group_size", 128))
    if bits not in (4, 8) or not isinstance(group, int):
        raise UnsupportedModel(f"quantization_config.bits = {bits!r}: only 4 and 8 are modelled", field="bits")
    precision = _integers(bits, group)
    dynamic = section.get("dynamic") or {}
    skipped = [f"re:{name[2:]}" for name in dynamic if str(name).startswith("-:")]
    kept = section.get("modules_to_not_convert") or []
    ignore = _ignored({"ignore": [*kept, *skipped]}, "ignore")
    notes = () if bits == 4 else (WIDENED,)
    return Quantisation(
        precision, ignore, lm_head=bool(section.get("lm_head", False)), notes=notes, groups=tuple(_dynamic(dynamic))
    )


def _integers(bits: int, group: int) -> Precision:
    return int4(group) if bits == 4 else Precision("int8", 1.0 + 2.5 / max(group, 1))


def _dynamic(rules: Any) -> Iterator[tuple[Names, Precision]]:
    """GPTQ's own bits for some modules."""
    for name, rule in rules.items() if isinstance(rules, Mapping) else ():
        if not str(name).startswith("-:") and isinstance(rule, Mapping) and rule.get("bits") in (4, 8):
            yield Names.of([f"re:{str(name).removeprefix('+:')}"]), _integers(rule["bits"], rule.get("group_size", 128))


def _mxfp4(section: Mapping[str, Any]) -> Quantisation:
    return Quantisation(MXFP4, _ignored(section, "modules_to_not_convert"), experts_only=True)


def _compressed(section: Mapping[str, Any]) -> Quantisation:
    groups = section.get("config_groups")
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
    kv = "FP8" if section.get("kv_cache_scheme") else None
    return Quantisation(common, _ignored(section, "ignore"), kv_dtype=_kv(kv), groups=tuple(named))


def _compressed_precision(weights: Mapping[str, Any], inputs: Any) -> Precision:
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    group = weights.get("group_size") or -1
    if kind == "float" and bits == 8:
        return MXFP8 if group == 32 else FP8_BLOCK if strategy == "block" else FP8
    if kind == "float" and bits == 4:
        return MXFP4 if group == 32 else NVFP4
    if kind == "int" and bits == 8:
        return INT8 if inputs else Precision("int8", 1.0 + 2.5 / max(int(group), 1))
    if kind == "int" and bits == 4:
        return int4(int(group), zeros=not weights.get("symmetric", True))
    raise UnsupportedModel(f"config_groups weights of {bits} bits, type {kind!r}: not modelled", field="config_groups")


def _bitsandbytes(section: Mapping[str, Any]) -> Quantisation:
    """bitsandbytes: 4-bit normal floats with a scale per 64 weights, or 8-bit integers."""
    ignore = _ignored(section, "llm_int8_skip_modules")
    if section.get("load_in_4bit"):
        return Quantisation(int4(64, zeros=False), ignore)
    if section.get("load_in_8bit"):
        return Quantisation(INT8, ignore)
    raise UnsupportedModel(
        "quantization_config: bitsandbytes needs load_in_4bit or load_in_8bit", field="quantization_config"
    )


def _quark(section: Mapping[str, Any]) -> Quantisation:
    """AMD Quark: the weights' type of the global section."""
    whole = section.get("global_quant_config") or {}
    weight = whole.get("weight") if isinstance(whole, Mapping) else None
    weight = weight[0] if isinstance(weight, list) and weight else weight
    dtype = str(weight.get("dtype", "")) if isinstance(weight, Mapping) else ""
    known = {"fp8": FP8, "fp4": MXFP4, "int8": INT8, "int4": int4(128)}
    found = next((precision for name, precision in known.items() if dtype.startswith(name)), None)
    if found is None:
        raise UnsupportedModel(f"quark weights of type {dtype!r}: not modelled", field="quantization_config")
    return Quantisation(found, _ignored(section, "exclude"), kv_dtype=_kv(section.get("kv_cache_quant_algo")))


def _mxfp8(section: Mapping[str, Any]) -> Quantisation:
    return Quantisation(MXFP8, _ignored(section, "modules_to_not_convert", "ignored_layers", "ignore"))


def _kv(algorithm: Any) -> str | None:
    if algorithm in (None, "none", "auto"):
        return None
    if str(algorithm).upper() != "FP8":
        raise UnsupportedModel(
            f"kv_cache_quant_algo = {algorithm!r}: only FP8 is modelled", field="kv_cache_quant_algo"
        )
    return "fp8"


_READERS = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-fp8": _modelopt,
    "modelopt-mixed": _modelopt,
    "compressed-tensors": _compressed,
    "awq": _weight_only,
    "awq-marlin": _weight_only,
    "gptq": _weight_only,
    "gptq-marlin": _weight_only,
    "auto-round": _weight_only,
    "intel/auto-round": _weight_only,
    "mxfp4": _mxfp4,
    "mxfp8": _mxfp8,
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
}
