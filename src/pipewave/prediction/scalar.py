"""One call answered in plain floats: the formulas of a batch, without the price of arrays of length one.

Physics comes before the net, the interval after it. Once a context was asked for often, both are run as straight-line
code (`physics/straight.py`): the same operations, a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pipewave.gpus import GPU
from pipewave.kernels.base import Context, Family, Sketch
from pipewave.nets.calibration import corrections
from pipewave.nets.nets import merged, trained
from pipewave.nets.scalar import ScalarNet, alike, scalar_net
from pipewave.nets.weights_metadata import Interval, intervals_of
from pipewave.physics.arith import SCALAR, Arith
from pipewave.physics.demand import PIPES, pipe_rates
from pipewave.physics.power import Draw, draw_of
from pipewave.physics.straight import RECORDED, straight
from pipewave.prediction import kernel_latency as law
from pipewave.prediction.columns import numeric_fields, options_of
from pipewave.prediction.resolve import (
    Source,
    codes_of,
    measured_protocol,
    net_name,
    plain_context,
    resolve,
    with_note,
)

WRITTEN_OUT_AT = 16  # calls of one context: writing its formulas out takes as long as a hundred


class ScalarAnswer(NamedTuple):
    """One answer: seconds (latency, low, high, floor, ceiling), the pipe that bounds it, and what it rests on."""

    seconds: tuple[float, ...]
    bound: str
    source: Source
    ctx: Context
    dram_bytes: float  # at least
    draw: Draw
    work_j: float

    @property
    def joules(self) -> float:
        """Energy above what the idle board draws."""
        return float(self.draw.joules(self.work_j, self.seconds[law.LATENCY], SCALAR))


class Physics(NamedTuple):
    """What is known of a call before its net is asked.

    `seconds`: the base estimate, the floor, the DRAM pipe, and the base estimate that the ceiling is answered from.
    `plain_inputs`: of the ceiling's net, where it sees something else than the residual's.
    """

    seconds: tuple[Any, Any, Any, Any]
    bound: Any
    dram_bytes: Any
    work_j: Any
    inputs: tuple[Any, ...]
    plain_inputs: tuple[Any, ...]


@dataclass(slots=True, eq=False)
class ScalarContext:
    """What is the same for all calls of one context, and the formulas before and after its nets."""

    family: Family
    ctx: Context
    source: Source
    rates: Mapping[str, float]  # of each pipe
    net: str
    nets: ScalarNet
    members: int  # of `nets` that answer the residual; the others, if any, the ceiling
    ceiling: ScalarNet | None  # where it cannot be evaluated together with the residual
    alike: bool  # whether it is given the same features
    shift: float
    widths: tuple[Interval, ...]
    contexts: tuple[Context, ...]  # of the fields of `Sketches`
    draw: Draw | None = None  # known from the first call on
    uses: int = 0  # so many calls
    before: Callable[[Mapping[str, Any]], Sequence[Any] | None] | None = None  # once written out
    after: Callable[..., tuple[float, ...]] | None = None


def answer_scalar(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> ScalarAnswer | None:
    """Answer a case with its group key, or None where only a batch can: other families and nets, calibrated GPUs."""
    protocol = law.as_timed(family, protocol, gpu)
    found = _alone(family, case, key, gpu, protocol)
    if found is None or not law.shortened(family, protocol):
        return found
    note = law.stand_in(family, key, gpu, found.source)
    if not note:
        shorter = law.in_step(found.seconds, found.dram_bytes, family, found.ctx, key[1], SCALAR)
        return found._replace(seconds=shorter)
    graph = _alone(family, case, law.replay_key(key), gpu, "graph")
    if graph is None:
        return None
    seconds = law.replayed(graph.seconds, found.seconds[law.FLOOR], SCALAR)
    return found._replace(seconds=seconds, source=with_note(graph.source, note))


def _alone(
    family: Family, case: Mapping[str, Any], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> ScalarAnswer | None:
    """As a call that is measured by itself."""
    if family.one is None and family.formula is None:
        return None
    at = _scalar_context(family, key, gpu, protocol)
    if at is None or corrections.of(at.ctx, at.net) is not None:
        return None
    found = (at.before or _directly(at))(case)
    return None if found is None else _combined(found, at)


def _directly(at: ScalarContext) -> Callable[[Mapping[str, Any]], Physics | None]:
    """Physics of a case, None where another net answers it."""

    def before(case: Mapping[str, Any]) -> Physics | None:
        sketches = _sketches(at, lambda ctx: _sketch(case, at, ctx))
        return _physics(sketches, at, SCALAR) if sketches.found.net == at.net else None

    return before


def _sketch(case: Mapping[str, Any], at: ScalarContext, ctx: Context) -> Sketch:
    if at.family.formula is None:
        return at.family.one(case, ctx)  # type: ignore[misc]
    numbers = {name: float(case.get(name) or 0.0) for name in numeric_fields(at.family)}
    return at.family.formula(numbers, ctx, SCALAR)


class Sketches(NamedTuple):
    """A call under its context, under that whose features the nets see, and under both as the ceiling is asked."""

    found: Sketch
    seen: Sketch
    plain: Sketch
    plain_seen: Sketch


def _sketches(at: ScalarContext, sketch: Callable[[Context], Sketch]) -> Sketches:
    """Each context's sketch, none made twice."""
    known = {ctx: sketch(ctx) for ctx in dict.fromkeys(at.contexts)}
    return Sketches(*(known[ctx] for ctx in at.contexts))


