"""Tensor, pipeline, expert and data parallelism: which splits a model allows, weight and cache bytes of a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from pipewave.calls.dtypes import kv_bytes
from pipewave.calls.fields import check_whole
from pipewave.errors import CannotShard
from pipewave.models.attention_spec import Gqa, Mixer, Mla, Recurrent
from pipewave.models.spec import Layer, ModelSpec

# Norms over the hidden size that a block brings, by where it has them.
BLOCK_NORMS = {"pre": 1, "post": 1, "sandwich": 2}
VOCAB_BLOCK = 64  # engines pad the vocabulary to a multiple of this before they cut it


@dataclass(frozen=True, slots=True)
class Parallel:
    """Tensor, pipeline, expert, attention data and decode context parallel degrees; world = tp × pp × dp.

    `dp` ranks of a tensor group each hold requests of their own, with whole attention and dense parts; the experts of a
    layer are cut over all tp × dp of them: `ep` ways between experts, the rest inside each. `dcp` ranks that would hold
    the same keys part the tokens of each sequence's cache (decode context parallelism).
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    dcp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "dp", "dcp"):
            check_whole(name, getattr(self, name), high=4096)
        if self.group % self.ep:
            whole = f"tp = {self.tp}" if self.dp == 1 else f"tp × dp = {self.group}"
            raise CannotShard(f"ep = {self.ep}: must divide {whole}, as experts are cut inside it", field="ep")

    @property
    def world(self) -> int:
        """GPUs of one replica."""
        return self.group * self.pp

    @property
    def group(self) -> int:
        """GPUs that the experts of one layer are cut over."""
        return self.tp * self.dp

    @property
    def moe_tp(self) -> int:
        """Tensor-parallel degree inside each expert."""
        return self.group // self.ep

    def check(self, model: ModelSpec) -> None:
        """Raise CannotShard unless heads, widths, experts, vocabulary and layers divide as the engines need."""
        if self.pp > len(model.layers):
            raise CannotShard(f"pp = {self.pp}: the model has only {len(model.layers)} layers", field="pp")
        for layer, _ in model.grouped():
            self._check_layer(layer)
        _divides("tp", self.tp, "vocabulary, padded to 64", padded_vocab(model))
        if self.ep > 1 and not model.is_moe:
            raise CannotShard(f"ep = {self.ep}: {model.name} has no experts", field="ep")
        if self.dp > 1 and not model.is_moe:
            alone = "has no experts that its ranks could share; they would be replicas"
            raise CannotShard(f"dp = {self.dp}: {model.name} {alone}", field="dp")
        if copies_of_keys(model, self.tp) % self.dcp:
            held = f"{copies_of_keys(model, self.tp)} of tp = {self.tp} ranks hold the same keys of {model.name}"
            raise CannotShard(f"dcp = {self.dcp}: must divide the ranks that part a cache: {held}", field="dcp")

    def _check_layer(self, layer: Layer) -> None:
        for part in layer.parts:
            for what, size in part.divided.items():
                _divides("tp", self.tp, what, size)
            if isinstance(part, Gqa):
                self._check_shared("num_key_value_heads", part.kv_heads)
            if isinstance(part, Recurrent):
                self._check_shared(f"{part.kind} key heads", part.key_heads)
        for moe in layer.moes:
            _divides("ep", self.ep, "experts", moe.experts)
            whole = "tp / ep" if self.dp == 1 else "tp × dp / ep"
            _divides(whole, self.moe_tp, "expert width", moe.inter, field="tp")

    def _check_shared(self, name: str, heads: int) -> None:
        """Heads that several query heads share are cut, or repeated where ranks outnumber them."""
        if heads % self.tp and self.tp % heads:
            raise CannotShard(f"tp = {self.tp}: must divide {name} = {heads} or be a multiple of it", field="tp")

    def stages(self, layers: int) -> Sequence[tuple[int, int]]:
        """[first, last) layer of each pipeline stage; leftovers go to the middle, away from embedding and head."""
        return _stages(layers, self.pp)


