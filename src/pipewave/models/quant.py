"""Which linear maps are quantised and how, from `quantization_config` or a side file `hf_quant_config.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.spec import BF16, Precision

# Bytes of one weight with its scales: per output channel the scale vanishes beside a row of thousands.
FP8 = Precision("fp8", 1.0, quantize=True)
FP8_BLOCK = Precision("fp8_block", 1.0 + 4 / 128**2, quantize=True)  # one fp32 scale per 128 × 128 block
INT8 = Precision("int8", 1.0, quantize=True)
NVFP4 = Precision("nvfp4", 0.5 + 1 / 16, quantize=True)  # one fp8 scale per 16 weights
MXFP4 = Precision("mxfp4", 0.5 + 1 / 32)  # one e8m0 scale per 32 weights; activations stay 16-bit on Hopper
ALGORITHMS = {"FP8": FP8, "NVFP4": NVFP4, "W4A16_NVFP4": NVFP4, "FP8_PB_WO": FP8_BLOCK, "MXFP4": MXFP4}
WIDENED = "8-bit weights of 16-bit products: answered as int8 products, which long prompts run up to twice as fast"
ROUTER_PARTS = ("gate", "router", "shared_expert_gate")


def int4(group: int, *, zeros: bool = True) -> Precision:
    """Weight-only 4-bit integers with a 16-bit scale (and a 4-bit zero point) per `group` weights; -1 = per row."""
    overhead = 0.0 if group <= 0 else (2 + (0.5 if zeros else 0)) / group
    return Precision("int4", 0.5 + overhead)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The quantised precision, the modules left in 16 bits, and the type of the KV cache (None = the model's)."""

    precision: Precision = BF16
    ignore: tuple[str, ...] = ()
    lm_head: bool = False
    kv_dtype: str | None = None
    experts_only: bool = False
    notes: tuple[str, ...] = ()

    def of(self, module: str, base: Precision) -> Precision:
        """Precision of a module by its checkpoint name, such as `model.layers.0.self_attn.q_proj`."""
        if self.precision.full or module.rsplit(".", 1)[-1] in ROUTER_PARTS:
            return base
        if self.experts_only and ".experts" not in module:
            return base
        if module == "lm_head" and not self.lm_head:
            return base
        return base if any(matches(module, pattern) for pattern in self.ignore) else self.precision


def matches(module: str, pattern: str) -> bool:
    """True when an ignore entry names the module: `re:` expressions, globs, or whole dotted parts."""
    if pattern.startswith("re:"):
        return _expression(pattern[3:]).match(module) is not None
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, pattern.rstrip(".") + ".*")
    return f".{pattern}." in f".{module}."


def _expression(text: str) -> re.Pattern[str]:
    # A repeated group can take exponential time on hostile input; no real ignore list needs one.
    if len(text) > 200 or re.search(r"\)[*+{]", text) or len(re.findall(r"[*+{]", text)) > 8:
        raise BadInput(f"quantization ignore pattern {text[:40]!r}: too complex", field="ignore")
    try:
        return re.compile(text)
    except re.error as problem:
        raise BadInput(f"quantization ignore pattern {text[:40]!r}: {problem}", field="ignore") from problem


def read(section: Mapping[str, Any]) -> Quantisation:
    """Read a `quantization_config` section; an empty one means 16-bit weights."""
    if not section:
        return Quantisation()
    method = section.get("quant_method") or ("modelopt" if "quant_algo" in section else None)
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


def _ignored(section: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        entries = section.get(name) or []
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise BadInput(f"quantization_config.{name}: must be a list of module names", field=name)
        found += [str(entry) for entry in entries]
    return tuple(found)


def _fp8(section: Mapping[str, Any]) -> Quantisation:
    block = section.get("weight_block_size")
    if block not in (None, [128, 128]):
        raise UnsupportedModel(f"weight_block_size = {block!r}: only [128, 128] is modelled", field="weight_block_size")
    ignore = _ignored(section, "ignored_layers", "modules_to_not_convert")
    return Quantisation(FP8_BLOCK if block else FP8, ignore, kv_dtype=_kv(section.get("kv_cache_quant_algo")))


def _modelopt(section: Mapping[str, Any]) -> Quantisation:
    if section.get("quantized_layers"):
        raise UnsupportedModel("quantized_layers: mixed precision per layer is not modelled", field="quantized_layers")
    algorithm = section.get("quant_algo")
    if algorithm not in ALGORITHMS:
        raise UnsupportedModel(
            f"quant_algo = {algorithm!r}: not modelled; known: {', '.join(ALGORITHMS)}", field="quant_algo"
        )
    ignore = _ignored(section, "exclude_modules", "ignore")
    named = section.get("kv_cache_quant_algo") or ("FP8" if section.get("kv_cache_scheme") else None)
    return Quantisation(ALGORITHMS[algorithm], ignore, kv_dtype=_kv(named))


def _weight_only(section: Mapping[str, Any]) -> Quantisation:
    bits, group = section.get("bits", section.get("w_bit")), section.get("group_size", section.get("q_group_size", 128))
    if bits not in (4, 8) or not isinstance(group, int):
        raise UnsupportedModel(f"quantization_config.bits = {bits!r}: only 4 and 8 are modelled", field="bits")
    precision = int4(group) if bits == 4 else Precision("int8", 1.0 + 2.5 / max(group, 1))
    ignore = _ignored(section, "modules_to_not_convert")
    notes = () if bits == 4 else (WIDENED,)
    return Quantisation(precision, ignore, lm_head=bool(section.get("lm_head", False)), notes=notes)


def _mxfp4(section: Mapping[str, Any]) -> Quantisation:
    return Quantisation(MXFP4, _ignored(section, "modules_to_not_convert"), experts_only=True)


def _compressed(section: Mapping[str, Any]) -> Quantisation:
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise UnsupportedModel("config_groups: exactly one group is modelled", field="config_groups")
    group = next(iter(groups.values()))
    targets = group.get("targets", ["Linear"]) if isinstance(group, Mapping) else None
    if targets != ["Linear"]:
        raise UnsupportedModel(f"config_groups targets {targets!r}: only ['Linear'] is modelled", field="config_groups")
    precision = _compressed_precision(group.get("weights") or {}, group.get("input_activations"))
    kv = "FP8" if section.get("kv_cache_scheme") else None
    return Quantisation(precision, _ignored(section, "ignore"), kv_dtype=_kv(kv))


def _compressed_precision(weights: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> Precision:
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    if kind == "float" and bits == 8:
        return FP8_BLOCK if strategy == "block" else FP8
    if kind == "float" and bits == 4:
        return NVFP4 if weights.get("group_size", 16) == 16 else MXFP4
    if kind == "int" and bits == 8 and inputs:
        return INT8
    if kind == "int" and bits == 4 and not inputs:
        return int4(int(weights.get("group_size") or -1), zeros=not weights.get("symmetric", True))
    raise UnsupportedModel(f"config_groups weights of {bits} bits, type {kind!r}: not modelled", field="config_groups")


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
    "compressed-tensors": _compressed,
    "awq": _weight_only,
    "gptq": _weight_only,
    "mxfp4": _mxfp4,
}