def _physics(sketches: Sketches, at: ScalarContext, xp: Arith) -> Physics:
    found, seen, plain, plain_seen = sketches
    pipes = {pipe: amount / at.rates[pipe] for pipe, amount in found.amounts.items()}
    (bound, floor), *others = pipes.items()
    for pipe, seconds in others:
        bound, floor = xp.where(seconds > floor, pipe, bound), xp.maximum(seconds, floor)
    return Physics(
        seconds=(found.base_s, floor, pipes.get("dram", 0.0), plain.base_s),
        bound=bound,
        dram_bytes=found.amounts.get("dram", 0.0),
        work_j=_draw(at, found.work.product).work_j(found.work),
        inputs=at.nets.inputs(seen.features),
        plain_inputs=at.ceiling.inputs(plain_seen.features) if at.ceiling and not (plain is found and at.alike) else (),
    )


def _draw(at: ScalarContext, product: str = "") -> Draw:
    """What all calls of the context draw on the board."""
    if at.draw is None:
        at.draw = draw_of(at.ctx.gpu, at.net, product or at.ctx.dtype, at.ctx.stack, at.ctx.protocol)
    return at.draw


def _combined(found: Sequence[Any], at: ScalarContext) -> ScalarAnswer:
    """With what the nets say of it."""
    before, bound, dram_bytes, work_j, inputs, plain_inputs = found
    seen = np.array(inputs, np.float32)
    means, logs = at.nets(seen)
    if at.ceiling:
        ceiling = at.ceiling(np.array(plain_inputs, np.float32) if plain_inputs else seen)[0]
    else:
        ceiling = means[at.members :]
    known = (*before, *means[: at.members], *logs[: at.members], *ceiling)
    seconds = at.after(*known) if at.after else _interval(known, at, SCALAR)
    at.uses = uses = at.uses + 1
    if uses == WRITTEN_OUT_AT:
        _write_out(at, len(known))
    return ScalarAnswer(seconds, bound, at.source, at.ctx, dram_bytes, _draw(at), work_j)


def _interval(known: Sequence[Any], at: ScalarContext, xp: Arith) -> tuple[Any, ...]:
    """Latency, low, high, floor, ceiling: from the seconds of `Physics` and what the members of the nets answered."""
    (base_s, floor, dram_s, plain_s), members = known[:4], known[4:]
    means, logs, ceilings = members[: at.members], members[at.members : 2 * at.members], members[2 * at.members :]
    residual = merged(means, logs, xp)
    latency, low, high = law.combined(base_s, residual, dram_s, floor, at.widths, at.ctx.protocol, xp)
    ceiling = law.ceiling_s(plain_s, sum(ceilings) / len(ceilings) + at.shift, floor, high, xp)
    return latency, low, high, floor, ceiling


def _write_out(at: ScalarContext, known: int) -> None:
    """Both formulas as straight-line code, for all further calls."""
    at.after = straight(lambda *values: _interval(values, at, RECORDED), known)
    if (formula := at.family.formula) is None:
        return
    names = numeric_fields(at.family)

    def recorded(*numbers: Any) -> Physics:
        call = dict(zip(names, numbers, strict=True))
        return _physics(_sketches(at, lambda ctx: formula(call, ctx, RECORDED)), at, RECORDED)

    line = straight(recorded, len(names))
    at.before = lambda case: line(*[case.get(name) or 0.0 for name in names])


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
    codes = codes_of(ctx, net), codes_of(plain, net)
    together, among = plain == ctx and alike(*nets), {*nets[1].features} <= {*nets[0].features}
    return ScalarContext(
        family=family,
        ctx=ctx,
        source=source,
        rates=dict(zip(PIPES, pipe_rates(gpu, dtype)[:, 0].tolist(), strict=True)),
        net=net,
        nets=scalar_net(nets, codes) if together else scalar_net(nets[:1], codes[:1]),
        members=len(learned.net.weights[0]),
        ceiling=None if together else scalar_net(nets[1:], codes[1:], nets[0].features if among else None),
        alike=among,
        shift=learned.ceiling.shift(codes[1]),
        widths=intervals_of(learned.card.intervals, source.basis, measured_protocol(protocol), source.software, dtype),
        contexts=(ctx, law.as_original(ctx), plain, law.as_original(plain)),
    )
