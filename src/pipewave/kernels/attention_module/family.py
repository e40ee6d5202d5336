"""Attention modules: projections, indexer, choice and attention in order, and the least that any of it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.kernels.attention.tasks import Requests, requests_of
from pipewave.kernels.attention_module import parts as projections
from pipewave.kernels.attention_module.cores import Cores, padded
from pipewave.kernels.attention_module.parts import counts, module
from pipewave.kernels.base import Analysis, Columns, Context, features_of
from pipewave.kernels.stages import UNTOLD, Stage, Stages, in_units_of
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import Array

# Layers that choose nothing: every net of a kind sees the same features.
NO_CHOICE = tuple(Stage(name, launches=0.0) for name in ("index_inputs", "indexer", "topk"))
Flags = NDArray[np.bool_]
# Small kernels of every stack's layer, by kind; what one launches beyond is counted, not learned.
FEWEST_SMALL = {"msa": 4.0, "dsa": 4.0}
GROUPS = {"mla": "mla_module", "dsa": "dsa", "msa": "msa", "csa": "compressed", "hca": "compressed"}
EVERY_KEY, LONGEST_KEPT = 1e9, (2.0**15, 2.0**17)  # longest contexts of rows: of prompts, of decoding
PARTS = {"indexer": "index_scores", "topk": "index_topk", "attention": "sparse_attention"}


def net_of(case: Mapping[str, Any]) -> str:
    """The net of a call: a part's, or that of its kind and phase."""
    part = case.get("part", "module")
    return PARTS.get(part, f"{GROUPS[case['kind']]}_{case.get('phase', 'context')}")


def analyse(cols: Columns, ctx: Context, requests: Requests | None = None) -> Analysis:
    """Demand, base estimate and features of a batch; `requests` where they are grouped already."""
    requests, dims = requests or requests_of(cols), module(cols, ctx)
    seen = counts(requests, dims)
    cores = Cores(ctx, dims, seen, ctx.option("phase", "context") == "generation")
    part = str(ctx.option("part", "module"))
    whole = part == "module"
    parts = _module(cores) if whole else (getattr(cores, part)(),)
    border, least = _least(cores, part)
    stages = Stages(ctx, len(seen.tokens), parts, border, least)
    return stages.analysis(_features(cores), net_of(dict(ctx.options)))


def expands(cores: Cores) -> Flags:
    """Where heads get keys and values of their own: dense layers in context, of some stacks short sparse ones too."""
    none = np.zeros(len(cores.seen.tokens), bool)
    if cores.decode or not cores.dims.latent:
        return none
    if cores.dims.kind == "mla":
        return ~none
    short = cores.seen.context <= cores.ctx.rule("module_expands_up_to")
    return np.asarray((cores.seen.deepest <= cores.dims.topk) & short)


def _module(cores: Cores) -> tuple[Stage, ...]:
    """All kernels of a layer."""
    dims, seen, dtype = cores.dims, cores.seen, cores.ctx.dtype
    found = projections.stages("inputs", projections.inputs(dims), seen, dtype)
    found += projections.stages("inputs", projections.compressor(dims), seen, "bf16")
    dense = expands(cores)
    found += _choice(cores, ~dense) if dims.index_heads.any() else NO_CHOICE
    found += (cores.pooled(),) if dims.separate else ()
    beside = cores.ctx.rule("module_small_kernels", kind=dims.kind, decode=cores.decode)
    told = FEWEST_SMALL.get(dims.kind, beside)
    found += (projections.small(dims, seen, told), Stage(UNTOLD, launches=beside - told))
    if dims.latent:
        found += _either(dense, (projections.expanded(dims, seen, dtype),), projections.absorbed(dims, seen))
        found += _either(dense, (cores.dense(),), (cores.attention(),))
    else:
        found += (cores.attention(),)
    return found + projections.stages("outputs", projections.outputs(dims), seen, dtype)


