"""A few calls of one context: physics in plain floats, one evaluation of the nets for all, then the interval.

The formulas of a batch without the price of arrays of length one. Those of physics and of the interval are recorded as
straight-line code when a context is first asked (`physics/straight.py`): the same operations, a third of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.families import Call
from pipewave.calls.fields import FieldsOf
from pipewave.gpus import GPU
from pipewave.kernels.base import Context, Family, Sketch
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.correction import UNIT, Correction, SoftwareCorrection, moved
from pipewave.nets.layers import Floats, ScalarNet
from pipewave.nets.nets import UNTRAINED_SCALE, Residual, Trained, alike, merged, scalar_net, trained
from pipewave.nets.weights_metadata import Interval, intervals_of
from pipewave.physics import energy
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.demand import PIPES, Array, pipe_rates
from pipewave.physics.power import Draw
from pipewave.physics.straight import RECORDED, NotStraight, straight
from pipewave.prediction import kernel_latency as law
from pipewave.prediction.columns import numeric_fields, options_of
from pipewave.prediction.kernel_latency import Answers
from pipewave.prediction.resolve import Source, codes_of, measured_protocol, net_name, plain_context, resolve

FEW, FEW_UNRECORDED = 24, 3  # calls: more are answered faster with arrays; of families without a formula to record
KEPT, AT_ONCE = 64, 4  # recorded formulas of a context; of them, as soon as they are asked for
UNRECORDED = 12  # further calls that differ in the numbers of their lists alone: recording takes as long as forty


class Physics(NamedTuple):
    """What is known of a call before its nets are asked.

    `seconds`: the base estimate, the floor, the DRAM pipe, and the base estimate that the ceiling is answered from.
    `plain_inputs`: of the ceiling's net, where it sees something else than the residual's. `coordinates`: of a
    calibration. `product`: type of the products where it is not that of the call.
    """

    seconds: tuple[Any, Any, Any, Any]
    bound: Any
    dram_bytes: Any
    joules: Any
    inputs: tuple[Any, ...]
    plain_inputs: tuple[Any, ...]
    coordinates: tuple[Any, ...]
    work_j: Any
    product: str


@dataclass(frozen=True, slots=True)
class Nets:
    """The nets of a context. `members` of `residual` answer the residual; the others, if any, the ceiling."""

    residual: ScalarNet
    members: int
    ceiling: ScalarNet | None  # where it cannot be evaluated together with the residual
    alike: bool  # whether it is given the same features
    correction: Coordinates | None

    def __call__(self, rows: Sequence[Physics]) -> list[list[float]]:
        """Of each call, what the members answer: means, logarithms of scales, ceilings; and the log of a calibration's
        factor.
        """
        seen = np.array([row[4] for row in rows], np.float32)
        means, logs, units = self.residual.members(seen)
        many = self.members
        if self.ceiling:
            plain = np.array([row[5] for row in rows], np.float32) if rows[0][5] else seen
            ceilings = self.ceiling.members(plain)[0]
            answers = [[*mean, *log, *top] for mean, log, top in zip(means, logs, ceilings, strict=True)]
        else:
            answers = [[*m[:many], *log[:many], *m[many:]] for m, log in zip(means, logs, strict=True)]
        if self.correction:
            moved = self.correction.log_factor([row[6] for row in rows], units).tolist()
            for answer, factor in zip(answers, moved, strict=True):
                answer.append(factor)
        return answers


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a calibration finds its coordinates: names of features, and places of hidden units [member, unit]."""

    correction: SoftwareCorrection
    width: float  # factor on the half-width of the interval, in log time
    features: tuple[str, ...]
    members: tuple[NDArray[np.intp], NDArray[np.intp]]

    @classmethod
    def of(cls, correction: Correction, codes: Mapping[str, str], units: int) -> Coordinates:
        """Of a net whose members have so many units in their last hidden layer."""
        found = correction.of_software(codes)
        features = tuple(name for name in found.names if not name.startswith(UNIT))  # before the units
        hidden = [int(name.removeprefix(UNIT)) for name in found.names[len(features) :]]
        member, unit = np.divmod(np.array(hidden, np.intp), units)
        return cls(found, correction.width, features, (member, unit))

    def log_factor(self, features: Sequence[tuple[float, ...]], units: Floats) -> Array:
        """From the features of each call and the last hidden units of all members."""
        calls, own = len(features), len(self.features)
        member, unit = self.members
        raw = np.empty((calls, len(self.correction.names)))
        raw[:, :own] = features
        raw[:, own:] = units.reshape(-1, calls, units.shape[-1])[member, :, unit].T
        return self.correction.log_factor(raw)


