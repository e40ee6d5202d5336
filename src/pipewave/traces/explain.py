"""From a trace to its report: calls from recorded operators, else from the model, then predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from pipewave.calls.families import Attention, Elementwise, Gemm
from pipewave.errors import MissingField
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.kernels.attention.metadata import Lengths, of_step
from pipewave.kernels.profiler import Given, Shaped
from pipewave.kernels.streaming.metadata import as_run
from pipewave.kernels.streaming.sampling import ARGMAX
from pipewave.kernels.streaming.stream import GENERATED
from pipewave.models import ModelSpec
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.models.shard import Parallel
from pipewave.software.engine import Engine
from pipewave.software.engine import find as find_engine
from pipewave.traces.align import align, between, by_repetition, match, of_scope, parts, role_of, sequence, sized
from pipewave.traces.cache_lengths import cached_tokens, over_steps, with_cached
from pipewave.traces.group import Group, Shapes, Where, by_step, group, recorded_call
from pipewave.traces.reader import ROOMY, Limits, read
from pipewave.traces.report import Report, report
from pipewave.traces.trace import Trace

SAMPLE = "sample"  # a model's last kernel, whatever runs it
NOTHING = Given()
ReadOff = Mapping[int, Shaped | None]  # the call of each group as its operators say it, by the group's identity


@dataclass(frozen=True, slots=True)
class Workload:
    """What a trace may not say: the model and how it is sharded, the lengths of its requests, the engine."""

    deployment: Deployment | None = None
    given: Given = NOTHING
    engine: str | Engine = "vllm"

    @classmethod
    def of(
        cls, model: ModelSpec | None, *, tp: int, ep: int, kv_dtype: str | None, given: Given, engine: str
    ) -> Workload:
        """Requests of a model that is split so. Raises CannotShard where it does not divide."""
        parallel, found = Parallel(tp, 1, ep), find_engine(engine)
        if model is None:
            return cls(None, given, found)
        parallel.check(model)
        return cls(Deployment(model, parallel, kv_dtype, found.memory.page_size), given, found)


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
    return report(trace, groups, shapes, layers, where)


def shaped(trace: Trace, groups: Sequence[Group], known: Workload, where: Where) -> tuple[Shapes, list[int | None]]:
    """The call of each group (from its operators, else from the model, else none), and its layer where known."""
    found = {id(one): recorded_call(one, trace.step(one.head.step), known.given) for one in groups}
    layers = {id(one): of_scope(one.head.scope) for one in groups}
    if known.deployment is not None:
        lengths = _lengths(trace, groups, known.deployment, known, where, found)
        for number, members in by_step(groups).items():
            modelled, numbers = _from_model(lengths[number], members, known, found)
            for one, guess, layer in zip(members, modelled, numbers, strict=True):
                found[id(one)] = _better(found[id(one)], guess)
                layers[id(one)] = layer if layers[id(one)] is None else layers[id(one)]
    numbers = between([layers[id(one)] for one in groups], groups)
    if all(number is None for number in numbers):
        numbers = by_repetition(groups)
    return [_written_by(one, found[id(one)]) for one in groups], numbers


def _written_by(one: Group, shape: Shaped | None) -> Shaped | None:
    """A kernel that torch.compile generated is predicted as such, and so is one that samples, both by their names."""
    written = one.family is not None and family_of(one.family).profile.generated
    if shape is not None and isinstance(shape.call, Elementwise) and shape.call.op in (SAMPLE, ARGMAX):
        return replace(shape, call=as_run(shape.call, one.head.name))
    if shape is None or not written or not one.head.name.startswith("triton_"):
        return shape
    if not family_of(shape.call.kernel).profile.generated:
        return shape
    return replace(shape, call=replace(shape.call, impl=GENERATED))


def _better(mine: Shaped | None, guess: Shaped | None) -> Shaped | None:
    """What the trace itself says, unless only the model (with the user's lengths) knows it without assuming."""
    if mine is None or (guess is not None and guess.read and not mine.read):
        return guess
    if guess is None or mine.call.kernel != guess.call.kernel:
        return mine
    # Whether the model's call is the traced one: a product of q alone is not that of q, k and v.
    sizes, others = mine.call.to_dict(), guess.call.to_dict()
    differ = any(others.get(name) != size for name, size in sizes.items() if type(size) is int)
    return mine if differ and not isinstance(mine.call, Elementwise) else replace(mine, name=guess.name)


def _lengths(
    trace: Trace, groups: Sequence[Group], deployment: Deployment, known: Workload, where: Where, read_off: ReadOff
) -> dict[int, tuple[Lengths, ...]]:
    """Lengths of each step's requests: named, given, recorded, or read off the time of its attention.

    Kernels without a step may be several steps of different requests, in the order in which they ran.
    """
    steps = by_step(groups)
    found = {number: of_step(trace.step(number), known.given) for number in steps}
    cached: dict[int, int] = {}
    for number, one in found.items():
        if one is not None and one.note and not known.given.kv_lens:
            uses = sequence(deployment, Batch.of(one.q_lens, one.kv_lens))
            if (length := cached_tokens(one, uses, steps[number], where)) is not None:
                cached[number] = length
    requests = {number: one.q_lens for number, one in found.items() if one is not None}
    taken = over_steps(cached, requests)
    stated: dict[int, tuple[Lengths, ...]] = {number: (one,) if one else () for number, one in found.items()}
    if found.get(-1, True) is None and not trace.steps:
        stated[-1] = _recorded([read_off[id(one)] for one in groups], trace.source)
    tokens = taken.values()
    return stated | {n: (with_cached(one, taken[n], tokens),) for n, one in found.items() if one and n in taken}


def _recorded(shapes: Iterable[Shaped | None], source: str) -> tuple[Lengths, ...]:
    """Lengths that the operators of an eager trace were given, one for each call of attention, those of like requests
    together; MissingField where no operator names any.
    """
    calls = [one.call for one in shapes if one is not None and isinstance(one.call, Attention)]
    if not calls:
        raise MissingField(f"{source} does not name its steps: pass --q-lens and --kv-lens", field="q_lens")
    runs = (next(run) for _, run in groupby(calls, key=lambda call: call.q_lens))
    return tuple(Lengths(first.q_lens, first.kv_lens, "") for first in runs)


def _from_model(
    lengths: Sequence[Lengths], members: Sequence[Group], known: Workload, read_off: ReadOff
) -> tuple[list[Shaped | None], list[int | None]]:
    """Calls and layers of a step's groups; of several steps' where they run the requests of `lengths` in turn."""
    deployment = known.deployment
    if not lengths or deployment is None:
        return [None] * len(members), [None] * len(members)
    roles = []
    for member in members:
        shape = read_off[id(member)]
        # A product whose operator recorded sizes, but none that we can read, is none of the model's.
        unread = shape is None and member.family == Gemm.kernel and any(op.dims for op in member.head.ops)
        roles.append(f"{member.role}:unread" if unread else sized(member.role, shape.call if shape else None))
    engine, placed = find_engine(known.engine), list[tuple[Use, int | None]]()
    counts = _attention_calls(members, lengths, read_off)
    # A decode step inside a CUDA graph is padded to a captured size; kernels of a graph have no operators.
    in_graph = any(member.kind.role == "attention" and not member.head.ops for member in members)
    for one, ran in zip(lengths, counts, strict=True):
        batch = Batch.of(one.q_lens, one.kv_lens)
        if batch.is_decode and in_graph:
            batch = replace(batch, padded=engine.graphs.padded(batch.requests))
        step = parts(deployment, batch)
        each = sum(_by_request(use.call.kernel) for use, _ in step)
        placed += [*step] * max(1, round(ran / max(1, each)))
    uses = tuple(use for use, _ in placed)
    partners = match(tuple(roles), tuple(role_of(use) for use in uses))
    layers = [None if at is None else placed[at][1] for at in partners]
    found = align(members, uses, partners)
    if note := lengths[0].note:  # only attention depends on each request's lengths; the step's name gives their sum
        found = [replace(s, read=False, note=note) if s and _by_request(s.call.kernel) else s for s in found]
    return found, layers


def _attention_calls(members: Sequence[Group], lengths: Sequence[Lengths], read_off: ReadOff) -> list[int]:
    """How many kernels that depend on requests' lengths ran for each of these."""
    if len(lengths) == 1:
        return [sum(_by_request(one.family) for one in members)]
    calls = [shape.call for one in members if (shape := read_off[id(one)]) and isinstance(shape.call, Attention)]
    return [len(list(run)) for _, run in groupby(calls, key=lambda call: call.q_lens)]


def _by_request(family: str | None) -> bool:
    """Whether a family's time depends on the length of each request."""
    return family is not None and bool(family_of(family).ragged)
