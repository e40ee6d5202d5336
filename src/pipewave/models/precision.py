"""Linear maps and their operand types, and which modules of a checkpoint are quantised to which type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, ClassVar

from pipewave.errors import BadInput, UnsupportedModel

_LAYER = re.compile(r"^(?:[\w*]+\.)*?layers\.(\d+)(?=[.*]|$)")
_OTHER_EXPERT = re.compile(r"\.experts\.[1-9]")
_PREFIX = re.compile(r"^(?:(?:model|language_model|backbone|transformer|decoder|text_model|llm|thinker)\.)+")
ROUTER_PARTS = ("gate", "router", "shared_expert_gate", "weights_proj")
FIELD = "quantization_config"
CACHES = {"FP8": "fp8", "FP8_E4M3": "fp8", "NVFP4": "fp8", "FP4": "fp8"}  # what engines' kernels read at most
WIDER_CACHE = "a 4-bit KV cache: answered as FP8, twice its bytes"


@dataclass(frozen=True, slots=True)
class Precision:
    """Operand type of a linear map."""

    dtype: str = "bf16"  # as a kernel call names it
    bytes_per_weight: float = 2.0  # with its scales
    quantize: bool = False  # activations are quantised on the fly, which is work of its own

    @property
    def full(self) -> bool:
        """True for an unquantised 16-bit map."""
        return self.dtype in ("bf16", "fp16")


BF16 = Precision()
FP16 = Precision("fp16")
# Per output channel a scale vanishes beside a row of thousands of weights.
FP8 = Precision("fp8", 1.0, quantize=True)
FP8_BLOCK = Precision("fp8_block", 1.0 + 4 / 128**2, quantize=True)  # one fp32 scale per 128 × 128 block
INT8 = Precision("int8", 1.0, quantize=True)
NVFP4 = Precision("nvfp4", 0.5 + 1 / 16, quantize=True)  # one fp8 scale per 16 weights
MXFP4 = Precision("mxfp4", 0.5 + 1 / 32)  # one e8m0 scale per 32 weights; activations stay 16-bit on Hopper
MXFP8 = Precision("fp8", 1.0 + 1 / 32, quantize=True)  # one e8m0 scale per 32 weights


def integers(bits: int, group: int, *, zeros: bool = True) -> Precision:
    """Integers of 4 or 8 bits with a 16-bit scale and a zero point as wide as a weight per `group`; -1 = per row."""
    each = bits / 8
    return Precision(f"int{bits}", each + (0.0 if group <= 0 else (2 + (each if zeros else 0)) / group))


@dataclass(frozen=True, slots=True)
class Linear:
    """y[rows, out] = x[rows, inp]·Wᵀ."""

    name: str
    out: int
    inp: int
    split: str = "none"  # how tensor parallelism cuts it: out, in, none, or qkv: `out`, but KV heads stay whole
    bias: bool = False
    precision: Precision = BF16
    cache: int = 0  # part of `out` that is K and V
    pair: int = 0  # K and V columns of one KV head
    groups: int = 1  # of a block-diagonal map: so many maps of out / groups × inp / groups

    @property
    def params(self) -> int:
        """Weights and biases of the whole map."""
        return self.out * self.inp // self.groups + (self.out if self.bias else 0)

    def shape(self, tp: int) -> tuple[int, int]:
        """(out, inp) on one of `tp` ranks; of one block-diagonal map, all its blocks there."""
        if self.split == "in":
            return self.out, self.inp // tp
        if self.split == "out":
            return self.out // tp, self.inp
        if self.split == "qkv":
            kv = max(self.cache // tp, self.pair)
            return (self.out - self.cache) // tp + kv, self.inp
        return self.out, self.inp

    def weight_bytes(self, tp: int = 1) -> float:
        """Bytes of weights, scales and biases on one of `tp` ranks."""
        out, inp = self.shape(tp)
        return out * inp // self.groups * self.precision.bytes_per_weight + (2 * out if self.bias else 0)


@dataclass(frozen=True, slots=True)
class LayerPart:
    """What attention, recurrences and feed-forward blocks share; by default a part is nothing but its matrices."""

    cut: ClassVar[Mapping[str, str]] = {}  # field that the tensor-parallel degree must divide, by its name for users
    matrices: ClassVar[tuple[str, ...]] = ()  # fields of one, several, a part of some, or None, in the order they run

    def linears(self) -> tuple[Linear, ...]:
        """The weight matrices that every token meets, in the order they run."""
        found: list[Linear] = []
        for held in (getattr(self, name) for name in self.matrices):
            found += held.linears() if isinstance(held, LayerPart) else held if isinstance(held, tuple) else (held,)
        return tuple(each for each in found if each is not None)

    @property
    def extra_params(self) -> int:
        """Parameters outside the linear maps."""
        return int(getattr(self, "params", 0))

    @property
    def divided(self) -> dict[str, int]:
        """Counts that the tensor-parallel degree must divide, by the name a user knows."""
        return {name: getattr(self, field) for name, field in self.cut.items()}


def short_name(module: str) -> str:
    """A module or a pattern without the prefixes of its wrapper."""
    return _PREFIX.sub("", module)


def matches(module: str, pattern: str) -> bool:
    """True when an entry names the module: `re:` expressions, globs, or whole dotted parts."""
    if pattern.startswith("re:"):
        expression = _expression(pattern[3:])
        return any(expression.match(prefix + short_name(module)) for prefix in ("", "model.", "language_model.model."))
    module, pattern = short_name(module), short_name(pattern)
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, pattern.rstrip(".") + ".*")
    return f".{pattern}." in f".{module}."


@lru_cache(maxsize=256)
def _expression(text: str) -> re.Pattern[str]:
    # A repeated group can take exponential time on hostile input; no real list of modules needs one.
    if len(text) > 2000 or re.search(r"\)[*+{]", text) or len(re.findall(r"[*+{]", text)) > 12:
        raise BadInput(f"quantization ignore pattern {text[:40]!r}: too complex", field="ignore")
    try:
        return re.compile(text)
    except re.error as problem:
        raise BadInput(f"quantization ignore pattern {text[:40]!r}: {problem}", field="ignore") from problem


@dataclass(frozen=True, slots=True)
class Names:
    """A list of module patterns, split into those of one layer and those of any."""

    general: tuple[str, ...] = ()
    by_layer: dict[int, frozenset[str]] = field(default_factory=dict)
    indexed: bool = False  # an expression speaks of layer numbers, so every layer may differ

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        """Sort patterns by the layer they name."""
        general: dict[str, None] = {}
        layers: dict[int, set[str]] = {}
        for pattern in patterns:
            if ".experts." in pattern and _OTHER_EXPERT.search(pattern):
                continue  # lists that name every expert say the same of each
            found = None if pattern.startswith("re:") else _LAYER.match(short_name(pattern))
            if found:
                layers.setdefault(int(found[1]), set()).add(short_name(pattern).replace(found[1], "#", 1))
            else:
                general[pattern] = None
        indexed = any(
            p.startswith("re:") and "layers" in p and re.search(r"\d", p.partition("layers")[2]) for p in general
        )
        return cls(tuple(general), {index: frozenset(found) for index, found in layers.items()}, indexed)

    def key(self, index: int) -> object:
        """Equal for layers that the list treats alike."""
        return index if self.indexed else self.by_layer.get(index, frozenset())

    def name(self, module: str) -> bool:
        """Whether any pattern names the module."""
        if any(matches(module, pattern) for pattern in self.general):
            return True
        parts = short_name(module).split(".")
        own = self.by_layer.get(int(parts[1])) if parts[0] == "layers" and parts[1:] and parts[1].isdigit() else None
        if not own:
            return False
        parts[1] = "#"
        heads = {".".join(parts[:size]) for size in range(2, len(parts) + 1)}
        return not heads.isdisjoint(own) or any(matches(".".join(parts), each) for each in own if "*" in each)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Which types the modules of a checkpoint have."""

    precision: Precision = BF16  # of all that is quantised
    ignore: Names = field(default_factory=Names)  # modules left in 16 bits
    lm_head: bool = False
    kv_dtype: str | None = None  # of the KV cache; None: the model's
    experts_only: bool = False
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[Names, Precision], ...] = ()  # of modules that a list names, before the common one
    experts: Precision | None = None  # of routed experts

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


def ignored(section: Mapping[str, Any], *names: str) -> Names:
    """The modules that lists of a section leave in 16 bits."""
    return Names.of([module for name in names for module in modules(section, name)])


def modules(section: Mapping[str, Any], name: str) -> list[str]:
    """The names in a list of a section; none where it has no such list."""
    entries = section.get(name) or []
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise BadInput(f"quantization_config.{name}: must be a list of module names", field=name)
    return [str(entry) for entry in entries]


def kv_type(algorithm: Any) -> str | None:
    """Type of the KV cache that a section names; None: the model's."""
    if algorithm in (None, "none", "auto"):
        return None
    named = str(algorithm).upper()
    if named not in CACHES:
        raise UnsupportedModel(
            f"kv_cache_quant_algo = {algorithm!r}: must be one of {', '.join(CACHES)}", field="kv_cache_quant_algo"
        )
    return CACHES[named]


def cache_notes(section: Mapping[str, Any]) -> tuple[str, ...]:
    """What to tell of a cache that is narrower than what is answered."""
    return (WIDER_CACHE,) if "FP4" in str(section.get("kv_cache_quant_algo")).upper() else ()
