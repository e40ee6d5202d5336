"""Experts on several ranks: how unevenly routing loads them, EPLB copies, and the all-to-all of tokens.

A layer of experts waits for its fullest rank. Engines lay experts on ranks in their order; an expert-parallel load
balancer gives the ranks `redundant` more slots for copies (`copied`, `packed`), by DeepSeek's rule, which vLLM, SGLang
and TensorRT-LLM follow (github.com/deepseek-ai/EPLB). Loads are taken as steady: what was seen then holds.

With data-parallel attention every rank of a group of tp × dp holds tokens of its own. Engines either gather all tokens
on all ranks and scatter the sums (vLLM's default since 0.11, SGLang's without an all-to-all backend, TensorRT-LLM's
where NVLink does not join the ranks for one-sided writes), or send each token to the ranks of its experts. SGLang
gathers the tokens of prompts, whose number differs between ranks, by adding up buffers for all of them that hold zeros
elsewhere, and adds up all results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from pipewave.calls.families import Call, all_gather, all_reduce, reduce_scatter
from pipewave.calls.fields import words_of
from pipewave.calls.operators import MoeAllToAll
from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.kernels.moe.routing import steady_weights
from pipewave.models.spec import Ffn, ModelSpec, Moe
from pipewave.models.stage import ACT, Stage, Use
from pipewave.physics.demand import Array

LAW = "power_law_"
USUAL_LOADS = LAW + "1.2"  # the corpus's law for loads of served models
MOST_SLOTS = 65_536
GATHER = "allgather"
ADDED = "allreduce"
NARROW = "_narrow"  # ends the word of an engine that quantises tokens before it sends them
# Bytes of one element with its share of the scales, as experts of a type take their input.
NARROWED = {"fp8": 1.0, "fp8_block": 1.0 + 4.0 / 128, "nvfp4": 0.5 + 1.0 / 16, "mxfp4": 1.0 + 1.0 / 32}
SENT = {"mxfp4": "fp8"}  # operands of experts in MXFP4 go out as MXFP8, which moves as FP8 does
MOVED = ("moe_dispatch", "moe_combine")
SHARED = ("fused_moe", *MOVED)  # kernels whose work is that of the whole group
NVLINK = "nvlink"  # exchanges that write into other ranks' memory
DEEPEP = "deepep"  # low latency for few tokens of a rank, high throughput for more
LOW_LATENCY, HIGH_THROUGHPUT = "deepep_ll", "deepep_ht"
# Tokens of a rank that low-latency buffers hold: SGLang 0.5.14 environ.py NUM_MAX_DISPATCH_TOKENS_PER_RANK.
FEW_TOKENS = 128
# What engines call their exchanges: vLLM 0.22.1 config/parallel.py, SGLang 0.5.14 server_args.py moe_a2a_backend.
NAMES: Mapping[str, str] = packaged.document(Path(__file__).with_name("exchanges.json"))


@dataclass(frozen=True, slots=True)
class Balance:
    """How experts are loaded. `loads`: `even`, a law such as `power_law_1.2` (of a steady load: `steady_weights` of
    `kernels.moe.routing`, not the law of that name for one call), or tokens of each expert, of a layer or of several.
    """

    redundant: int | None = None  # slots for copies beside their own; None: no balancer
    loads: str | tuple[tuple[float, ...], ...] = USUAL_LOADS

    def skew(self, experts: int, ranks: int) -> float:
        """Tokens of the fullest rank over the mean, averaged over layers or draws. Raises BadInput."""
        return _skew(self, experts, ranks)

    def placed(self, model: ModelSpec, ranks: int) -> ModelSpec:
        """The model with copies of experts, and tokens of the fullest rank for an even share's. Raises BadInput."""

        def moe(spec: Ffn) -> Ffn:
            if not isinstance(spec, Moe):
                return spec
            slots = spec.experts + (self.redundant or 0)
            return replace(spec, experts=slots, skew=self.skew(spec.experts, ranks))

        distinct = {id(layer): layer for layer in model.layers}  # equal layers stay one object, quick to compare
        placed = {
            key: replace(layer, ffns=tuple(map(moe, layer.ffns))) if layer.moes else layer
            for key, layer in distinct.items()
        }
        return replace(model, layers=tuple(placed[id(layer)] for layer in model.layers))


def balance_of(text: str) -> Balance:
    """From `redundant=32,loads=power_law_1.2` or `loads=FILE.json`: tokens of each expert, of a layer or several."""
    like = "redundant=32,loads=power_law_1.2 or redundant=32,loads=FILE.json"
    said = words_of(text, {"redundant": int, "loads": str}, "eplb", like)
    if not 0 <= said.get("redundant", 0) <= MOST_SLOTS:
        raise _bad(f"redundant = {said['redundant']}: must be from 0 to {MOST_SLOTS}")
    return Balance(said.get("redundant"), _loads(said.get("loads", USUAL_LOADS)))


def _loads(word: str) -> str | tuple[tuple[float, ...], ...]:
    if word == "even" or (word.startswith(LAW) and word.removeprefix(LAW).replace(".", "", 1).isdigit()):
        return word
    try:
        rows = np.atleast_2d(np.array(json.loads(Path(word).read_text("utf-8-sig")), float))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise _bad(f"loads = {word!r}: must be even, power_law_A or a JSON file of tokens an expert") from problem
    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all() or rows.min() < 0 or not rows.sum(axis=1).all():
        raise _bad(f"loads = {word!r}: needs tokens of each expert, none below zero and not all zero")
    return tuple(tuple(row) for row in rows.tolist())