def _choice(cores: Cores, where: Flags) -> tuple[Stage, ...]:
    """The indexer's products, scores and picks, unless an earlier layer's choice is used or all keys are."""
    runs = where & np.bool_(not cores.ctx.option("share_index", False))
    chooses = runs & ~((cores.seen.deepest <= cores.dims.topk) & np.bool_(cores.ctx.rule("module_skips_choice")))
    found = projections.stages("index_inputs", projections.indexer(cores.dims), cores.seen, cores.ctx.dtype)
    found += (projections.index_small(cores.dims, cores.seen),) if cores.dims.latent else ()
    picks = tuple(scaled(stage, chooses) for stage in (cores.indexer(), cores.topk()))
    return tuple(scaled(stage, runs) for stage in found) + picks


def _either(dense: Flags, yes: tuple[Stage, ...], no: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Stages that run in some calls, and others in the rest."""
    return tuple(scaled(stage, dense) for stage in yes) + tuple(scaled(stage, ~dense) for stage in no)


def scaled(stage: Stage, runs: Flags) -> Stage:
    """A stage that runs in some calls only."""
    on = runs.astype(float)
    names = ("flops", "fresh", "read", "written", "chain_s", "gathered", "launches", "cycles", "tile_flops")
    return replace(stage, **{name: getattr(stage, name) * on for name in names})


def _least(cores: Cores, part: str) -> tuple[Stream, Array]:
    """Bytes in and out, and operations, that no implementation of that part can do without."""
    dims, seen = cores.dims, cores.seen
    state = ACTIVATION_BYTES * seen.tokens
    if part == "indexer":
        border = Stream(seen.index_entries * dims.index_bytes / 2.0, 0.0 * state, 0.0 * state)
        return border, _index_flops(cores)
    if part == "topk":
        return Stream(0.0 * state, 4.0 * seen.needed / np.maximum(dims.block_size, 1.0), 0.0 * state), 0.0 * state
    if part == "attention":
        io = state * dims.heads * dims.multiplied / 2.0
        return Stream(seen.fewest * dims.entry_bytes, 0.5 * io, 0.5 * io), _attention_flops(cores)
    widths = projections.inputs(dims) + projections.outputs(dims)
    fresh = projections.weights(widths) * OPERAND_BYTES[cores.ctx.dtype] + seen.fewest * dims.entry_bytes
    flops = 2.0 * seen.tokens * projections.weights(widths) + _attention_flops(cores)
    if not cores.ctx.option("share_index", False):
        fresh, flops = fresh + seen.index_entries * dims.index_bytes / 2.0, flops + _index_flops(cores)
    return Stream(fresh, state * dims.hidden, state * dims.hidden, in_place=True), flops


def _index_flops(cores: Cores) -> Array:
    """Scores where there is something to choose, in 4 bits where the part has them."""
    kind, dims = "nvfp4" if cores.ctx.gpu.supports("nvfp4") else "fp8", cores.dims
    return np.asarray(in_units_of(cores.ctx, cores.seen.needed * (2.0 * dims.index_heads * dims.index_dim), kind))


def _attention_flops(cores: Cores) -> Array:
    """Products over what is chosen, in 8 bits where the cache has them, by the cheaper of two forms."""
    dims, each = cores.dims, cores.dims.multiplied
    if dims.latent:
        each = np.minimum(each, dims.nope_dim + dims.rope_dim + dims.v_dim)
    kind = "fp8" if dims.cached_bytes == 1.0 else "bf16"
    return np.asarray(in_units_of(cores.ctx, 2.0 * cores.seen.chosen * dims.heads * each, kind))


def _features(cores: Cores) -> dict[str, Any]:
    dims, seen = cores.dims, cores.seen
    # Entries over those kept; where all are, over `EVERY_KEY`: nets know that up to the longest context of rows.
    entries = seen.deepest / dims.ratio
    few = np.clip(entries / np.clip(dims.kept, 1.0, EVERY_KEY), 0.0, 4.0)
    most = np.minimum(entries, LONGEST_KEPT[cores.decode]) / EVERY_KEY
    past_topk, chosen = np.where(np.isfinite(dims.kept), few, most), padded(seen, dims)
    told: dict[str, Any] = {"past_topk": past_topk, "padded": chosen, "expands": expands(cores)}
    return features_of("attention_module", cores.ctx, dims=dims, seen=seen, **told)
