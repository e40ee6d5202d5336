"""One trace from file to report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipewave.calls.families import Attention, Call, Elementwise, Gemm
from pipewave.errors import MissingField
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.kernels.attention.lengths import Lengths, of_step
from pipewave.kernels.launched import Given, Shaped
from pipewave.kernels.streaming.argmax import OP as ARGMAX
from pipewave.kernels.streaming.sampling_profile import as_run
from pipewave.kernels.streaming.stream import GENERATED
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.software.engine import Engine
from pipewave.software.engine import find as find_engine
from pipewave.traces.align import align, between, of_model, of_scope, sequence, sized
from pipewave.traces.cache_lengths import Where, cached_tokens, in_a_row, with_cached
from pipewave.traces.group import Group, by_step, group, recorded_call
from pipewave.traces.reader import ROOMY, Limits, read
from pipewave.traces.report import Report, report
from pipewave.traces.trace import Step, Trace

SAMPLE = "sample"  # a model's last kernel, whatever runs it
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
    limits: Limits = ROOMY,
) -> Report:
    """Every kernel call of a trace with its measured, predicted and reachable time.

    `gpu` defaults to the trace's own, `protocol` to `serving` for profiler traces and `cold` for ncu, which flushes
    the caches; Raises BadFile, UnknownGPU, MissingField and what `predict` raises.
    """
    trace, known = file if isinstance(file, Trace) else read(file, limits), workload or Workload()
    name = gpu or trace.gpu
    if name is None:
        raise MissingField(f"{trace.source} does not name its GPU: pass --gpu", field="gpu")
    groups, where = group(trace.kernels), Where(find(name), protocol or trace.protocol, stack)
    shapes, layers = shaped(trace, groups, known, where)
    return report(trace, groups, shapes, layers, where.gpu, where.protocol, stack)


def shaped(
    trace: Trace, groups: Sequence[Group], known: Workload, where: Where
) -> tuple[list[Shaped | None], list[int | None]]:
    """The call of each group (from its operators, else from the model, else none), and its layer where known."""
    found = {id(one): recorded_call(one, _step(trace, one), known.given) for one in groups}
    layers = {id(one): of_scope(one.head.scope) for one in groups}
    if known.deployment is not None:
        lengths = _lengths(trace, groups, known.deployment, known, where, found)
        for number, members in by_step(groups).items():
            modelled, numbers = _from_model(lengths[number], members, known, _roles(members, found))
            for one, guess, layer in zip(members, modelled, numbers, strict=True):
                found[id(one)] = _better(found[id(one)], guess)
                layers[id(one)] = layer if layers[id(one)] is None else layers[id(one)]
    return [_written_by(one, found[id(one)]) for one in groups], between([layers[id(one)] for one in groups], groups)


def _written_by(one: Group, shape: Shaped | None) -> Shaped | None:
    """A kernel that torch.compile generated is predicted as such, and so is one that samples, both by their names."""
    written = one.family is not None and family_of(one.family).profile.generated
    if shape is not None and isinstance(shape.call, Elementwise) and shape.call.op in (SAMPLE, ARGMAX):
        return replace(shape, call=as_run(shape.call, one.head.name))
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
    return replace(mine, name=guess.name) if guess is not None and _alike(mine.call, guess.call) else mine


def _alike(mine: Call, other: Call) -> bool:
    """Whether the model's call is the traced one: a product of q alone is not that of q, k and v."""
    if mine.kernel != other.kernel or isinstance(mine, Elementwise):
        return mine.kernel == other.kernel
    sizes, others = mine.to_dict(), other.to_dict()
    return all(others.get(name) == size for name, size in sizes.items() if type(size) is int)


def _lengths(
    trace: Trace,
    groups: Sequence[Group],
    deployment: Deployment,
    known: Workload,
    where: Where,
    read_off: Mapping[int, Shaped | None],
) -> dict[int, Lengths | None]:
    """Lengths of each step's requests: named, given, recorded, or read off the time of its attention."""
    steps = by_step(groups)
    found = {number: of_step(trace.steps[number] if number >= 0 else None, known.given) for number in steps}
    if -1 in found and found[-1] is None and not trace.steps:
        found[-1] = _recorded([read_off[id(one)] for one in groups], trace.source)
    cached: dict[int, int] = {}
    for number, one in found.items():
        if one is not None and one.note and not known.given.kv_lens:
            uses = sequence(deployment, Batch.of(one.q_lens, one.kv_lens))
            if (length := cached_tokens(one, uses, steps[number], where)) is not None:
                cached[number] = length
    requests = {number: one.q_lens for number, one in found.items() if one is not None}
    taken = in_a_row(cached, requests)
    return found | {number: with_cached(_of(found, number), one, taken.values()) for number, one in taken.items()}


def _recorded(shapes: Iterable[Shaped | None], source: str) -> Lengths | None:
    """Lengths that the operators of an eager trace were given; None where its calls of attention run different
    requests, which then have no common list of kernels. MissingField where no operator names any."""
    calls = [one.call for one in shapes if one is not None and isinstance(one.call, Attention)]
    if not calls:
        raise MissingField(f"{source} does not name its steps: pass --q-lens and --kv-lens", field="q_lens")
    first = calls[0]
    alike = all(call.q_lens == first.q_lens for call in calls)
    return Lengths(first.q_lens, first.kv_lens, "") if alike else None


def _of(found: dict[int, Lengths | None], number: int) -> Lengths:
    one = found[number]
    assert one is not None
    return one


def _from_model(
    found: Lengths | None, members: Sequence[Group], known: Workload, roles: tuple[str, ...]
) -> tuple[list[Shaped | None], list[int | None]]:
    """Calls and layers of a step's groups."""
    deployment = known.deployment
    if found is None or deployment is None:
        return [None] * len(members), [None] * len(members)
    batch = _batch(found, members, find_engine(known.engine))
    uses = sequence(deployment, batch)
    steps = _repeats(members, uses)
    layers = of_model(roles, deployment, batch, steps)
    return [_noted(one, found) for one in align(members, uses * steps, roles)], layers


def _roles(members: Sequence[Group], read_off: Mapping[int, Shaped | None]) -> tuple[str, ...]:
    return tuple(_role(one, read_off[id(one)]) for one in members)


def _role(one: Group, shape: Shaped | None) -> str:
    """A product whose operator recorded sizes, but none that we can read, is none of the model's."""
    recorded = any(op.dims for op in one.head.ops)
    return (
        f"{one.role}:unread"
        if shape is None and recorded and one.family == Gemm.kernel
        else sized(one.role, shape.call if shape else None)
    )


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
    return replace(batch, padded=engine.graphs.padded(batch.requests)) if batch.is_decode and in_graph else batch


def _noted(one: Shaped | None, found: Lengths) -> Shaped | None:
    """Only attention depends on each request's lengths; the rest on their sum, which the step's name gives."""
    if one is None or not found.note or not _by_request(one.call.kernel):
        return one
    return replace(one, read=False, note=found.note)
