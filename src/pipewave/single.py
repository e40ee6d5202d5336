"""One call answered in plain floats: the formulas of a batch, without the price of arrays of length one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pipewave import serving
from pipewave.answers import ceiling_s, combined
from pipewave.calibrate import corrections
from pipewave.columns import options_of
from pipewave.demand import PIPES, pipe_rates
from pipewave.estimator import Interval, intervals_of, merged, trained
from pipewave.gpus import GPU
from pipewave.kernels.arith import SCALAR
from pipewave.kernels.base import Context, Family, Sketch
from pipewave.lone import LoneNet, lone
from pipewave.resolve import Source, codes_of, measured_protocol, net_name, plain_context, resolve, with_note


class Single(NamedTuple):
    """One answer: seconds (latency, low, high, floor, ceiling), the pipe that bounds it, and what it rests on."""

    seconds: tuple[float, ...]
    bound: str
    source: Source
    ctx: Context
    dram_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What is the same for all calls of one context."""

    ctx: Context
    source: Source
    rates: Mapping[str, float]  # of each pipe
    net: str
    residual: LoneNet
    widths: tuple[Interval, ...]
    ceiling: LoneNet
    shift: float
    plain: Context  # that the ceiling is answered in


def answer_single(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> Single | None:
    """Answer a case with its group key, or None where only a batch can: other families, calibrated GPUs."""
    found = _alone(family, case, key, gpu, protocol)
    if found is None or not serving.applies(family, protocol):
        return found
    if found.source.basis == "measured_gpu":
        spared = serving.spare(found.seconds, found.dram_bytes, family.name, found.ctx, key[1], SCALAR)
        return found._replace(seconds=spared)
    graph = _alone(family, case, serving.replay_key(key), gpu, "graph")
    if graph is None:
        return None
    seconds = serving.replayed(graph.seconds, found.seconds[serving.FLOOR], SCALAR)
    return found._replace(seconds=seconds, source=with_note(graph.source, serving.REPLAYED))


def _alone(family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str) -> Single | None:
    """As a call that is measured by itself."""
    if family.one is None:
        return None
    at = _setting(family, key, gpu, protocol)
    if at is None or corrections.of(at.ctx, at.net) is not None:
        return None
    found = family.one(case, at.ctx)
    return _combined(found, found if at.plain is at.ctx else family.one(case, at.plain), at)


def _combined(found: Sketch, plain: Sketch, at: Setting) -> Single:
    """`plain`: the sketch that the ceiling is answered from."""
    pipes = {pipe: amount / at.rates[pipe] for pipe, amount in found.amounts.items()}
    bound = max(pipes, key=pipes.__getitem__)
    floor = pipes[bound]
    x = at.residual.inputs(found.features)
    means, logs = at.residual(x)
    residual, dram_s = merged(means, logs, SCALAR), pipes.get("dram", 0.0)
    latency, low, high = combined(found.base_s, residual, dram_s, floor, at.widths, at.ctx.protocol, SCALAR)
    if plain is not found or at.ceiling.features != at.residual.features:
        x = at.ceiling.inputs(plain.features)
    means, _ = at.ceiling(x)
    ceiling = ceiling_s(plain.base_s, sum(means) / len(means) + at.shift, floor, SCALAR)
    return Single((latency, low, high, floor, ceiling), bound, at.source, at.ctx, found.amounts.get("dram", 0.0))


@lru_cache(maxsize=4096)
def _setting(family: Family, key: tuple[Any, ...], gpu: GPU, protocol: str) -> Setting | None:
    """None where nothing was trained."""
    dtype, stack, impl = key[:3]
    ctx, source = resolve(family, gpu, dtype, protocol, stack, impl, options_of(family, key))
    net = net_name(family, ctx.options)
    learned = trained(net)
    if learned is None or learned.ceiling is None:
        return None
    plain = plain_context(ctx, net)
    codes = codes_of(plain)
    return Setting(
        ctx=ctx,
        source=source,
        rates=dict(zip(PIPES, pipe_rates(gpu, dtype)[:, 0].tolist(), strict=True)),
        net=net,
        residual=lone(learned.net, codes_of(ctx)),
        widths=intervals_of(learned.card.intervals, source.basis, measured_protocol(protocol)),
        ceiling=lone(learned.ceiling.net, codes),
        shift=learned.ceiling.shift(codes),
        plain=ctx if plain == ctx else plain,
    )