@lru_cache(maxsize=256)
def _skew(balance: Balance, experts: int, ranks: int) -> float:
    slots = experts + (balance.redundant or 0)
    if slots % ranks:
        raise _bad(f"{experts} experts and {slots - experts} copies: {ranks} ranks must divide their sum")
    more, rows = balance.redundant, _rows(balance.loads, experts)
    held = [row.reshape(ranks, -1).sum(axis=1) if more is None else packed(copied(row, more), ranks) for row in rows]
    return float(np.mean([one.max() / one.mean() for one in held]))


def _rows(loads: str | tuple[tuple[float, ...], ...], experts: int) -> list[Array]:
    """Loads of layers, as given or drawn."""
    if isinstance(loads, str):
        return [np.ones(experts)] if loads == "even" else steady_weights(float(loads.removeprefix(LAW)), experts)
    if len(loads[0]) != experts:
        raise _bad(f"loads of {len(loads[0])} experts: the model has {experts}")
    return [np.array(row) for row in loads]


def copied(loads: Array, redundant: int) -> Array:
    """Tokens of each copy of an expert when `redundant` copies more go to whom they relieve most."""
    count = np.ones(len(loads))
    for _ in range(redundant):
        count[np.argmax(loads / count)] += 1
    return np.repeat(loads / count, count.astype(int))


def packed(loads: Array, ranks: int) -> Array:
    """Tokens of each rank when copies, the heaviest first, go to the idlest rank with a free slot."""
    held, room = np.zeros(ranks), np.full(ranks, len(loads) // ranks)
    for load in np.sort(loads)[::-1]:
        at = int(np.argmin(np.where(room > 0, held, np.inf)))
        held[at] += load
        room[at] -= 1
    return held


def report(balance: Balance, experts: int, ranks: int) -> dict[str, float]:
    """Tokens of the fullest rank over the mean, as experts lie in their order and as they are balanced."""
    if not experts or ranks == 1:
        return {}
    plain = replace(balance, redundant=None).skew(experts, ranks)
    after = {} if balance.redundant is None else {"expert_skew_balanced": balance.skew(experts, ranks)}
    return {"expert_skew": plain, **after}


def _bad(text: str) -> BadInput:
    return BadInput(f"eplb: {text}", field="eplb")


def fullest(stage: Stage, spec: Moe) -> int:
    """Tokens of which an even share is as many as the fullest rank gets: as its load is told (`skew`), but no fewer
    than draws at random leave it, by the expected largest of as many normals (Blom 1958); a law of routing has its own.
    """
    ranks, tokens, drawn = stage.parallel.ep, stage.expert_tokens, 1.0
    if ranks > 1 and not stage.choice.routing:
        largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
        drawn += largest * math.sqrt((ranks - 1.0) / (tokens * spec.topk))
    return round(tokens * max(spec.skew, drawn))


def exchange_of(word: str) -> str:
    """An exchange by the name that an engine gives it. Raises BadInput."""
    if word not in NAMES:
        raise BadInput(f"all2all_backend = {word!r}: must be one of {', '.join(NAMES)}", field="all2all_backend")
    return NAMES[word]


def exchange(stage: Stage, spec: Moe, direction: str) -> Iterator[Use]:
    """What brings tokens to experts (`dispatch`) or results back (`combine`); nothing where ranks hold all tokens."""
    if stage.parallel.dp == 1:
        return
    word, group = stage.exchange or GATHER, {"world": stage.parallel.group, "nodes": stage.layout.group_nodes}
    way, narrow = word.removesuffix(NARROW), word.endswith(NARROW) and direction == "dispatch"
    if way == DEEPEP:
        way = LOW_LATENCY if stage.rows <= FEW_TOKENS else HIGH_THROUGHPUT
    if stage.parallel.ep == 1 and way != ADDED:  # one rank a part of the experts: nothing but gathering
        way = GATHER
    call: Call
    if way in (GATHER, ADDED):
        width = NARROWED.get(spec.precision.dtype, ACT) if narrow and way == GATHER else ACT
        size = max(round(stage.expert_tokens * spec.hidden * width), 1)
        gathering = all_gather if direction == "dispatch" else reduce_scatter
        call = (gathering if way == GATHER else all_reduce)(size, **group)
    else:
        call = _sent(stage, spec, way, direction, narrow=narrow)
    yield Use(f"moe_{direction}", call)


def is_shared(use: Use) -> bool:
    """Whether a kernel waits for the whole group: experts, the exchange, and what runs beside them."""
    return use.name in SHARED or (use.name.startswith("shared_") and use.name != "shared_add")


def _sent(stage: Stage, spec: Moe, backend: str, direction: str, *, narrow: bool) -> MoeAllToAll:
    """An all-to-all of this rank's share of the tokens: tensor ranks of one request send a part each."""
    tokens = max(round(-(-stage.rows // stage.tp) * spec.skew), 1)  # the fullest rank receives as much
    own = spec.precision.dtype
    dtype = SENT.get(own, own) if narrow and own in NARROWED else stage.dtype
    if backend.startswith(DEEPEP) and dtype == "nvfp4":
        dtype = "fp8"  # no rows of DeepEP are of 4-bit tokens, which move no slower
    # On one host where NVLink joins all ranks, which is the only place for writes over it.
    apart = stage.parallel.ep % stage.layout.group_nodes == 0 and not backend.startswith(NVLINK)
    return MoeAllToAll(
        tokens, spec.hidden, spec.topk, spec.experts, stage.parallel.ep,
        nodes=stage.layout.group_nodes if apart else 1, direction=direction, backend=backend, dtype=dtype,
    )  # fmt: skip
