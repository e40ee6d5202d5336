"""A model for people: its layers, parameters and bytes, as rows and as blocks of equal layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from string import ascii_uppercase
from typing import Any

from pipewave.models import shard
from pipewave.models.attention_spec import Compressed, Gqa, Mixer, Mla, Recurrent
from pipewave.models.precision import Linear
from pipewave.models.shard import ALONE, Parallel
from pipewave.models.spec import Ffn, Layer, Mlp, ModelSpec, Moe

GIB = 2**30
HEADINGS = ("layers", "part", "count", "shape on a rank", "precision", "parameters", "GiB on a rank", "detail")
Line = tuple[str, str, int, str, str, int, float, str]  # parameters and bytes are those of one
RECURRENCES = {
    "gdn": "gated delta net", "kda": "delta attention", "mamba2": "Mamba 2", "mamba1": "Mamba",
    "lightning": "lightning attention", "conv": "short convolution",
}  # fmt: skip


def summary(model: ModelSpec, parallel: Parallel = ALONE) -> dict[str, Any]:
    """Totals: parameters, active parameters, weight GiB of the fullest rank, KV bytes a token leaves there."""
    parallel.check(model)
    return {
        "model": model.name,
        "model_type": model.model_type,
        "layers": len(model.layers),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "parameters": shard.parameters(model),
        "active_parameters": shard.active_parameters(model),
        "weights_gib_per_gpu": round(shard.weight_bytes(model, parallel) / GIB, 3),
        "kv_bytes_per_token_per_gpu": round(shard.kv_bytes_per_token(model, parallel)),
        "state_bytes_per_sequence_per_gpu": round(shard.state_bytes(model, parallel)),
        "kv_dtype": model.kv_dtype or model.dtype,
        "notes": list(model.notes),
    }


def rows(model: ModelSpec, parallel: Parallel = ALONE) -> list[dict[str, Any]]:
    """One row a part: where, how often, its shape on one rank, precision, parameters in all, GiB on one rank of all."""
    cells = ((where, part, count, *kind, params * count, round(size * count / GIB, 4), detail)
             for where, part, count, *kind, params, size, detail in _lines(model, parallel))  # fmt: skip
    return [dict(zip(HEADINGS, each, strict=True)) for each in cells]


def _matrix(where: str, linear: Linear, count: int, tp: int) -> Line:
    shape = " × ".join(map(str, linear.shape(tp))) + (" + bias" if linear.bias else "")
    return where, linear.name, count, shape, linear.precision.dtype, linear.params, linear.weight_bytes(tp), ""


def _lines(model: ModelSpec, parallel: Parallel) -> Iterator[Line]:
    dtype, hidden, vocab, width = model.dtype, model.hidden, shard.padded_vocab(model) // parallel.tp, model.norm_width
    yield "first", "embedding", 1, f"{vocab} × {hidden}", dtype, model.vocab * hidden, 2 * vocab * hidden, ""
    if side := model.side_params:
        yield "beside", "vision tower", 1, "", dtype, side, 2 * side, "idle for text"
    if front := shard.front_params(model):
        yield "first", "other tables and maps", 1, "", dtype, front, 2 * front, "once a token, before the layers"
    for number, (layer, count) in enumerate(model.grouped()):
        where = _span(model, layer) if number or count < len(model.layers) else "all"
        for part in layer.parts:
            yield from (_matrix(where, linear, count, parallel.tp) for linear in part.linears())
            yield from _beside(where, part, count, parallel, model.kv_dtype or dtype)
    yield "all", "norms", shard.norms_of(model), str(hidden), dtype, width, 2 * width, ""
    if hyper := model.hyper:
        streams, each = f"{hyper.streams} streams", hyper.params
        yield "all", "hyper-connections", 2 * len(model.layers), streams, dtype, each, 2 * each, ""
        yield "last", "hyper-connections", 1, streams, dtype, hyper.head_params, 2 * hyper.head_params, ""
    if model.final_norm:
        yield "last", "final_norm", 1, str(hidden), dtype, width, 2 * width, ""
    if model.tied and not model.pooled:
        yield "last", "lm_head", 1, "", model.lm_head.precision.dtype, 0, 0, "shares the embedding"
    elif not model.pooled:
        yield _matrix("last", model.lm_head, 1, parallel.tp)


def _beside(where: str, part: Mixer | Ffn, count: int, parallel: Parallel, dtype: str) -> Iterator[Line]:
    """What a part has beside its matrices."""
    (name, shape, facts), extra = _described(part), part.extra_params
    if isinstance(part, Moe):
        dtype, facts = part.precision.dtype, [f"{part.topk} of {part.experts} a token"]
        maps = 3 if part.gated else 2
        shape = f"{part.experts // parallel.ep} × {maps} × {part.inter // parallel.moe_tp} × {part.hidden}"
    if extra or isinstance(part, Mixer):
        yield where, name, count, shape, dtype, extra, _other_bytes(part, parallel), ", ".join(facts)


def _span(model: ModelSpec, layer: Layer) -> str:
    """Which layers are this one: a range where they are consecutive, else the first few."""
    where = [index for index, other in enumerate(model.layers) if other is layer]
    if where[-1] - where[0] + 1 == len(where):
        return f"{where[0]}-{where[-1]}" if len(where) > 1 else str(where[0])
    return ",".join(map(str, where[:3])) + ("…" if len(where) > 3 else "")


def kind_of(mixer: Mixer) -> str:
    """What people call a mixer."""
    if isinstance(mixer, Recurrent):
        return RECURRENCES[mixer.kind]
    if isinstance(mixer, Compressed):
        return "sliding attention" if not mixer.compress_ratio else "compressed attention"
    latent = "latent " if isinstance(mixer, Mla) else ""
    return ("sparse " if getattr(mixer, "indexer", None) else "") + latent + "attention"


def shape_of(mixer: Mixer) -> str:
    """Heads, widths, and how many keys a query sees where not all."""
    if isinstance(mixer, Recurrent):
        return f"{mixer.heads} × {mixer.key_dim} × {mixer.value_dim}" if mixer.key_dim else f"{mixer.channels} channels"
    assert isinstance(mixer, Gqa | Mla | Compressed)
    if isinstance(mixer, Mla):
        widths = f"latent {mixer.kv_lora_rank} + {mixer.rope_dim}"
    elif isinstance(mixer, Gqa):
        widths = f"{mixer.kv_heads} kv, {mixer.head_dim}{f' and {mixer.v_dim}' if mixer.value_dim else ''} wide"
    else:
        widths = f"1 kv, {mixer.head_dim} wide"
    return f"{mixer.heads} heads, {widths}" + (f", window {mixer.window}" if mixer.window else "")


def facts_of(mixer: Mixer) -> list[str]:
    """What else a mixer is known by."""
    facts, indexer = list[str](), getattr(mixer, "indexer", None)
    if isinstance(mixer, Gqa):
        facts += [f"chunks of {mixer.chunk}"] if mixer.chunk else []
        facts += ["sinks"] if mixer.sinks else []
        facts += [f"softcap {mixer.softcap:g}"] if mixer.softcap else []
        facts += [f"q/k norm over {'all' if mixer.qk_norm == 'full' else 'heads'}"] if mixer.qk_norm else []
        facts += [] if mixer.rope else ["no RoPE"]
        facts += ["gated"] if mixer.gate else []
        facts += ["K and V of an earlier layer"] if mixer.borrowed else []
    if isinstance(mixer, Compressed) and mixer.compress_ratio:
        facts += [f"{mixer.compress_ratio} tokens an entry"]
    if isinstance(mixer, Recurrent) and mixer.channels:
        facts += [f"convolution {mixer.kernel} wide over {mixer.channels} channels"]
    if indexer:
        kept = f"{indexer.topk} blocks of {indexer.block}" if indexer.block > 1 else f"{indexer.topk} keys"
        facts.append(f"indexer keeps {kept}" + (", as an earlier layer chose" if indexer.reused else ""))
    return facts


@dataclass(frozen=True, slots=True)
class Part:
    """One part of one layer."""

    name: str
    shape: str
    precision: str
    parameters: int
    active_parameters: int
    weight_bytes: float  # of one rank
    flops: float  # multiplications and additions of matrices a token
    kv_bytes: float  # what one more token leaves on a rank
    state_bytes: int  # what a sequence holds there whatever its length
    detail: str


@dataclass(frozen=True, slots=True)
class Block:
    """Equal layers."""

    letter: str
    layers: str  # where they are
    count: int
    parts: tuple[Part, ...]  # in the order they run


@dataclass(frozen=True, slots=True)
class Blocks:
    """All kinds of layers."""

    pattern: str  # how they follow one another, such as 3×A (B C)×15
    blocks: tuple[Block, ...]


def blocks(model: ModelSpec, parallel: Parallel = ALONE) -> Blocks:
    """The layers of a model by kind, weights and memory as one rank holds them. Raises CannotShard."""
    parallel.check(model)
    names = [each + more for more in ("", *map(str, range(1, 200))) for each in ascii_uppercase]  # A, B, … Z, A1, …
    letters = {id(layer): name for name, (layer, _) in zip(names, model.grouped(), strict=False)}
    order = [letters[id(layer)] for layer in model.layers]
    found = tuple(
        Block(
            letters[id(layer)], _span(model, layer), count, tuple(_part(model, part, parallel) for part in layer.parts)
        )
        for layer, count in model.grouped()
    )
    return Blocks(pattern(order), found)


def _part(model: ModelSpec, part: Mixer | Ffn, parallel: Parallel) -> Part:
    """One part as one rank holds it."""
    name, shape, facts = _described(part)
    linears, held, idle, met = part.linears(), _other_bytes(part, parallel), 0, 0
    if isinstance(part, Moe):
        idle, met = (count * part.expert_params for count in (part.experts - part.topk, part.topk))
    sizes = Counter[str]()  # weights by type
    for linear in linears:
        sizes[linear.precision.dtype] += linear.params
    if isinstance(part, Moe):
        sizes[part.precision.dtype] += part.experts * part.expert_params
    params = sum(linear.params for linear in linears) + part.extra_params
    weights = sum(linear.weight_bytes(parallel.tp) for linear in linears) + held
    products = sum(linear.out * linear.inp / linear.groups for linear in linears) + met
    kv, state = 0.0, 0
    if isinstance(part, Mixer):
        kv, state = part.token_bytes(shard.element_bytes(model), parallel.tp), part.state_bytes(parallel.tp)
    types = ", ".join(dtype for dtype, _ in sizes.most_common())
    operations = 2.0 * products  # two a weight that a token meets
    return Part(name, shape, types, params, params - idle, weights, operations, kv, state, ", ".join(facts))


def _described(part: Mixer | Ffn) -> tuple[str, str, list[str]]:
    """What a part is called, its shape, and what else it is known by."""
    if isinstance(part, Mixer):
        return kind_of(part), shape_of(part), facts_of(part)
    if isinstance(part, Moe):
        facts = [f"shared {part.shared.inter} wide"] if part.shared else []
        facts += [f"at a latent width of {part.hidden}"] if part.into else []
        facts += [f"{part.idle} that return their input"] if part.idle else []
        return "experts", f"{part.topk} of {part.experts}, {part.inter} wide", facts
    if isinstance(part, Mlp):
        return "dense block", f"{part.inter} wide, {'gated' if part.gated else 'plain'}", []
    return part.name, "", []


def _other_bytes(part: Mixer | Ffn, parallel: Parallel) -> float:
    """Bytes of one rank outside the matrices that every token meets."""
    if isinstance(part, Moe):
        return part.expert_bytes(parallel.group) + 2 * part.small_params
    return 2 * part.extra_params


def pattern(order: Sequence[str]) -> str:
    """How kinds follow one another: runs as 3×A, and the longest stretch that repeats as (A 3×B)×12."""
    runs = [(letter, len(list(group))) for letter, group in groupby(order)]
    start, size, times = _repeat(runs)
    if times < 2:
        return " ".join(map(_run, runs))
    body = " ".join(map(_run, runs[start : start + size]))
    before, after = runs[:start], runs[start + size * times :]
    return " ".join([*map(_run, before), f"({body})×{times}", *map(_run, after)])


def _run(run: tuple[str, int]) -> str:
    return f"{run[1]}×{run[0]}" if run[1] > 1 else run[0]


def _repeat(runs: Sequence[tuple[str, int]]) -> tuple[int, int, int]:
    """(start, length, times) of the stretch of runs that covers most by repeating; times 1 where none does."""
    best = (0, 1, 1)
    for size in range(2, min(len(runs) // 2, 16) + 1):
        for start in range(min(len(runs) - 2 * size + 1, 64)):
            times = 1
            while runs[start : start + size] == runs[start + times * size : start + (times + 1) * size]:
                times += 1
            if times > 1 and size * times > best[1] * best[2]:
                best = (start, size, times)
    return best
