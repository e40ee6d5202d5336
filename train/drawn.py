"""Drawn calls as nets are asked them, and pairs of calls of which the second cannot be faster.

The larger call of a pair has one size doubled or quadrupled, or quantises its input besides. Rows decide where that
software was measured on the GPU: a library may run a larger product by a faster kernel. So a pair may be as far out of
order as the net says of it there, or on the nearest measured GPU of its generation, beyond the noise of answers.

Few pairs are out of order, and training is to meet these: of a context's pairs, those close to it are kept, and some
of the others.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.fields import SHARED
from pipewave.errors import BadInput, PipewaveError
from pipewave.gpus import GPU, find, names
from pipewave.kernels import family_of
from pipewave.kernels.base import Context, Family
from pipewave.nets.nets import UNKNOWN, trained
from pipewave.physics.cache import COLD, SERVING
from pipewave.physics.demand import PIPES, floor_s
from pipewave.prediction.columns import columns, group_key, options_of
from pipewave.prediction.kernel_latency import DRAM_REACHED, FIRST_BYTES_S
from pipewave.prediction.resolve import Source, codes_of, resolve
from pipewave.software.stacks import DEFAULT

Floats = NDArray[np.float64]
Case = dict[str, Any]

PROTOCOLS = ("cold", "graph", "profiler_warm", SERVING)  # what serves is asked as the replays that stand in for it
TYPES = (*4 * ("bf16",), "fp16", *2 * ("fp8",), "fp8_block", "nvfp4", "mxfp4", "int8", "int4")  # as often as asked
HALVES = ("bf16", "bf16", "fp16", "fp8")
QUANTISED = ("fp8", "fp8_block", "int8", "nvfp4")  # types whose products may quantise their input
HEADS = ((32, 8), (8, 1), (64, 8), (40, 8), (28, 4), (16, 16), (1, 1), (96, 8), (16, 2), (128, 8))
EXPERTS = ((8, 2, 4096, 14336), (128, 8, 2048, 768), (256, 8, 7168, 2048), (64, 6, 2048, 1408), (60, 4, 2048, 1408))
SHARDS: tuple[Case, ...] = ({}, {"tp": 2}, {"ep": 4}, {"tp": 4})
ROUTINGS = ("random", "balanced", "uniform", "power_law_1.2")
SIZES = {"gemm": "mnk", "attention": ("heads", "kv_lens"), "mla": ("heads", "kv_lens"), "fused_moe": ("tokens",),
         "rmsnorm": ("rows", "dim"), "silu_and_mul": ("rows", "dim"), "elementwise": ("bytes_read",)}  # fmt: skip
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
ORDERED = {name: family_of(name).nets for name in (*SIZES, *COLLECTIVES)}  # nets whose pairs are drawn, by family
OWN_ROWS = ("measured", "nearest_version")  # of `Source.software`: the GPU's own rows of that software
MOST_HEADS = 128  # of latent attention in any row: beyond, no row decides
OTHER_SMS = 0.15  # share of contexts on a what-if of more or fewer SMs
A_CONTEXT = 512  # calls
CLOSE, OTHERS = 0.02, 0.02  # log by which a pair is close to being out of order; the share of others that is kept
OTHER_KERNEL = 0.1  # log by which answers are out of order for another kernel; less is their noise
VIOLATES = 0.15  # what a call counts among those whose answers are kept, where its pair is out of order


@dataclass(slots=True)
class Told:
    """What a net is asked of calls that share a context (`base`, `least`: log seconds of estimate and floor), how much
    each counts, and the log seconds that it answers.
    """

    net: str
    features: NDArray[np.float32]
    codes: NDArray[np.int64]
    base: Floats
    least: Floats
    weight: Floats
    log: Floats
    ctx: Context
    source: Source


OF_CALLS = ("features", "codes", "base", "least", "weight", "log")


@dataclass(slots=True)
class Drawn:
    """Calls of one net by context; `pairs` are rows of (smaller call, larger call, log of how far they may be out of
    order).
    """

    contexts: list[Told] = field(default_factory=list)
    pairs: list[Floats] = field(default_factory=list)

    def add(self, told: Told) -> NDArray[np.intp]:
        """Numbers of these calls from now on."""
        first = sum(len(one.base) for one in self.contexts)
        self.contexts.append(told)
        return np.arange(first, first + len(told.base))

    def close(self, pick: random.Random) -> Drawn:
        """Pairs close to being out of order and some of the others, and the calls of these."""
        pairs, log = np.concatenate(self.pairs), np.concatenate([one.log for one in self.contexts])
        ends = pairs[:, :2].astype(np.intp)
        short = pairs[:, 2] - log[ends[:, 1]] + log[ends[:, 0]]
        kept = (short > -CLOSE) | (np.array([pick.random() for _ in pairs]) < OTHERS)
        used, found = np.unique(ends[kept]), Drawn()
        first = 0
        for told in self.contexts:
            mine = used[(used >= first) & (used < first + len(told.base))] - first
            found.add(replace(told, **{name: getattr(told, name)[mine] for name in OF_CALLS}))
            first += len(told.base)
        found.pairs.append(np.column_stack([np.searchsorted(used, ends[kept]), pairs[kept, 2]]))
        return found

    def take(self, other: Drawn) -> None:
        """All of another's calls and pairs after its own."""
        first = sum(len(one.base) for one in self.contexts)
        self.contexts += other.contexts
        self.pairs += [np.add(pairs, (first, first, 0.0)) for pairs in other.pairs]


