"""How a model is cut over GPUs, and which cuts it does not allow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pipewave.errors import BadInput, CannotShard
from pipewave.models.spec import Gqa, Layer, Linear, ModelSpec, Moe

VOCAB_BLOCK = 64  # engines pad the vocabulary to a multiple of this before they cut it


@dataclass(frozen=True, slots=True)
class Parallel:
    """Tensor, pipeline and expert parallel degrees; experts are cut inside the tensor group, so world = tp × pp."""

    tp: int = 1
    pp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
                raise BadInput(f"{name} = {value!r}: must be an integer from 1 to 4096", field=name)
        if self.tp % self.ep:
            raise CannotShard(f"ep = {self.ep}: must divide tp = {self.tp}, as experts are cut inside it", field="ep")

    @property
    def world(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    @property
    def moe_tp(self) -> int:
        """Tensor-parallel degree inside each expert."""
        return self.tp // self.ep

    def check(self, model: ModelSpec) -> None:
        """Raise CannotShard unless heads, widths, experts, vocabulary and layers divide as the engines need."""
        if self.pp > len(model.layers):
            raise CannotShard(f"pp = {self.pp}: the model has only {len(model.layers)} layers", field="pp")
        for layer, _ in model.grouped():
            self._check_layer(layer)
        _divides("tp", self.tp, "vocabulary, padded to 64", padded_vocab(model))
        if self.ep > 1 and not model.is_moe:
            raise CannotShard(f"ep = {self.ep}: {model.name} has no experts", field="ep")

    def _check_layer(self, layer: Layer) -> None:
        _divides("tp", self.tp, "num_attention_heads", layer.attention.heads)
        if isinstance(layer.attention, Gqa):
            self._check_kv_heads(layer.attention.kv_heads)
        if isinstance(layer.ffn, Moe):
            _divides("ep", self.ep, "experts", layer.ffn.experts)
            _divides("tp / ep", self.moe_tp, "expert width", layer.ffn.inter, field="tp")
        shared = layer.ffn.shared if isinstance(layer.ffn, Moe) else layer.ffn
        if shared is not None:
            _divides("tp", self.tp, "intermediate size", shared.inter)

    def _check_kv_heads(self, kv_heads: int) -> None:
        if kv_heads % self.tp and self.tp % kv_heads:
            raise CannotShard(
                f"tp = {self.tp}: must divide num_key_value_heads = {kv_heads} or be a multiple of it", field="tp"
            )

    def stages(self, layers: int) -> list[tuple[int, int]]:
        """[first, last) layer of each pipeline stage; leftovers go to the middle, away from embedding and head."""
        sizes = [layers // self.pp] * self.pp
        for i in range(layers % self.pp):
            sizes[max(self.pp - 2 - i, 0)] += 1
        bounds = [0]
        for size in sizes:
            bounds.append(bounds[-1] + size)
        return list(pairwise(bounds))


ALONE = Parallel()


def _divides(name: str, value: int, what: str, size: int, field: str | None = None) -> None:
    if size % value:
        fits = ", ".join(str(d) for d in range(1, min(size, 128) + 1) if size % d == 0)
        raise CannotShard(f"{name} = {value}: must divide {what} = {size} (of use: {fits})", field=field or name)


def padded_vocab(model: ModelSpec) -> int:
    """Rows of the embedding and of the head as engines store them."""
    return -(-model.vocab // VOCAB_BLOCK) * VOCAB_BLOCK


def _matrix_bytes(linears: tuple[Linear, ...], tp: int) -> float:
    return sum(linear.weight_bytes(tp) for linear in linears)


def layer_bytes(layer: Layer, parallel: Parallel) -> float:
    """Weight bytes of one layer on one rank."""
    total = _matrix_bytes(layer.linears(), parallel.tp)
    if isinstance(layer.ffn, Moe):
        total += layer.ffn.expert_bytes(parallel.tp)  # ep × (tp / ep) cuts
        extra = layer.ffn.experts if layer.ffn.router_correction else 0
        return total + 2 * (layer.attention.extra_params + extra)
    return total + 2 * layer.attention.extra_params


def stage_bytes(model: ModelSpec, parallel: Parallel, stage: int) -> float:
    """Weight bytes of a pipeline stage on one of its ranks: embedding first, final norm and head last."""
    first, last = parallel.stages(len(model.layers))[stage]
    total = sum(layer_bytes(layer, parallel) * count for layer, count in model.grouped(first, last))
    norm = 2 * model.hidden * (2 if model.norm_bias else 1)
    total += norm * model.norms_per_layer * (last - first)
    vocab_rows = padded_vocab(model) // parallel.tp
    if stage == 0:
        total += 2 * (vocab_rows * model.hidden + model.learned_positions * model.hidden + model.side_params)
    if stage == parallel.pp - 1:
        total += norm + (2 * vocab_rows if model.lm_head.bias else 0)
        needs_copy = parallel.pp > 1 or not model.tied  # a tied head lives with the embedding, if that is here
        total += vocab_rows * model.hidden * model.lm_head.precision.bytes_per_weight if needs_copy else 0
    return total


def weight_bytes(model: ModelSpec, parallel: Parallel = ALONE) -> float:
    """Weight bytes of the fullest rank."""
    return max(stage_bytes(model, parallel, stage) for stage in range(parallel.pp))


def kv_bytes_per_token(model: ModelSpec, parallel: Parallel = ALONE, kv_dtype: str | None = None) -> float:
    """Cache bytes one token takes on the rank that stores most layers, windows apart."""
    stages = parallel.stages(len(model.layers))
    width = element_bytes(model, kv_dtype)
    return max(
        sum(layer.attention.cache_elements(parallel.tp) * n for layer, n in model.grouped(*bounds)) * width
        for bounds in stages
    )


def element_bytes(model: ModelSpec, kv_dtype: str | None = None) -> int:
    """Bytes of one cached element."""
    return 1 if (kv_dtype or model.kv_dtype) == "fp8" else 2


def parameters(model: ModelSpec) -> int:
    """All parameters, as the checkpoint counts them (a tied head once, a vision tower included)."""
    layers = sum(
        n * (sum(m.params for m in layer.linears()) + layer.attention.extra_params + layer.ffn.extra_params)
        for layer, n in model.grouped()
    )
    embedding = (model.vocab + model.learned_positions) * model.hidden
    head = (model.lm_head.out if model.lm_head.bias else 0) if model.tied else model.lm_head.params
    return layers + model.norm_params + embedding + head + model.side_params


def active_parameters(model: ModelSpec) -> int:
    """Parameters one token meets: all but the experts it is not routed to."""
    idle = sum(
        n * (layer.ffn.experts - layer.ffn.topk) * layer.ffn.expert_params
        for layer, n in model.grouped()
        if isinstance(layer.ffn, Moe)
    )
    return parameters(model) - idle