@dataclass(frozen=True, slots=True, eq=False)
class FewContext:
    """What is the same for all calls of one context, and the formulas before and after its nets."""

    ctx: Context
    source: Source
    net: str
    nets: Nets | None  # None where none was trained
    before: Callable[[Call], Physics | None]  # None where another net answers a call
    after: Callable[..., tuple[float, ...]]
    draws: dict[str, Draw]  # by type of the products, as they are asked for

    def draw(self, product: str) -> Draw:
        """What calls draw whose products are of a type."""
        return self.draws.get(product) or self.draws.setdefault(product, law.drawn(self.ctx, self.net, product))


def is_few(family: Family, calls: Sequence[Call]) -> bool:
    """Whether calls are answered faster one by one than with arrays."""
    recorded = family.formula or (family.alike and len(calls) <= FEW and all(_alike(family, call) for call in calls))
    return len(calls) <= (FEW if recorded else FEW_UNRECORDED)


def _alike(family: Family, call: Call) -> tuple[float, ...]:
    """The number that each list of a call holds again and again, and the length of the lists; empty for other lists."""
    lists = [getattr(call, name) for name in family.ragged]
    if any(each.count(each[0]) < len(each) for each in lists):
        return ()
    return *(float(each[0]) for each in lists), float(len(lists[0]))


def answer_few(
    family: Family, calls: Sequence[Call], key: Sequence[Any], gpu: GPU, protocol: str, *, ceilings: bool = True
) -> Answers | None:
    """Answers of calls with one group key, values of one call or arrays over a few; None where only a batch can."""
    if family.formula is None and family.one is None:
        return None

    def alone(key: tuple[Any, ...], protocol: str, physics: bool = False) -> Answers | None:
        return _alone(family, calls, key, gpu, protocol, physics=physics)

    xp = SCALAR if len(calls) == 1 else ARRAY
    return law.as_run(alone, family, tuple(key), gpu, protocol, xp, ceilings=ceilings)


def _alone(
    family: Family, calls: Sequence[Call], key: tuple[Any, ...], gpu: GPU, protocol: str, *, physics: bool
) -> Answers | None:
    """As calls that are measured one by one. `physics`: without the nets."""
    at = _context(family, key, gpu, protocol, None if physics else corrections.of(gpu), physics)
    rows = [at.before(call) for call in calls]
    if None in rows:
        return None
    answers = at.nets(rows) if at.nets else [[]] * len(rows)  # type: ignore[arg-type]
    seconds = [at.after(*row[0], *answer) for row, answer in zip(rows, answers, strict=True)]  # type: ignore[index]
    if len(rows) == 1:
        _, bound, dram_bytes, joules, *_, work_j, product = rows[0]  # type: ignore[misc]
        return Answers(seconds[0], bound, at.source, at.ctx, dram_bytes, joules, work_j, at.draw(product))
    bounds, dram_bytes, joules, work_j = np.array([(*row[1:4], row[7]) for row in rows]).T  # type: ignore[index]
    draw, bounds = at.draw(rows[0][8]), bounds.astype(np.intp)  # type: ignore[index]
    return Answers(np.array(seconds).T, bounds, at.source, at.ctx, dram_bytes, joules, work_j, draw)


@lru_cache(maxsize=4096)
def _context(
    family: Family, key: tuple[Any, ...], gpu: GPU, protocol: str, in_force: corrections.InForce | None, physics: bool
) -> FewContext:
    dtype, stack, impl = key[:3]
    ctx, source = resolve(family, gpu, dtype, protocol, stack, impl, options_of(family, key))
    source = law.assuming(family, ctx, source)
    expected = net_name(family, ctx.options)
    found = _of_net(family, ctx, source, expected, in_force, physics)
    return found if isinstance(found, FewContext) else _of_net(family, ctx, source, found, in_force, physics)  # type: ignore[return-value]


