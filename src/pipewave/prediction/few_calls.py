"""A few calls of one context: physics in plain floats, one evaluation of the nets for all, then the interval.

The formulas of a batch without the price of arrays of length one. Those of physics and of the interval are recorded as
straight-line code when a context is first asked (`physics/arith.py`): the same operations, a third of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.families import Call
from pipewave.calls.fields import FieldsOf, rules
from pipewave.gpus import GPU
from pipewave.kernels.base import Context, Family, Sketch
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.correction import SoftwareCorrection
from pipewave.nets.layers import ScalarNet
from pipewave.nets.nets import UNTRAINED_SCALE, Residual, Trained, alike, merged, scalar_net
from pipewave.nets.weights_metadata import Interval
from pipewave.physics.arith import ARRAY, RECORDED, SCALAR, Arith, NotStraight, straight
from pipewave.physics.demand import PIPES, pipe_rates
from pipewave.prediction import kernel_latency as law
from pipewave.prediction.columns import numeric_fields
from pipewave.prediction.kernel_latency import Answers
from pipewave.prediction.resolve import Setting, setting

FEW, FEW_UNRECORDED = 24, 3  # calls: more are answered faster with arrays; of families without a formula to record
KEPT, AT_ONCE = 64, 4  # recorded formulas of a context; of them, as soon as they are asked for
UNRECORDED = 12  # further calls that differ in the numbers of their lists alone: recording takes as long as forty


class Physics(NamedTuple):
    """What is known of a call before its nets are asked."""

    # Seconds (base estimate, floor, DRAM pipe, base of the ceiling), DRAM bytes, the last three numbers.
    known: tuple[Any, ...]
    inputs: tuple[Any, ...]
    plain_inputs: tuple[Any, ...]  # of the ceiling's net, where it sees something else than the residual's
    product: str  # type of the products where it is not that of the call


@dataclass(frozen=True, slots=True)
class Nets:
    """The nets of a context."""

    residual: ScalarNet
    members: int  # of `residual` that answer the residual; the others, if any, the ceiling
    ceiling: ScalarNet | None  # where it cannot be evaluated together with the residual
    alike: bool  # whether it is given the same features
    correction: SoftwareCorrection | None
    coordinates: NDArray[np.intp] | None  # of the correction, as `residual` counts its inputs and units

    def __call__(self, rows: Sequence[Physics]) -> list[list[float]]:
        """Of each call: mean and log scale of every member, the residual's first, then the log of a calibration's
        factor.
        """
        answers, coordinates = self.residual([row[1] for row in rows], self.coordinates)
        if self.ceiling:
            tops, _ = self.ceiling([row[2] or row[1] for row in rows])
            answers = [one + top for one, top in zip(answers, tops, strict=True)]
        if self.correction:
            factors = self.correction(coordinates).tolist()
            for answer, factor in zip(answers, factors if len(rows) > 1 else (factors,), strict=True):
                answer.append(factor)
        return answers


@dataclass(frozen=True, slots=True, eq=False)
class FewContext:
    """What all calls of one context share, and the formulas before and after its nets."""

    at: Setting
    nets: Nets | None  # None where none was trained
    before: Callable[[Call], Physics | None]  # None where another net answers a call
    after: Callable[..., Sequence[float]]


def is_few(family: Family, calls: Sequence[Call]) -> bool:
    """Whether calls are answered faster one by one than with arrays."""
    if len(calls) <= FEW_UNRECORDED:
        return True
    return len(calls) <= FEW and bool(family.formula or (family.alike and all(map(_alike, calls))))


def _alike(call: Any) -> tuple[float, ...]:
    """The number that each list of a call holds again and again, and the length of the lists; empty for other lists."""
    q, kv, requests = call.q_lens, call.kv_lens, len(call.q_lens)
    if q.count(q[0]) < requests or kv.count(kv[0]) < requests:
        return ()
    return float(q[0]), float(kv[0]), float(requests)


def answer_few(
    family: Family, calls: Sequence[Call], key: Sequence[Any], gpu: GPU, protocol: str, *, ceilings: bool = True
) -> Answers | None:
    """Answers of calls with one group key, a number each of one call or [row, call]; None where only a batch can."""
    first, other, note = _run(family, tuple(key), gpu, protocol, corrections.of(gpu), ceilings)
    found = _alone(first, calls) if first else None
    if found is None or other is None:
        return found
    beside = _alone(other, calls)
    return beside and law.as_run(note, found, beside, SCALAR if len(calls) == 1 else ARRAY)


@lru_cache(maxsize=4096)
def _run(family: Family, key: Any, gpu: GPU, *asked: Any) -> tuple[FewContext | None, FewContext | None, str]:
    """Contexts of the calls that `law.run_of` names, and its note; no first one where only a batch can answer."""
    if family.formula is None and family.one is None:
        return None, None, ""
    first, other, note = law.run_of(family, key, gpu, *asked)
    return _context(family, gpu, *first), other and _context(family, gpu, *other), note


def _alone(few: FewContext, calls: Sequence[Call]) -> Answers | None:
    """As calls that are measured one by one, or run in a step."""
    at, first = few.at, few.before(calls[0])
    if first is None:
        return None
    draw = at.draws.get(first[3]) or at.draw(first[3])
    if len(calls) == 1:  # without lists of one: a twentieth of the time
        learned = few.nets((first,))[0] if few.nets else ()
        return Answers(few.after(*first[0], *learned), at.source, at.ctx, draw)
    rows: list[Any] = [first, *map(few.before, calls[1:])]
    if None in rows:
        return None
    answers = few.nets(rows) if few.nets else [()] * len(rows)
    numbers = [few.after(*row[0], *answer) for row, answer in zip(rows, answers, strict=True)]
    return Answers(np.array(numbers).T, at.source, at.ctx, draw)


@lru_cache(maxsize=4096)
def _context(
    family: Family, gpu: GPU, key: tuple[Any, ...], protocol: str, in_force: corrections.InForce | None, asked: int
) -> FewContext:
    step = (family, key[1]) if law.in_step_of(family, protocol) else None

    def under(net: str | None) -> FewContext | str:
        at = setting(family, key, gpu, protocol, in_force, asked, net)
        nets = _nets(at, at.learned) if at.learned else None
        before = _recorded(family, at, nets) if family.formula else _directly(family, at, nets)
        if isinstance(before, str):
            return before
        ceiling, in_step = at.ceiling, (*step, at.ctx) if step else None
        tops, shift = (len(ceiling.net.weights[0]), ceiling.shift(at.plain_codes)) if ceiling else (0, 0.0)
        members = nets.members if nets else 0
        return FewContext(at, nets, before, _after(members, tops, at.widths, shift, at.ctx.protocol, at.width, in_step))

    found = under(None)
    return found if isinstance(found, FewContext) else under(found)  # type: ignore[return-value]


def _nets(at: Setting, learned: Trained) -> Nets:
    nets, codes, moved, ceiling, among, coordinates = [learned.net], [at.codes], at.correction, None, True, None
    given = tuple(dict.fromkeys((*learned.net.features, *(moved.features if moved else ()))))
    if moved:  # behind whose coordinates stand two ones
        one = len(given)
        coordinates = np.array([*map(given.index, moved.features), *(moved.units + one + 1), one, one])
    if at.ceiling and at.contexts[2] == at.ctx and alike(learned.net, at.ceiling.net):
        nets, codes = [*nets, at.ceiling.net], [*codes, at.plain_codes]
    elif at.ceiling:
        among = {*at.ceiling.net.features} <= {*given}
        ceiling = scalar_net([at.ceiling.net], [at.plain_codes], given if among else None)
    members = len(learned.net.weights[0])
    return Nets(scalar_net(nets, codes, given), members, ceiling, among, moved, coordinates)


def _directly(family: Family, at: Setting, nets: Nets | None) -> Callable[[Call], Physics | None]:
    """Physics of a call by its family's own function of one; recorded once calls with alike lists come often."""
    rest, asked = _numbers(family, numeric_fields(family)), Counter[tuple[float, ...]]()
    lines: dict[tuple[float, ...], Callable[..., Physics | None]] = {}

    def physics(xp: Arith, sketch: Callable[[Context], Sketch]) -> Physics | None:
        found = at.each(sketch)
        return _physics(found, at, nets, xp) if found[0].net == at.net else None

    def recorded(case: FieldsOf, count: int) -> Callable[..., Physics | None]:
        def formula(*symbols: Any) -> Any:
            return physics(RECORDED, lambda ctx: family.alike(case, ctx, symbols, RECORDED)) or ()  # type: ignore[misc]

        return straight(formula, count)

    def before(call: Call) -> Physics | None:
        numbers, key = _alike(call) if family.alike else (), tuple(rest(call))
        if numbers and (line := lines.get(key)):
            return line(*numbers) or None
        case = FieldsOf(call)
        if not numbers:
            return physics(SCALAR, lambda ctx: family.one(case, ctx))  # type: ignore[misc]
        if len(asked) > KEPT:
            asked.clear()
            lines.clear()
        if len(lines) >= AT_ONCE and asked[key] < UNRECORDED:
            asked[key] += 1
            return physics(SCALAR, lambda ctx: family.alike(case, ctx, numbers, SCALAR))  # type: ignore[misc]
        return lines.setdefault(key, recorded(case, len(numbers)))(*numbers) or None

    return before


