"""From kernel calls to predictions: cases of one context are answered together, a case alone in plain floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, overload

import numpy as np

from pipewave.calls.families import Call
from pipewave.calls.fields import FieldsOf, schema
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.kernels.base import Columns, Family
from pipewave.physics.demand import PIPES
from pipewave.prediction import requests, tables
from pipewave.prediction.answers import (
    LONGEST_S,
    Prediction,
    Predictions,
    joined,
    no_latency,
    refuse_unusable,
    usable,
)
from pipewave.prediction.columns import columns, columns_of, group_key, group_key_of
from pipewave.prediction.few_calls import answer_few, is_few
from pipewave.prediction.kernel_latency import LATENCY, US, Answers, answer
from pipewave.prediction.tables import Table, TableBatch
from pipewave.prediction.threads import blas_alone, each, parts_of

CHUNK_CALLS = 2_048  # lists of a chunk stay in the caches


@overload
def predict(
    calls: Call,
    gpu: str | GPU | None = ...,
    *,
    protocol: str | None = ...,
    stack: str | None = ...,
    impl: str | None = ...,
) -> Prediction: ...
@overload
def predict(
    calls: Sequence[Call | Mapping[str, Any]] | Table,
    gpu: str | GPU | None = ...,
    *,
    protocol: str | None = ...,
    stack: str | None = ...,
    impl: str | None = ...,
) -> Predictions: ...
def predict(
    calls: Call | Sequence[Call | Mapping[str, Any]] | Table,
    gpu: str | GPU | None = None,
    *,
    protocol: str | None = None,
    stack: str | None = None,
    impl: str | None = None,
) -> Prediction | Predictions:
    """Latency of one call or of many on a GPU.

    Args:
        calls: a call; or many, as a list of calls or of dicts, a dict of columns, or a DataFrame. Names are the
            contract's fields; sizes are in elements, `bytes` in bytes. A row's own `gpu` or `protocol` comes first.
        gpu: name, spec file or `GPU`. May be None where every row names one.
        protocol: `cold` (default), `graph`, `profiler_warm` or `serving`.
        stack: software for calls that name none, such as `vllm-0.22.1`.
        impl: implementation for calls that name none, such as `cutlass`.

    Returns:
        A `Prediction` of one call, `Predictions` of many in their order; times in µs.

    Raises:
        UnknownGPU: no GPU of that name.
        UnsupportedDtype: the GPU cannot run the type.
        MissingField, UnknownField, BadInput: a call or an argument that cannot be.

    Source: base estimate from physics times a learned correction (docs/how-it-works.md, "The learned correction").
    """
    requests.check_name("stack", stack)
    requests.check_name("impl", impl)
    if isinstance(calls, Call):
        at = requests.where(gpu, protocol)
        return _one_call(calls, at.gpu, at.protocol, stack, impl)
    found = [(part.rows, _part(part, stack, impl)) for part in requests.parts(calls, gpu, protocol)]
    answered = found[0][1] if len(found) == 1 else joined(found)
    kept = requests.carried(calls)
    return replace(answered, carried=kept, index=getattr(calls, "index", None)) if kept or _indexed(calls) else answered


def _indexed(calls: Any) -> bool:
    return tables.is_table(calls) and not isinstance(calls, Mapping)


def _part(part: requests.Part, stack: str | None, impl: str | None) -> Predictions:
    """Rows asked for in one place."""
    rows, at = part.calls, part.where
    if not isinstance(rows, Sequence) and (batch := tables.batch(rows)) is not None:
        return _uniform(batch, at.gpu, at.protocol, stack, impl)
    many = rows if isinstance(rows, Sequence) else tables.calls(rows)
    return predict_list(many, at.gpu, at.protocol, stack, impl)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A prediction with the GPU it is for and the share of its time each pipe is busy."""

    call: Call
    gpu: GPU
    prediction: Prediction
    busy: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """One flat row: the GPU, the prediction, and the busy share of each pipe."""
        return {"gpu": self.gpu.name} | asdict(self.prediction) | {f"busy_{p}": s for p, s in self.busy.items()}


def explain(call: Call, gpu: str | GPU, *, protocol: str = "cold") -> Explanation:
    """Predict one call and say how busy each pipe would be at its highest rate."""
    spec, case = find(gpu), as_case(call, None, None)
    batch = answer_one(case, spec, requests.check_protocol(protocol))
    pipes = batch.analysis.demand.seconds(spec, case["dtype"])[:, 0]
    prediction = _one(batch)
    busy = {pipe: float(s) * US / prediction.latency_us for pipe, s in zip(PIPES, pipes, strict=True)}
    return Explanation(call, spec, prediction, busy)


def _uniform(rows: TableBatch, gpu: GPU, protocol: str, stack: str | None, impl: str | None) -> Predictions:
    case = {**rows.case, "stack": rows.case.get("stack") or stack, "impl": rows.case.get("impl") or impl}
    key = group_key(rows.family, case)
    seconds, bound, energy = np.empty((5, len(rows))), np.empty(len(rows), np.intp), np.empty((2, len(rows)))

    def fill(chunk: tuple[slice, Columns]) -> Answers:
        part, cols = chunk
        found = answer(rows.family, cols, key, gpu, protocol)
        seconds[:, part], bound[part] = found.seconds, found.bound
        energy[0, part], energy[1, part] = found.joules, found.work_j
        return found

    with blas_alone(len(rows)):
        last = each(fill, rows.chunks())[-1]
    refuse_unusable(seconds)
    group = np.zeros(len(rows), np.intp)
    latency, low, high, floor, ceiling = seconds * US
    joules, work_j = energy
    draws = (last.draw,)
    return Predictions(latency, low, high, floor, ceiling, bound, group, (last.source,), joules, work_j, draws)