def _of_net(
    family: Family, ctx: Context, source: Source, net: str, in_force: corrections.InForce | None, physics: bool
) -> FewContext | str:
    """The context with a net, but for its `physics` alone; the name of another, where that answers its calls."""
    learned, correction = None if physics else trained(net), in_force and in_force.of(ctx, net)
    plain = plain_context(ctx, net) if learned else ctx
    nets = _nets(learned, ctx, plain, net, correction) if learned else None
    contexts = (ctx, law.as_original(ctx), plain, law.as_original(plain)) if learned else (ctx,) * 4
    known = learned.card.intervals if learned else law.UNTRAINED
    seen = measured_protocol(ctx.protocol)
    widths = intervals_of(known, source.basis, seen, source.software, ctx.dtype, sibling=source.sibling)
    ceiling = learned.ceiling if learned else None
    shift = ceiling.shift(codes_of(plain, net)) if ceiling else 0.0
    members, ceilings = (nets.members, _members(ceiling)) if nets else (0, 0)
    width = correction.width if correction else None
    if correction:
        source = law.corrected(source, correction)
    before = _recorded(family, contexts, net, nets) if family.formula else _directly(family, contexts, net, nets)
    if isinstance(before, str):
        return before
    return FewContext(ctx, source, net, nets, before, _after(members, ceilings, widths, shift, ctx.protocol, width), {})


def _members(ceiling: Any) -> int:
    return len(ceiling.net.weights[0]) if ceiling else 0


def _nets(learned: Trained, ctx: Context, plain: Context, net: str, correction: Any) -> Nets:
    codes, members = codes_of(ctx, net), len(learned.net.weights[0])
    moved = Coordinates.of(correction, codes, learned.net.weights[-1].shape[1]) if correction else None
    if learned.ceiling is None:
        return Nets(scalar_net([learned.net], [codes]), members, None, True, moved)
    nets, both = (learned.net, learned.ceiling.net), (codes, codes_of(plain, net))
    if plain == ctx and alike(*nets):
        return Nets(scalar_net(nets, both), members, None, True, moved)
    among = {*nets[1].features} <= {*nets[0].features}
    ceiling = scalar_net(nets[1:], both[1:], nets[0].features if among else None)
    return Nets(scalar_net(nets[:1], both[:1]), members, ceiling, among, moved)


def _directly(
    family: Family, contexts: tuple[Context, ...], net: str, nets: Nets | None
) -> Callable[[Call], Physics | None]:
    """Physics of a call by its family's own function of one; recorded once calls with alike lists come often."""
    rest, asked = _numbers(numeric_fields(family)), Counter[tuple[float, ...]]()
    lines: dict[tuple[float, ...], Callable[..., Physics | None]] = {}

    def physics(xp: Arith, sketch: Callable[[Context], Sketch]) -> Physics | None:
        found = _sketches(contexts, sketch)
        return _physics(found, contexts, nets, xp) if found[0].net == net else None

    def recorded(case: FieldsOf, count: int) -> Callable[..., Physics | None]:
        def formula(*symbols: Any) -> Any:
            return physics(RECORDED, lambda ctx: family.alike(case, ctx, symbols, RECORDED)) or ()  # type: ignore[misc]

        return straight(formula, count)

    def before(call: Call) -> Physics | None:
        case, numbers = FieldsOf(call), _alike(family, call) if family.alike else ()
        if not numbers:
            return physics(SCALAR, lambda ctx: family.one(case, ctx))  # type: ignore[misc]
        key = tuple(rest(call))
        if len(asked) > KEPT:
            asked.clear()
            lines.clear()
        if key not in lines and len(lines) >= AT_ONCE and asked[key] < UNRECORDED:
            asked[key] += 1
            return physics(SCALAR, lambda ctx: family.alike(case, ctx, numbers, SCALAR))  # type: ignore[misc]
        return (lines.get(key) or lines.setdefault(key, recorded(case, len(numbers))))(*numbers) or None

    return before