def _recorded(family: Family, at: Setting, nets: Nets | None) -> Callable[[Call], Physics | None] | str:
    """Physics of a call by its family's formula, recorded; the name of the net where another one answers."""
    names, formula, others = numeric_fields(family), family.formula, list[str]()

    def physics(xp: Arith, *numbers: Any) -> Physics | tuple[()]:
        call = dict(zip(names, numbers, strict=True))
        found = at.each(lambda ctx: formula(call, ctx, xp))  # type: ignore[misc]
        if found[0].net != at.net:
            others.append(found[0].net)
            return ()
        return _physics(found, at, nets, xp)

    numbers = _numbers(family, names)
    try:
        line = straight(lambda *symbols: physics(RECORDED, *symbols), len(names))
    except NotStraight:
        return lambda call: physics(SCALAR, *numbers(call)) or None
    return others[0] if others else lambda call: line(*numbers(call))


@cache
def _numbers(family: Family, names: tuple[str, ...]) -> Callable[[Call], Sequence[float]]:
    """The numbers of a call by the names of its fields; nulls are 0."""
    read: Callable[[Call], Any] = attrgetter(*names)
    if len(names) == 1:
        return lambda call: [read(call) or 0.0]
    if any(rules(family.call)[name].optional for name in names):
        return lambda call: [value or 0.0 for value in read(call)]
    return read


