"""One trace from file to report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipewave.calls.families import Elementwise
from pipewave.errors import MissingField
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.kernels.attention.lengths import Lengths, of_step
from pipewave.kernels.launched import Given, Shaped
from pipewave.kernels.streaming.argmax import OP as ARGMAX
from pipewave.kernels.streaming.stream import GENERATED
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.software.engines import Engine
from pipewave.software.engines import find as find_engine
from pipewave.traces import operators
from pipewave.traces.align import align
from pipewave.traces.cached import Where, cached_tokens, in_a_row, with_cached
from pipewave.traces.expected import sequence
from pipewave.traces.group import Group, by_step, group
from pipewave.traces.reader import read
from pipewave.traces.report import Report, report
from pipewave.traces.trace import Step, Trace

ARGMAX_KERNEL = "ArgMaxOps"
NOTHING = Given()


@dataclass(frozen=True, slots=True)
class Workload:
    """What a trace may not say: the model and how it is sharded, the lengths of its requests, the engine."""

    deployment: Deployment | None = None
    given: Given = NOTHING
    engine: str | Engine = "vllm"


def explain_trace(
    file: str | Path | Trace,
    *,
    gpu: str | GPU | None = None,
    workload: Workload | None = None,
    protocol: str | None = None,
    stack: str | None = None,
) -> Report:
    """Every kernel call of a trace with its measured, predicted and reachable time.

    `gpu` defaults to the trace's own, `protocol` to `serving` for profiler traces and `cold` for ncu, which flushes
    the caches. Raises BadFile, UnknownGPU, MissingField and what `predict` raises.
    """
    trace, known = file if isinstance(file, Trace) else read(file), workload or Workload()
    name = gpu or trace.gpu
    if name is None:
        raise MissingField(f"{trace.source} does not name its GPU: pass --gpu", field="gpu")
    if known.deployment is not None and not trace.steps and not known.given.q_lens:
        raise MissingField(f"{trace.source} does not name its steps: pass --q-lens and --kv-lens", field="q_lens")
    groups, where = group(trace.kernels), Where(find(name), protocol or trace.protocol, stack)
    shapes = shaped(trace, groups, known, where)
    return report(trace, groups, shapes, where.gpu, where.protocol, stack)


def shaped(trace: Trace, groups: Sequence[Group], known: Workload, where: Where) -> list[Shaped | None]:
    """The call of each group: from its operators, else from the model, else none."""
    found = {id(one): operators.read(one, _step(trace, one), known.given) for one in groups}
    if known.deployment is not None:
        lengths = _lengths(trace, groups, known.deployment, known, where)
        for number, members in by_step(groups).items():
            modelled = _from_model(lengths[number], members, known.deployment, known)
            for one, guess in zip(members, modelled, strict=True):
                found[id(one)] = _better(found[id(one)], guess)
    return [_written_by(one, found[id(one)]) for one in groups]


def _written_by(one: Group, shape: Shaped | None) -> Shaped | None:
    """A kernel that torch.compile generated is predicted as such, and so is sampling by argmax, both by their names."""
    written = one.family is not None and family_of(one.family).profile.generated
    if shape is not None and ARGMAX_KERNEL in one.head.name and isinstance(shape.call, Elementwise):
        return replace(shape, call=replace(shape.call, op=ARGMAX))
    if shape is None or not written or not one.head.name.startswith("triton_"):
        return shape
    if not family_of(shape.call.kernel).profile.generated:
        return shape
    return replace(shape, call=replace(shape.call, impl=GENERATED))  # type: ignore[call-arg]


def _step(trace: Trace, one: Group) -> Step | None:
    return trace.steps[one.head.step] if one.head.step >= 0 else None


def _better(mine: Shaped | None, guess: Shaped | None) -> Shaped | None:
    """What the trace itself says, unless only the model (with the user's lengths) knows it without assuming."""
    if mine is None or (guess is not None and guess.read and not mine.read):
        return guess
    return replace(mine, name=guess.name) if guess is not None and guess.call.kernel == mine.call.kernel else mine


def _lengths(
    trace: Trace, groups: Sequence[Group], deployment: Deployment, known: Workload, where: Where
) -> dict[int, Lengths | None]:
    """Lengths of each step's requests: named, given, or read off the time of its attention."""
    steps = by_step(groups)
    found = {number: of_step(trace.steps[number] if number >= 0 else None, known.given) for number in steps}
    cached: dict[int, int] = {}
    for number, one in found.items():
        if one is not None and one.note and not known.given.kv_lens:
            uses = sequence(deployment, Batch.of(one.q_lens, one.kv_lens))
            if (length := cached_tokens(one, uses, steps[number], where)) is not None:
                cached[number] = length
    requests = {number: one.q_lens for number, one in found.items() if one is not None}
    return found | {
        number: with_cached(_of(found, number), length) for number, length in in_a_row(cached, requests).items()
    }


def _of(found: dict[int, Lengths | None], number: int) -> Lengths:
    one = found[number]
    assert one is not None
    return one


def _from_model(
    found: Lengths | None, members: Sequence[Group], deployment: Deployment, known: Workload
) -> list[Shaped | None]:
    if found is None:
        return [None] * len(members)
    uses = sequence(deployment, _batch(found, members, find_engine(known.engine)))
    return [_noted(one, found) for one in align(members, uses * _repeats(members, uses))]


def _repeats(members: Sequence[Group], uses: Sequence[Use]) -> int:
    """How many steps these kernels are, by their attention; more than one where the trace names no steps."""
    ran = sum(_by_request(one.family) for one in members)
    return max(1, round(ran / max(1, sum(_by_request(use.call.kernel) for use in uses))))


def _by_request(family: str | None) -> bool:
    """Whether a family's time depends on the length of each request."""
    return family is not None and bool(family_of(family).ragged)


def _batch(found: Lengths, members: Sequence[Group], engine: Engine) -> Batch:
    """A decode step inside a CUDA graph is padded to a captured size; kernels of a graph have no operators."""
    batch = Batch.of(found.q_lens, found.kv_lens)
    in_graph = any(one.kind.role == "attention" and not one.head.ops for one in members)
    return replace(batch, padded=engine.padded(batch.requests)) if batch.is_decode and in_graph else batch


def _noted(one: Shaped | None, found: Lengths) -> Shaped | None:
    """Only attention depends on each request's lengths; the rest on their sum, which the step's name gives."""
    if one is None or not found.note or not _by_request(one.call.kernel):
        return one
    return replace(one, read=False, note=found.note)
