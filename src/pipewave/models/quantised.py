"""What a quantisation section says: which modules are narrow, and how narrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.patterns import Names
from pipewave.models.precision import BF16, Precision

ROUTER_PARTS = ("gate", "router", "shared_expert_gate", "weights_proj")
FIELD = "quantization_config"
CACHES = {"FP8": "fp8", "FP8_E4M3": "fp8", "NVFP4": "fp8", "FP4": "fp8"}  # what engines' kernels read at most
WIDER_CACHE = "a 4-bit KV cache: answered as FP8, twice its bytes"


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


def ignored(section: Mapping[str, Any], *names: str) -> Names:
    """The modules that lists of a section leave in 16 bits."""
    found: list[str] = []
    for name in names:
        entries = section.get(name) or []
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise BadInput(f"quantization_config.{name}: must be a list of module names", field=name)
        found += [str(entry) for entry in entries]
    return Names.of(found)


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
