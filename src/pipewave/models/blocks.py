"""A model as blocks: runs of equal layers, the parts of each, and what a part costs in weights, work and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pipewave.models.ffns import Mlp, Moe
from pipewave.models.mixers import Mixer
from pipewave.models.shard import ALONE, Parallel, element_bytes
from pipewave.models.spec import Ffn, Layer, ModelSpec
from pipewave.models.view import facts_of, kind_of, shape_of


@dataclass(frozen=True, slots=True)
class Part:
    """One part of one layer. `gib`: weights of one rank. `flops`: multiplications and additions of matrices a token.

    `kv_bytes`: what one more token leaves on a rank; `state_bytes`: what a sequence holds there whatever its length.
    """

    name: str
    shape: str
    precision: str
    parameters: int
    active_parameters: int
    weight_bytes: float
    flops: float
    kv_bytes: float
    state_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class Block:
    """Equal layers: where they are, how many, and their parts in the order they run."""

    letter: str
    layers: str
    count: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """All kinds of layers, and in `pattern` how they follow one another, such as 3×A (B C)×15."""

    pattern: str
    blocks: tuple[Block, ...]


def blocks(model: ModelSpec, parallel: Parallel = ALONE) -> Blocks:
    """The layers of a model by kind, weights and memory as one rank holds them. Raises CannotShard."""
    parallel.check(model)
    letters = {id(layer): _letter(number) for number, (layer, _) in enumerate(model.grouped())}
    order = [letters[id(layer)] for layer in model.layers]
    found = tuple(
        Block(letters[id(layer)], _where(order, letters[id(layer)]), count, tuple(_parts(model, layer, parallel)))
        for layer, count in model.grouped()
    )
    return Blocks(pattern(order), found)


def _letter(number: int) -> str:
    """A, B, … Z, A1, …"""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def _where(order: Sequence[str], letter: str) -> str:
    """The numbers of a kind's layers: a range, or the first few."""
    places = [index for index, each in enumerate(order) if each == letter]
    if places[-1] - places[0] + 1 == len(places):
        return f"{places[0]}-{places[-1]}" if len(places) > 1 else str(places[0])
    return ",".join(map(str, places[:3])) + ("…" if len(places) > 3 else "")


def _parts(model: ModelSpec, layer: Layer, parallel: Parallel) -> Iterator[Part]:
    for mixer in layer.mixers:
        yield _mixer(model, mixer, parallel)
    for ffn in layer.ffns:
        yield _ffn(ffn, parallel)


def _precision(part: Mixer | Ffn) -> str:
    """The types of a part's matrices, most weights first."""
    sizes: dict[str, int] = {}
    for linear in part.linears():
        sizes[linear.precision.dtype] = sizes.get(linear.precision.dtype, 0) + linear.params
    if isinstance(part, Moe):
        sizes[part.precision.dtype] = sizes.get(part.precision.dtype, 0) + part.experts * part.expert_params
    return ", ".join(sorted(sizes, key=lambda name: -sizes[name]))


def _mixer(model: ModelSpec, mixer: Mixer, parallel: Parallel) -> Part:
    params = sum(linear.params for linear in mixer.linears()) + mixer.extra_params
    weights = sum(linear.weight_bytes(parallel.tp) for linear in mixer.linears()) + 2 * mixer.extra_params
    kv = mixer.token_bytes(element_bytes(model), parallel.tp)
    return Part(
        kind_of(mixer), shape_of(mixer), _precision(mixer), params, params, weights, _flops(mixer), kv,
        mixer.state_bytes(parallel.tp), ", ".join(facts_of(mixer)),
    )  # fmt: skip


def _flops(part: Mixer | Ffn) -> float:
    """Two a weight that a token meets."""
    flops = sum(2.0 * linear.out * linear.inp / linear.groups for linear in part.linears())
    return flops + (2.0 * part.topk * part.expert_params if isinstance(part, Moe) else 0.0)


def _ffn(ffn: Ffn, parallel: Parallel) -> Part:
    matrices = sum(linear.params for linear in ffn.linears())
    params, active = matrices + ffn.extra_params, matrices + ffn.extra_params
    small = ffn.small_params if isinstance(ffn, Moe) else ffn.extra_params
    weights = sum(linear.weight_bytes(parallel.tp) for linear in ffn.linears()) + 2 * small
    name, shape, detail = ffn.name if not isinstance(ffn, (Mlp, Moe)) else "dense block", "", ""
    if isinstance(ffn, Mlp):
        shape = f"{ffn.inter} wide, {'gated' if ffn.gated else 'plain'}"
    if isinstance(ffn, Moe):
        name, shape = "experts", f"{ffn.topk} of {ffn.experts}, {ffn.inter} wide"
        active -= (ffn.experts - ffn.topk) * ffn.expert_params
        weights += ffn.expert_bytes(parallel.group)
        facts = [f"shared {ffn.shared.inter} wide"] if ffn.shared else []
        facts += [f"at a latent width of {ffn.hidden}"] if ffn.into else []
        detail = ", ".join(facts + ([f"{ffn.idle} that return their input"] if ffn.idle else []))
    return Part(name, shape, _precision(ffn), params, active, weights, _flops(ffn), 0.0, 0, detail)


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