def told(family: Family, cases: Sequence[Case], key: tuple[Any, ...], gpu: GPU, protocol: str) -> Told:
    """Ask the net of these calls. BadInput where none answers them."""
    dtype, stack, impl = key[:3]
    ctx, source = resolve(family, gpu, dtype, protocol, stack, impl, options_of(family, key))
    analysis = family.analyse(columns(family, cases), ctx)
    learned = trained(analysis.net)
    if learned is None:
        raise BadInput(f"no net answers {family.name}", field=None)
    net, codes, calls = learned.net, codes_of(ctx, analysis.net), len(cases)
    features = np.stack([np.broadcast_to(analysis.features[name], calls) for name in net.features], 1)
    known = [net.categories[name].get(codes.get(name, UNKNOWN), 0) for name in net.tables]
    pipes = analysis.demand.seconds(ctx.gpu, ctx.dtype)
    least = floor_s(pipes)
    if protocol == COLD:
        least = np.maximum(least, DRAM_REACHED * pipes[PIPES.index("dram")] + FIRST_BYTES_S)
    base, least = np.log(analysis.base_s), np.log(least)
    log = np.maximum(base + net.mean(analysis.features, codes), least)
    codes_of_calls, weight = np.tile(known, (calls, 1)), np.ones(calls)
    return Told(analysis.net, features.astype(np.float32), codes_of_calls, base, least, weight, log, ctx, source)


def drawn(family: str, contexts: int, seed: int = 0, net: str = "") -> dict[str, Drawn]:
    """Calls and pairs by net, of so many contexts; without what cannot run and, where `net` is named, other nets'."""
    pick, found = random.Random(seed), defaultdict[str, Drawn](Drawn)
    for _ in range(contexts):
        one = defaultdict[str, Drawn](Drawn)
        with suppress(PipewaveError):
            _context(one, pick, family, net)
        for name, part in one.items():
            if part.pairs:
                found[name].take(part.close(pick))
    return dict(found)


