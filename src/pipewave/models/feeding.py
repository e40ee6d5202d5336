"""Kernels of feed-forward parts: dense blocks, routed experts, plain maps."""

from __future__ import annotations

from collections.abc import Iterator

from pipewave.calls.families import FusedMoe, SiluAndMul
from pipewave.models.exchange import combine, dispatch
from pipewave.models.ffns import Bypass, Mlp, Moe
from pipewave.models.spec import Ffn
from pipewave.models.stage import ACT, Stage, Use


def feed(stage: Stage, part: Ffn) -> Iterator[Use]:
    """The kernels of one part, the collective apart."""
    if isinstance(part, Moe):
        return _moe(stage, part)
    return _mlp(stage, part) if isinstance(part, Mlp) else _bypass(stage, part)


def _mlp(stage: Stage, spec: Mlp) -> Iterator[Use]:
    yield stage.linear(spec.up)
    inter = spec.inter // stage.tp
    if spec.gated:
        call = SiluAndMul(stage.rows, inter, dtype=stage.dtype, impl=stage.impl)
        yield Use(spec.up.name.replace("gate_up_proj", "silu_and_mul"), call)
    else:
        size = stage.rows * inter * ACT
        yield stage.streaming("activation", size, size)
    yield stage.linear(spec.down)


def _bypass(stage: Stage, spec: Bypass) -> Iterator[Use]:
    for matrix in spec.maps:
        yield stage.linear(matrix)
    if len(spec.maps) > 1:
        size = stage.rows * spec.maps[0].out * ACT
        yield stage.streaming("activation", 2 * size, size)


def _moe(stage: Stage, spec: Moe) -> Iterator[Use]:
    yield stage.linear(spec.router)
    yield stage.streaming("topk", stage.rows * spec.router.out * ACT, stage.rows * spec.topk * 8, rounds=spec.topk)
    if spec.into:
        yield stage.linear(spec.into)
    yield from dispatch(stage, spec)
    call = FusedMoe(
        round(stage.met * spec.skew) if stage.parallel.ep > 1 else stage.met,
        spec.experts,
        spec.topk,
        spec.hidden,
        spec.inter,
        gated=spec.gated,
        tp=stage.parallel.moe_tp,
        ep=stage.parallel.ep,
        dtype=spec.precision.dtype,
    )
    yield Use("fused_moe", call)
    yield from combine(stage, spec)
    if spec.back:
        yield stage.linear(spec.back)
    if spec.shared:
        yield from _mlp(stage, spec.shared)
        hidden = stage.rows * stage.model.hidden * ACT
        if spec.shared_gate:
            yield stage.linear(spec.shared_gate)
        yield stage.streaming("shared_add", 2 * hidden, hidden)
