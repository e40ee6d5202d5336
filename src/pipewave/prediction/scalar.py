"""One call answered in plain floats: the formulas of a batch, without the price of arrays of length one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pipewave.gpus import GPU
from pipewave.kernels.base import Context, Family, Sketch
from pipewave.physics import energy
from pipewave.physics.arith import SCALAR
from pipewave.physics.demand import PIPES, pipe_rates
from pipewave.prediction import in_step as serving
from pipewave.prediction.batch import ceiling_s, combined
from pipewave.prediction.columns import options_of
from pipewave.prediction.resolve import (
    Source,
    codes_of,
    measured_protocol,
    net_name,
    plain_context,
    resolve,
    with_note,
)
from pipewave.residual.calibration import corrections
from pipewave.residual.card import Interval, intervals_of
from pipewave.residual.nets import merged, trained
from pipewave.residual.scalar import ScalarNet, alike, scalar_net


class ScalarAnswer(NamedTuple):
    """One answer: seconds (latency, low, high, floor, ceiling), the pipe that bounds it, and what it rests on."""

    seconds: tuple[float, ...]
    bound: str
    source: Source
    ctx: Context
    dram_bytes: float  # at least
    joules: float


@dataclass(frozen=True, slots=True, eq=False)
class ScalarContext:
    """What is the same for all calls of one context."""

    ctx: Context
    source: Source
    rates: Mapping[str, float]  # of each pipe
    net: str
    nets: ScalarNet
    members: int  # of `nets` that answer the residual; the others, if any, the ceiling
    ceiling: ScalarNet | None  # where it cannot be evaluated together with the residual
    shift: float
    widths: tuple[Interval, ...]
    plain: Context  # that the ceiling is answered in


def answer_scalar(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> ScalarAnswer | None:
    """Answer a case with its group key, or None where only a batch can: other families and nets, calibrated GPUs."""
    found = _by_itself(family, case, key, gpu, protocol)
    if found is None or not serving.applies(family, protocol):
        return found
    if found.source.near:
        shorter = serving.in_step(found.seconds, found.dram_bytes, family, found.ctx, key[1], SCALAR)
        return found._replace(seconds=shorter)
    graph = _by_itself(family, case, serving.replay_key(key), gpu, "graph")
    if graph is None:
        return None
    seconds = serving.replayed(graph.seconds, found.seconds[serving.FLOOR], SCALAR)
    return found._replace(seconds=seconds, source=with_note(graph.source, serving.REPLAYED))


def _by_itself(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> ScalarAnswer | None:
    """As a call that is measured by itself."""
    if family.one is None:
        return None
    at = _scalar_context(family, key, gpu, protocol)
    if at is None or corrections.of(at.ctx, at.net) is not None:
        return None
    found = family.one(case, at.ctx)
    if found.net != at.net:
        return None
    return _combined(found, found if at.plain is at.ctx else family.one(case, at.plain), at)


def _combined(found: Sketch, plain: Sketch, at: ScalarContext) -> ScalarAnswer:
    """`plain`: the sketch that the ceiling is answered from."""
    pipes = {pipe: amount / at.rates[pipe] for pipe, amount in found.amounts.items()}
    bound = max(pipes, key=pipes.__getitem__)
    floor = pipes[bound]
    means, logs = at.nets(at.nets.inputs(found.features))
    residual, dram_s = merged(means[: at.members], logs[: at.members], SCALAR), pipes.get("dram", 0.0)
    latency, low, high = combined(found.base_s, residual, dram_s, floor, at.widths, at.ctx.protocol, SCALAR)
    log_ceiling = means[at.members :] if at.ceiling is None else at.ceiling(at.ceiling.inputs(plain.features))[0]
    ceiling = ceiling_s(plain.base_s, sum(log_ceiling) / len(log_ceiling) + at.shift, floor, high, SCALAR)
    seconds, joules = (latency, low, high, floor, ceiling), energy.joules(at.ctx.gpu, at.ctx.dtype, found.work)
    return ScalarAnswer(seconds, bound, at.source, at.ctx, found.amounts.get("dram", 0.0), joules)


@lru_cache(maxsize=4096)
def _scalar_context(family: Family, key: tuple[Any, ...], gpu: GPU, protocol: str) -> ScalarContext | None:
    """None where nothing was trained."""
    dtype, stack, impl = key[:3]
    ctx, source = resolve(family, gpu, dtype, protocol, stack, impl, options_of(family, key))
    net = net_name(family, ctx.options)
    learned = trained(net)
    if learned is None or learned.ceiling is None:
        return None
    plain, nets = plain_context(ctx, net), (learned.net, learned.ceiling.net)
    codes = codes_of(ctx), codes_of(plain)
    together = plain == ctx and alike(*nets)
    return ScalarContext(
        ctx=ctx,
        source=source,
        rates=dict(zip(PIPES, pipe_rates(gpu, dtype)[:, 0].tolist(), strict=True)),
        net=net,
        nets=scalar_net(nets, codes) if together else scalar_net(nets[:1], codes[:1]),
        members=len(learned.net.weights[0]),
        ceiling=None if together else scalar_net(nets[1:], codes[1:]),
        shift=learned.ceiling.shift(codes[1]),
        widths=intervals_of(learned.card.intervals, source.basis, measured_protocol(protocol), source.software),
        plain=ctx if plain == ctx else plain,
    )