def _context(found: Mapping[str, Drawn], pick: random.Random, name: str, net: str) -> None:
    """Calls of one context, and larger ones beside them; none where another net than the one named answers."""
    family, gpu = family_of(name), find(pick.choice(sorted(names())))
    types = [dtype for dtype in (TYPES if name in ("gemm", "fused_moe") else HALVES) if gpu.supports(dtype)]
    dtype, protocol = pick.choice(types), pick.choice(PROTOCOLS)
    options, make = maker(pick, name)
    cards = [learned.card for learned in map(trained, family.nets) if learned]
    stacks = sorted({stack for card in cards for stack in card.stacks.get(protocol, ())})
    if pick.random() < OTHER_SMS:
        gpu = gpu.what_if(sms=max(4, int(gpu.sms * math.exp(pick.uniform(-0.7, 0.5)))))
    stack = {"stack": pick.choice(stacks)} if stacks and pick.random() < 0.5 else {}
    if protocol == SERVING:
        protocol, stack = "graph", {"stack": DEFAULT[SERVING]}
    shared = options | stack | {"kernel": name, "dtype": dtype}
    cases = list(runnable(family, gpu, [make(pick) | shared for _ in range(A_CONTEXT)]))
    if not cases:
        return
    key = group_key(family, cases[0])
    cases = [case for case in cases if group_key(family, case) == key]
    small = told(family, cases, key, gpu, protocol)
    if net not in ("", small.net):
        return
    here = found[small.net].add(small)
    for size in SIZES.get(name, ("bytes",)):
        by = pick.choice((2, 2, 2, 2, 4))
        more = [(i, _grown(name, case, size, by)) for i, case in enumerate(cases)]
        pairs = [(i, case) for i, case in more if case is not None and group_key(family, case) == key]
        if pairs:
            rows, larger = np.array([i for i, _ in pairs]), [case for _, case in pairs]
            large = told(family, larger, key, gpu, protocol)
            allowed = _allowed(family, [cases[i] for i in rows], larger, key, small, large, rows)
            _pair(found, small, large, here, rows, allowed)
    if name == "gemm" and dtype in QUANTISED:
        at = len(SHARED) + family.options.index("quantize")
        other = told(family, cases, (*key[:at], not key[at], *key[at + 1 :]), gpu, protocol)
        _pair(found, small, other, here, np.arange(len(cases)), np.zeros(len(cases)), swapped=bool(key[at]))


def _pair(
    found: Mapping[str, Drawn], small: Told, large: Told, here: NDArray[np.intp], rows: NDArray[np.intp],
    allowed: Floats, *, swapped: bool = False,
) -> None:  # fmt: skip
    """Note pairs within one net; calls of those that are out of order count little among answers to keep."""
    if large.net != small.net:
        return
    sign = -1.0 if swapped else 1.0
    wrong = sign * (large.log - small.log[rows]) < allowed - 1e-9
    large.weight[wrong] = VIOLATES
    there = found[large.net].add(large)
    ends = (there, here[rows]) if swapped else (here[rows], there)
    found[large.net].pairs.append(np.stack([*map(np.float64, ends), allowed], 1))


def _allowed(
    family: Family, smaller: Sequence[Case], larger: Sequence[Case], key: tuple[Any, ...], small: Told, large: Told,
    rows: NDArray[np.intp],
) -> Floats:  # fmt: skip
    """Log of how far each pair may be out of order, 0 or less."""
    ctx, source = small.ctx, small.source
    assumed = family.assumed is not None and bool(family.assumed(ctx))
    own = source.basis == "measured_gpu" or (source.near and not ctx.gpu.traits.stand_in and not assumed)
    learned = trained(small.net)  # a near version may have the rows, while the answer is of one that has none here
    found = np.zeros(len(rows))
    if own and source.software in OWN_ROWS and learned and ctx.gpu.base_gpu in learned.card.known.gpus(ctx.stack):
        beyond = np.array([family.name == "mla" and case["heads"] > MOST_HEADS for case in larger])
        found = np.where(beyond, 0.0, large.log - small.log[rows])
    elif source.reference_gpu:
        like, there = (key[0], ctx.stack, ctx.impl, *key[3:]), find(source.reference_gpu)
        with suppress(PipewaveError):
            one, two = (told(family, some, like, there, ctx.protocol).log for some in (smaller, larger))
            found = two - one
    return np.where(found < -OTHER_KERNEL, found, 0.0)