@lru_cache(maxsize=1024)
def _stages(layers: int, pp: int) -> Sequence[tuple[int, int]]:
    sizes = [layers // pp] * pp
    for i in range(layers % pp):
        sizes[max(pp - 2 - i, 0)] += 1
    return tuple(pairwise(accumulate(sizes, initial=0)))


ALONE = Parallel()


@lru_cache(maxsize=1024)
def copies_of_keys(model: ModelSpec, tp: int) -> int:
    """Ranks of a tensor group that hold the same keys; 1 where layers see a window, choose keys, or keep states."""
    mixers = [mixer for layer, _ in model.grouped() for mixer in layer.mixers]
    whole = [isinstance(one, Gqa | Mla) and one.seen is None and one.indexer is None for one in mixers]
    heads = max((one.kv_heads if isinstance(one, Gqa) else 1 for one in mixers), default=tp) if all(whole) else tp
    return max(tp // heads, 1)


def _divides(name: str, value: int, what: str, size: int, field: str | None = None) -> None:
    if size % value:
        fits = ", ".join(str(d) for d in range(1, min(size, 128) + 1) if size % d == 0)
        raise CannotShard(f"{name} = {value}: must divide {what} = {size} (of use: {fits})", field=field or name)


def padded_vocab(model: ModelSpec) -> int:
    """Rows of the embedding and of the head as engines store them."""
    return -(-model.vocab // VOCAB_BLOCK) * VOCAB_BLOCK


def layer_bytes(layer: Layer, parallel: Parallel) -> float:
    """Weight bytes of one layer on one rank."""
    total = sum(linear.weight_bytes(parallel.tp) for linear in layer.linears())
    routed = sum(moe.experts * moe.expert_params for moe in layer.moes)
    total += sum(moe.expert_bytes(parallel.group) for moe in layer.moes)  # ep × (group / ep) cuts
    return total + 2 * (layer.extra_params - routed)


def norms_of(model: ModelSpec, first: int = 0, last: int | None = None) -> int:
    """Norms over the hidden size in some layers: of their blocks, by the model's style, and those beside."""
    each = BLOCK_NORMS.get(model.norms)  # of a block; parallel ones share theirs
    return sum(
        ((min(layer.blocks, 1) if each is None else layer.blocks * each) + layer.extra_norms) * count
        for layer, count in model.grouped(first, last)
    )


def stream_params(model: ModelSpec, layers: int) -> int:
    """Parameters of the residual streams of so many layers, without the final merge; 0 for one stream."""
    return 2 * layers * model.hyper.params if model.hyper else 0


def stage_bytes(model: ModelSpec, parallel: Parallel, stage: int) -> float:
    """Weight bytes of a pipeline stage on one of its ranks: embedding first, final norm and head last."""
    first, last = parallel.stages(len(model.layers))[stage]
    total = sum(layer_bytes(layer, parallel) * count for layer, count in model.grouped(first, last))
    total += 2 * (model.norm_width * norms_of(model, first, last) + stream_params(model, last - first))
    vocab_rows = padded_vocab(model) // parallel.tp
    if stage == 0:
        total += 2 * (vocab_rows * model.hidden + front_params(model) + model.side_params)
    if stage == parallel.pp - 1:
        total += 2 * (model.norm_width * model.final_norm + (model.hyper.head_params if model.hyper else 0))
    if stage == parallel.pp - 1 and not model.pooled:
        total += 2 * vocab_rows if model.lm_head.bias else 0
        needs_copy = parallel.pp > 1 or not model.tied  # a tied head lives with the embedding, if that is here
        total += vocab_rows * model.hidden * model.lm_head.precision.bytes_per_weight if needs_copy else 0
    return total


def front_params(model: ModelSpec) -> int:
    """Parameters before the first layer, the embedding of tokens apart: other tables, and maps that run once."""
    tables = sum(rows * width for rows, width in model.tables) + model.learned_positions * model.hidden
    return tables + sum(linear.params for linear in model.front) + model.front_params


def weight_bytes(model: ModelSpec, parallel: Parallel = ALONE) -> float:
    """Weight bytes of the fullest rank."""
    return max(stage_bytes(model, parallel, stage) for stage in range(parallel.pp))


def kv_bytes_per_token(model: ModelSpec, parallel: Parallel = ALONE, kv_dtype: str | None = None) -> float:
    """Cache bytes one token takes on the rank that stores most layers, windows apart."""
    width = element_bytes(model, kv_dtype)
    return _fullest(model, parallel, lambda mixer: mixer.token_bytes(width, parallel.tp)) / parallel.dcp


@lru_cache(maxsize=1024)
def state_bytes(model: ModelSpec, parallel: Parallel = ALONE, width: int = 0) -> float:
    """Bytes of states that one sequence holds on the fullest rank; `width`: of an element (0: as the model says)."""
    return _fullest(model, parallel, lambda mixer: mixer.state_bytes(parallel.tp, width))


@lru_cache(maxsize=1 << 16)
def cache_bytes(
    model: ModelSpec, length: int, parallel: Parallel = ALONE, kv_dtype: str | None = None, *, chunk: int = 0
) -> float:
    """Cache bytes of a sequence on the fullest rank; windows give pages back after `chunk` more tokens. No states."""
    width = element_bytes(model, kv_dtype)
    return _fullest(model, parallel, lambda mixer: mixer.cache_bytes(length, width, parallel.tp, chunk)) / parallel.dcp


def _fullest(model: ModelSpec, parallel: Parallel, law: Callable[[Mixer], float]) -> float:
    """The sum of a law over the mixers of a stage, of the stage where it is largest."""
    return max(
        sum(law(mixer) * count for layer, count in model.grouped(*bounds) for mixer in layer.mixers)
        for bounds in parallel.stages(len(model.layers))
    )


def element_bytes(model: ModelSpec, kv_dtype: str | None = None) -> int:
    """Bytes of one cached element."""
    return int(kv_bytes(kv_dtype or model.kv_dtype, "bf16"))


def parameters(model: ModelSpec) -> int:
    """All parameters, as the checkpoint counts them (a tied head once, a vision tower included)."""
    layers = sum(n * (sum(m.params for m in layer.linears()) + layer.extra_params) for layer, n in model.grouped())
    streams = stream_params(model, len(model.layers)) + (model.hyper.head_params if model.hyper else 0)
    embedding = model.vocab * model.hidden + front_params(model)
    norms = (norms_of(model) + model.final_norm) * model.norm_width
    return layers + streams + norms + embedding + head_params(model) + model.side_params


def head_params(model: ModelSpec) -> int:
    """Parameters of the head that the embedding does not lend it; none where hidden states are the answer."""
    if model.pooled:
        return 0
    return (model.lm_head.out if model.lm_head.bias else 0) if model.tied else model.lm_head.params


def active_parameters(model: ModelSpec) -> int:
    """Parameters one token meets: all but the experts it is not routed to."""
    idle = sum(n * (moe.experts - moe.topk) * moe.expert_params for layer, n in model.grouped() for moe in layer.moes)
    return parameters(model) - idle
