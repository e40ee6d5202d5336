"""What all readers of one layer share: its fields, its family, and the precision its modules ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipewave.models.families import Family, FlagOrField
from pipewave.models.fields import Fields
from pipewave.models.kind import Kind
from pipewave.models.precision import Linear, Precision
from pipewave.models.quant import Quantisation

# Names that checkpoints give the block a part lives in, the most common first.
ATTENTION = ("self_attn", "attn", "attention", "mixer")
RECURRENT = ("linear_attn", "mamba", "mixer", "self_attn", "attn", "conv", "attention")
FFN = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "mixer", "moe")
# Names of one matrix, or of the fused map that holds it.
LEAVES = {
    "q_proj": ("q_proj", "qkv_proj", "query_key_value", "Wqkv", "wqkv", "c_attn"),
    "o_proj": ("o_proj", "out_proj", "dense", "wo"),
    "gate_proj": ("gate_proj", "gate_up_proj", "w1"),
    "up_proj": ("up_proj", "fc1", "w1"),
    "down_proj": ("down_proj", "fc2", "w2"),
    "kv_a_proj_with_mqa": ("kv_a_proj_with_mqa", "q_a_proj", "fused_qkv_a_proj_with_mqa"),
    "in_proj_qkv": ("in_proj_qkv", "in_proj_qkvz", "in_proj_z"),
    "in_proj_b": ("in_proj_b", "in_proj_a", "in_proj_ba"),
    "experts.0.gate_proj": ("experts.0.gate_proj", "experts.0.up_proj", "experts.0.w1", "experts.gate_up_proj"),
}
SHARED = ("shared_experts", "shared_expert", "share_expert", "shared_mlp")


@dataclass(frozen=True, slots=True)
class LayerReader:
    """Makes the matrices of one layer. `index`: the layer's number; `fields` hold its own values."""

    fields: Fields
    family: Family
    quantisation: Quantisation
    base: Precision
    index: int
    kind: Kind

    @property
    def hidden(self) -> int:
        """Width of the hidden states."""
        return self.fields.integer("hidden_size", high=1 << 20)

    def setting(self, value: FlagOrField) -> bool:
        """A family's fixed choice, or the config field it defers to."""
        return value if isinstance(value, bool) else self.fields.flag(value, False)

    def precision(self, places: Sequence[str], module: str) -> Precision:
        """Precision of a module that lies in one of several places."""
        leaves = LEAVES.get(module, (module,))
        whole = [".".join(filter(None, (f"layers.{self.index}", p, leaf))) for p in places for leaf in leaves]
        return self.quantisation.of(whole, self.base)

    def linear(
        self, name: str, out: int, inp: int, module: str, split: str = "none", *,
        places: Sequence[str] = ATTENTION, **more: Any,
    ) -> Linear:  # fmt: skip
        """A matrix with the precision its checkpoint name asks for."""
        return Linear(name, out, inp, split, precision=self.precision(places, module), **more)