def _recorded(
    family: Family, contexts: tuple[Context, ...], net: str, nets: Nets | None
) -> Callable[[Call], Physics | None] | str:
    """Physics of a call by its family's formula, recorded; the name of the net where another one answers."""
    names, formula, others = numeric_fields(family), family.formula, list[str]()

    def physics(xp: Arith, *numbers: Any) -> Physics | tuple[()]:
        call = dict(zip(names, numbers, strict=True))
        found = _sketches(contexts, lambda ctx: formula(call, ctx, xp))  # type: ignore[misc]
        if found[0].net != net:
            others.append(found[0].net)
            return ()
        return _physics(found, contexts, nets, xp)

    numbers = _numbers(names)
    try:
        line = straight(lambda *symbols: physics(RECORDED, *symbols), len(names))
    except NotStraight:
        return lambda call: physics(SCALAR, *numbers(call)) or None
    return others[0] if others else lambda call: line(*numbers(call))


@cache
def _numbers(names: tuple[str, ...]) -> Callable[[Call], list[float]]:
    """The numbers of a call by the names of its fields; nulls are 0."""
    read: Callable[[Call], Any] = attrgetter(*names)
    if len(names) == 1:
        return lambda call: [read(call) or 0.0]
    return lambda call: [value or 0.0 for value in read(call)]


def _sketches(contexts: tuple[Context, ...], sketch: Callable[[Context], Sketch]) -> tuple[Sketch, ...]:
    """Of a call under its context, under that whose features the nets see, and under both as the ceiling is asked."""
    known: Mapping[Context, Sketch] = {ctx: sketch(ctx) for ctx in dict.fromkeys(contexts)}
    return tuple(known[ctx] for ctx in contexts)


def _physics(sketches: tuple[Sketch, ...], contexts: tuple[Context, ...], nets: Nets | None, xp: Arith) -> Physics:
    found, seen, plain, plain_seen = sketches
    ctx, bound, floor = contexts[0], 0, 0.0
    rates = pipe_rates(ctx.gpu, ctx.dtype)[:, 0].tolist()
    pipes = {pipe: found.amounts[pipe] / rate for pipe, rate in zip(PIPES, rates, strict=True) if pipe in found.amounts}
    for pipe, seconds in pipes.items():
        bound = xp.where(seconds > floor, PIPES.index(pipe), bound)
        floor = xp.maximum(seconds, floor)
    ceiling, moved = (nets.ceiling, nets.correction) if nets else (None, None)
    same = plain_seen is seen and nets is not None and nets.alike
    return Physics(
        seconds=(found.base_s, floor, pipes.get("dram", 0.0), plain.base_s),
        bound=bound,
        dram_bytes=found.amounts.get("dram", 0.0),
        joules=energy.joules(ctx.gpu, ctx.dtype, found.work),
        inputs=nets.residual.inputs(seen.features) if nets else (),
        plain_inputs=ceiling.inputs(plain_seen.features) if ceiling and not same else (),
        coordinates=tuple(seen.features[name] for name in moved.features) if moved else (),
        work_j=law.drawn(ctx, found.net, found.work.product).work_j(found.work),
        product=found.work.product,
    )


@lru_cache(maxsize=1024)
def _after(
    members: int, ceilings: int, widths: tuple[Interval, ...], shift: float, protocol: str, width: float | None
) -> Callable[..., tuple[float, ...]]:
    """Latency, low, high, floor, ceiling: from the seconds of `Physics` and what `Nets` answer."""

    def interval(*known: Any) -> tuple[Any, ...]:
        (base_s, floor, dram_s, plain_s), answers = known[:4], known[4:]
        means, logs, tops = answers[:members], answers[members : 2 * members], answers[2 * members :][:ceilings]
        residual = merged(means, logs, RECORDED) if members else Residual(0.0, UNTRAINED_SCALE)
        latency, low, high = law.combined(base_s, residual, dram_s, floor, widths, protocol, RECORDED)
        ceiling = law.ceiling_s(plain_s, sum(tops) / ceilings + shift, floor, high, RECORDED) if ceilings else low
        seconds = latency, low, high, floor, ceiling
        return seconds if width is None else moved(seconds, answers[-1], width, RECORDED)

    return straight(interval, 4 + 2 * members + ceilings + (width is not None))
