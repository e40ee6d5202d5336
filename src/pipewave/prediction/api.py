"""From kernel calls to predictions: cases of one context are answered together, a case alone in plain floats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, overload

import numpy as np

from pipewave.calls.families import Call
from pipewave.calls.fields import FieldsOf
from pipewave.gpus import GPU
from pipewave.kernels import family_of
from pipewave.kernels.base import Columns, Family
from pipewave.physics.demand import PIPES
from pipewave.prediction import requests
from pipewave.prediction.answers import LONGEST_S, Prediction, Predictions, joined, no_latency
from pipewave.prediction.columns import calls_of, columns_of, group_key, group_key_of, uniform
from pipewave.prediction.few_calls import answer_few, is_few
from pipewave.prediction.kernel_latency import NUMBERS, US, Answers, answer
from pipewave.prediction.requests import Table
from pipewave.prediction.threads import blas_alone, each, parts_of

CHUNK_CALLS = 2_048  # lists of a chunk stay in the caches
Group = tuple[Family, tuple[Any, ...]]  # a family and a group key: calls that share them are predicted together


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
        return _one_call(calls, *requests.where(gpu, protocol), stack, impl)
    found, size = list[tuple[Any, Answers]](), 0
    for part in requests.parts(calls, gpu, protocol):
        answers, count = _part(part, stack, impl)
        among = part.rows  # numbers of these rows among all calls
        found += [(rows if isinstance(among, slice) else np.asarray(among)[rows], one) for rows, one in answers]
        size += count
    answered, kept = joined(found, size), requests.carried(calls)
    indexed = requests.is_table(calls) and not isinstance(calls, Mapping)
    return replace(answered, carried=kept, index=getattr(calls, "index", None)) if kept or indexed else answered


def _part(part: requests.Part, stack: str | None, impl: str | None) -> tuple[list[tuple[Any, Answers]], int]:
    """Answers of rows asked for in one place, by their numbers among them, and how many there are."""
    at, rows = part[:2], part.calls
    if isinstance(rows, Mapping) and (batch := uniform(rows)) is not None:
        case = {**batch.case, "stack": batch.case.get("stack") or stack, "impl": batch.case.get("impl") or impl}
        key = group_key(batch.family, case)
        with blas_alone(len(batch)):
            return [(slice(None), _in_parts(batch.family, batch.parts(), key, *at))], len(batch)
    many = calls_of(rows) if isinstance(rows, Mapping) else rows
    return _by_group(many, [group_on(call, at[0], stack, impl) for call in many], *at), len(many)


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
    spec, protocol = requests.where(gpu, protocol)
    batch = answer_one(call, spec, protocol)
    pipes = batch.analysis.demand.seconds(spec, call.dtype)[:, 0]
    prediction = joined([(slice(None), batch)], 1)[0]
    busy = {pipe: float(s) * US / prediction.latency_us for pipe, s in zip(PIPES, pipes, strict=True)}
    return Explanation(call, spec, prediction, busy)


def _one_call(call: Call, gpu: GPU, protocol: str, stack: str | None, impl: str | None) -> Prediction:
    family, key = group_on(call, gpu, stack, impl)
    found = answer_few(family, (call,), key, gpu, protocol)
    if found is None:
        return joined([(slice(None), answer_one(call, gpu, protocol, stack, impl))], 1)[0]
    latency, low, high, floor, ceiling, bound, work_j = found.numbers
    if not 0.0 < floor <= latency <= high < LONGEST_S:
        raise no_latency()
    times_us = latency * US, low * US, high * US, floor * US, ceiling * US
    return Prediction.of(times_us, int(bound), found.source, found.draw, work_j)


def answer_one(call: Call, gpu: GPU, protocol: str, stack: str | None = None, impl: str | None = None) -> Answers:
    """The batch of length one."""
    family, key = group_on(call, gpu, stack, impl)
    return answer(family, columns_of(family, [call]), key, gpu, protocol)


def group_on(call: Call, gpu: GPU, stack: str | None = None, impl: str | None = None) -> Group:
    """The group of a call; `stack` and `impl` where it names none. BadInput for a call that the GPU cannot run."""
    family = family_of(call.kernel)
    if family.check_on:
        family.check_on(FieldsOf(call), gpu)
    return family, group_key_of(family, call, stack, impl)


def predict_grouped(calls: Sequence[Call], groups: Sequence[Group], gpu: GPU, protocol: str) -> Predictions:
    """Predictions for a list of calls, each of a group, on one GPU; ceilings, which nobody looks at, mean nothing."""
    return joined(_by_group(calls, groups, gpu, protocol, ceilings=False), len(calls))


def _by_group(
    calls: Sequence[Call], groups: Sequence[Group], gpu: GPU, protocol: str, *, ceilings: bool = True
) -> list[tuple[Any, Answers]]:
    """Answers of the calls of each group, by their numbers."""
    members: dict[Group, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    found = list[tuple[Any, Answers]]()
    with blas_alone(len(calls)):
        for (family, key), those in members.items():
            rows = slice(None) if len(members) == 1 else np.array(those)
            some = calls if len(members) == 1 else [calls[i] for i in those]
            found.append((rows, _of_group(family, some, key, gpu, protocol, ceilings=ceilings)))
    return found


def _of_group(
    family: Family, calls: Sequence[Call], key: tuple[Any, ...], gpu: GPU, protocol: str, *, ceilings: bool
) -> Answers:
    """Answers of calls that share a group key; numbers [row, call]."""
    few = answer_few(family, calls, key, gpu, protocol, ceilings=ceilings) if is_few(family, calls) else None
    if few is not None:
        return few._replace(numbers=np.reshape(few.numbers, (NUMBERS, len(calls))))
    parts = [columns_of(family, calls[first:last]) for first, last in parts_of(len(calls), CHUNK_CALLS)]
    return _in_parts(family, parts, key, gpu, protocol, ceilings=ceilings)


def _in_parts(
    family: Family, parts: Iterable[Columns], key: tuple[Any, ...], gpu: GPU, protocol: str, *, ceilings: bool = True
) -> Answers:
    """Answers of parts of the calls of one context, on several threads, as one."""
    alone = partial(answer, family, key=key, gpu=gpu, protocol=protocol, ceilings=ceilings)
    found = each(lambda part: alone(part)._replace(analysis=None), parts)  # features of a part take four MB
    if len(found) == 1:
        return found[0]
    return found[-1]._replace(numbers=np.concatenate([one.numbers for one in found], axis=1))