def _one_call(call: Call, gpu: GPU, protocol: str, stack: str | None, impl: str | None) -> Prediction:
    family = family_of(call.kernel)
    if family.check_on:
        family.check_on(FieldsOf(call), gpu)
    key = group_key_of(family, call, stack, impl)
    found = answer_few(family, (call,), key, gpu, protocol)
    if found is None:
        return _one(answer(family, columns_of(family, [call]), key, gpu, protocol))
    latency, low, high, floor, ceiling = found.seconds
    if not 0.0 < floor <= latency <= high < LONGEST_S:
        raise no_latency()
    source = found.source
    watts, watts_low, watts_high, joules = found.draw.spent_alone(found.work_j, latency)
    return Prediction(
        latency * US, low * US, high * US, floor * US, ceiling * US, PIPES[int(found.bound)],
        source.basis, source.impl, source.stack, source.notes, source.software,
        watts, watts_low, watts_high, joules, found.draw.board.basis,
    )  # fmt: skip


def _one(batch: Answers) -> Prediction:
    """The only answer of a batch of length one."""
    if not usable(batch.seconds)[0]:
        raise no_latency()
    source = batch.source
    latency, low, high, floor, ceiling = (batch.seconds[:, 0] * US).tolist()
    bound, spent = (
        PIPES[batch.bound[0]],
        batch.draw.spent_alone(float(batch.work_j[0]), float(batch.seconds[LATENCY, 0])),
    )
    watts, watts_low, watts_high, joules = spent
    return Prediction(
        latency, low, high, floor, ceiling, bound,
        source.basis, source.impl, source.stack, source.notes, source.software,
        watts, watts_low, watts_high, joules, batch.draw.board.basis,
    )  # fmt: skip


def answer_one(case: Mapping[str, Any], gpu: GPU, protocol: str) -> Answers:
    """The batch of length one."""
    family = family_of(case["kernel"])
    if family.check_on:
        family.check_on(case, gpu)
    return answer(family, columns(family, [case]), group_key(family, case), gpu, protocol)


def as_case(call: Call, stack: str | None, impl: str | None) -> dict[str, Any]:
    """The fields of a call, `stack` and `impl` where it names none."""
    known = schema(type(call))
    case = dict(zip(known.rules, known.values(call), strict=True), kernel=call.kernel)
    case["stack"] = case["stack"] or stack
    case["impl"] = case["impl"] or impl
    return case


def predict_list(
    calls: Sequence[Call],
    gpu: GPU,
    protocol: str,
    stack: str | None = None,
    impl: str | None = None,
    *,
    ceilings: bool = True,
) -> Predictions:
    """Predictions for a list of calls on one GPU; `stack` and `impl` where a call names none. `ceilings`: whether
    anybody looks at them.
    """
    groups = _grouped(calls, gpu, stack, impl)
    seconds = np.empty((5, len(calls)))
    bound, group, energy = np.empty(len(calls), np.intp), np.empty(len(calls), np.intp), np.empty((2, len(calls)))
    sources, draws = [], []
    with blas_alone(len(calls)):
        for number, ((name, *key), members) in enumerate(groups.items()):
            rows = slice(None) if len(groups) == 1 else np.array(members)
            some = calls if len(groups) == 1 else [calls[i] for i in members]
            found = _answered(family_of(name), some, tuple(key), gpu, protocol, ceilings=ceilings)
            seconds[:, rows], bound[rows], group[rows] = found.seconds, found.bound, number
            energy[0, rows], energy[1, rows] = found.joules, found.work_j
            sources.append(found.source)
            draws.append(found.draw)
    refuse_unusable(seconds)
    latency, low, high, floor, ceiling = seconds * US
    joules, work_j = energy
    return Predictions(
        latency, low, high, floor, ceiling, bound, group, tuple(sources), joules, work_j, tuple(draws)
    )  # fmt: skip


def _grouped(calls: Sequence[Call], gpu: GPU, stack: str | None, impl: str | None) -> dict[tuple[Any, ...], list[int]]:
    """Numbers of the calls by the name of their family and what else they share. BadInput for one that cannot run."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, call in enumerate(calls):
        family = family_of(call.kernel)
        if family.check_on:
            family.check_on(FieldsOf(call), gpu)
        groups.setdefault((family.name, *group_key_of(family, call, stack, impl)), []).append(i)
    return groups


def _answered(
    family: Family, calls: Sequence[Call], key: tuple[Any, ...], gpu: GPU, protocol: str, *, ceilings: bool
) -> Answers:
    """Answers of calls that share a group key; seconds [5, call]."""
    few = answer_few(family, calls, key, gpu, protocol, ceilings=ceilings) if is_few(family, calls) else None
    if few is not None:
        return few._replace(seconds=np.array(few.seconds).reshape(5, len(calls)))
    parts = [columns_of(family, calls[first:last]) for first, last in parts_of(len(calls), CHUNK_CALLS)]
    found = each(lambda part: answer(family, part, key, gpu, protocol, ceilings=ceilings), parts)
    joules, work_j = (
        np.concatenate([np.broadcast_to(getattr(one, name), len(one.bound)) for one in found])
        for name in ("joules", "work_j")
    )
    seconds = np.concatenate([one.seconds for one in found], axis=1)
    bound = np.concatenate([one.bound for one in found])
    return found[-1]._replace(seconds=seconds, bound=bound, joules=joules, work_j=work_j)