def runnable(family: Family, gpu: GPU, cases: Sequence[Case]) -> Iterator[Case]:
    """Those that a GPU can run."""
    for case in cases:
        try:
            if family.check_on:
                family.check_on(case, gpu)
            yield case
        except BadInput:
            continue


def _grown(name: str, case: Case, size: str, by: int) -> Case | None:
    """The case with a size so many times as large; None where it has none or another kernel would run."""
    if size == "kv_lens":
        one_query_each = set(case["q_lens"]) == {1}
        return case | {size: [by * length for length in case[size]]} if one_query_each else None
    if size == "heads" and name == "attention" and case["kv_heads"] == case["heads"]:
        return None
    return case | {size: by * case[size]}


def maker(pick: random.Random, name: str) -> tuple[Case, Callable[[random.Random], Case]]:
    """Options that the calls of a context share, and who draws the rest."""
    mode = pick.choice(("prefill", "decode", "decode", "mixed"))
    if name == "gemm":
        return {"quantize": pick.random() < 0.4}, _gemm
    if name == "attention":
        rare = {"kv_dtype": "fp8", "page_size": 16, "sinks": True} | ({} if mode == "decode" else {"causal": False})
        options = {option: value for option, value in rare.items() if pick.random() < 0.15}
        return options | {"head_dim": pick.choice((64, 128, 128, 192, 256))}, lambda pick: _attention(pick, mode)
    if name == "mla":
        phase = {"phase": "generation" if mode == "decode" else "context"}
        return phase, lambda pick: _lengths(pick, mode) | {"heads": pick.choice((8, 16, 32, 64, 128, 128))}
    if name == "fused_moe":
        return {"routing": pick.choice(ROUTINGS), "part": pick.choice(("all", "all", "w13", "w2"))}, _experts
    if name in ("rmsnorm", "silu_and_mul"):
        return {}, lambda pick: {"rows": _size(pick, 1, 65536), "dim": _size(pick, 64, 32768, 64)}
    if name == "elementwise":
        return {}, lambda pick: {each: _size(pick, 16, 1 << 30) for each in ("bytes_read", "bytes_written")}
    return {}, _collective


def _size(pick: random.Random, low: int, high: int, step: int = 1) -> int:
    """Uniform in its logarithm."""
    return max(low, round(low * math.pow(high / low, pick.random()) / step) * step)


def _gemm(pick: random.Random) -> Case:
    if pick.random() < 0.8:
        return {"m": _size(pick, 1, 65536), "n": _size(pick, 64, 65536, 64), "k": _size(pick, 64, 32768, 64)}
    return {"m": _size(pick, 1, 65536), "n": _size(pick, 1, 131072, 8), "k": _size(pick, 16, 65536, 16)}


def _lengths(pick: random.Random, mode: str) -> Case:
    requests, cached, vary = pick.choice((1, 1, 2, 4, 8, 32, 128)), _size(pick, 16, 32768), pick.random() < 0.5
    kv = [max(1, round(cached * (pick.uniform(0.3, 1.7) if vary else 1))) for _ in range(requests)]
    new = {"prefill": kv, "decode": [1] * requests, "mixed": [kv[0], *[1] * (requests - 1)]}
    return {"q_lens": new[mode], "kv_lens": kv}


def _attention(pick: random.Random, mode: str) -> Case:
    heads, kv_heads = pick.choice(HEADS)
    rare = {option: value for option, value in {"window": 1024, "softcap": 30.0}.items() if pick.random() < 0.15}
    return _lengths(pick, mode) | {"heads": heads, "kv_heads": kv_heads} | rare


def _experts(pick: random.Random) -> Case:
    layer = dict(zip(("experts", "topk", "hidden", "inter"), pick.choice(EXPERTS), strict=True))
    return layer | {"tokens": _size(pick, 1, 32768)} | pick.choice(SHARDS)


def _collective(pick: random.Random) -> Case:
    world = pick.choice((2, 4, 8, 16))
    return {"bytes": _size(pick, 256, 1 << 30, 16), "world": world, "nodes": max(1, world // 8)}