def _physics(sketches: tuple[Sketch, ...], at: Setting, nets: Nets | None, xp: Arith) -> Physics:
    found, seen, plain, plain_seen = sketches
    ctx, bound, floor = at.ctx, 0, 0.0
    rates = pipe_rates(ctx.gpu, ctx.dtype)[:, 0].tolist()
    pipes = {pipe: found.amounts[pipe] / rate for pipe, rate in zip(PIPES, rates, strict=True) if pipe in found.amounts}
    for pipe, seconds in pipes.items():
        bound = xp.where(seconds > floor, PIPES.index(pipe), bound)
        floor = xp.maximum(seconds, floor)
    ceiling = nets.ceiling if nets else None
    same = plain_seen is seen and nets is not None and nets.alike
    seconds = found.base_s, floor, pipes.get("dram", 0.0), plain.base_s
    work_j = at.draw(found.work.product).work_j(found.work, found.base_s, found.features, xp)
    return Physics(
        known=(*seconds, found.amounts.get("dram", 0.0), bound, work_j),
        inputs=nets.residual.inputs(seen.features) if nets else (),
        plain_inputs=ceiling.inputs(plain_seen.features) if ceiling and not same else (),
        product=found.work.product,
    )


@lru_cache(maxsize=1024)
def _after(
    members: int,
    ceilings: int,
    widths: tuple[Interval, ...],
    shift: float,
    protocol: str,
    width: float | None,
    step: tuple[Family, str | None, Context] | None,
) -> Callable[..., Sequence[float]]:
    """Numbers of an answer from what is `known` and what `Nets` answer. `step`: family, named stack, context."""

    def numbers(*known: Any) -> tuple[Any, ...]:
        answers = known[7:]
        means, logs = answers[: 2 * members : 2], answers[1 : 2 * members : 2]
        tops = answers[2 * members :: 2][:ceilings]
        residual = merged(means, logs, RECORDED) if members else Residual(0.0, UNTRAINED_SCALE)
        log_ceiling = sum(tops) / ceilings + shift if ceilings else None
        factor = None if width is None else answers[-1]
        seconds = law.finished(known[:4], residual, log_ceiling, factor, widths, width, protocol, RECORDED)
        if step:
            family, stack, ctx = step
            seconds = law.in_step(seconds, known[4], family, ctx, stack, RECORDED)
        return *seconds, *known[5:7]

    return straight(numbers, 7 + 2 * (members + ceilings) + (width is not None))
