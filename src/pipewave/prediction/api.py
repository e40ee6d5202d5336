"""From kernel calls to predictions: cases of one context are answered together, a case alone in plain floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.families import Call
from pipewave.calls.fields import schema
from pipewave.errors import MissingExtra
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.kernels.base import Family
from pipewave.physics.demand import PIPES, Array
from pipewave.prediction import requests, tables
from pipewave.prediction.arrays import TableBatch
from pipewave.prediction.batch import US, Answers
from pipewave.prediction.columns import columns, group_key
from pipewave.prediction.order import answer, answer_scalar
from pipewave.prediction.resolve import Source
from pipewave.prediction.tables import Table
from pipewave.residual.card import BASES
from pipewave.software.known import furthest

LATENCIES = ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us")


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer.

    Attributes:
        latency_us: expected time, µs.
        low_us: lower end of the 90 % interval, µs.
        high_us: upper end of the 90 % interval, µs.
        floor_us: time that no kernel can beat, µs: the busiest pipe at its highest rate.
        ceiling_us: time that a well-made kernel reaches at this shape, µs.
        bound: the pipe that sets the floor, such as `tensor` or `dram`.
        basis: what was measured: `measured_gpu`, `same_architecture` or `new_architecture`.
        impl: implementation that was assumed or asked for.
        stack: software that was assumed or asked for.
        notes: what was substituted, in sentences.
        software: whether rows of this stack and implementation on this GPU were trained on (`measured`), or which stand
            in for them: `other_gpu`, `nearest_version`, `other_framework`.
    """

    latency_us: float
    low_us: float
    high_us: float
    floor_us: float
    ceiling_us: float
    bound: str
    basis: str
    impl: str
    stack: str
    notes: tuple[str, ...] = ()
    software: str = "measured"

    def to_dict(self) -> dict[str, Any]:
        """The answer of the contract, less its id."""
        return asdict(self) | {"notes": list(self.notes)}

    def __add__(self, other: Prediction) -> Prediction:
        """One call after the other: times add up, ends of the interval too, as if both erred alike."""
        if not isinstance(other, Prediction):
            return NotImplemented
        times: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in LATENCIES}
        longer = self if self.latency_us >= other.latency_us else other
        least = max(self.basis, other.basis, key=BASES.index)
        software = furthest(self.software, other.software)
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        same: dict[str, Any] = {name: _shared(getattr(self, name), getattr(other, name)) for name in ("impl", "stack")}
        return replace(longer, **times, **same, basis=least, notes=notes, software=software)

    def __radd__(self, other: int) -> Prediction:
        """So that `sum(predictions)` works."""
        return self if other == 0 else NotImplemented


def _shared(one: str, other: str) -> str:
    return one if one == other else " + ".join(dict.fromkeys((*one.split(" + "), *other.split(" + "))))


@dataclass(frozen=True, slots=True)
class Predictions(Sequence[Prediction]):
    """Many answers as arrays, [call] each, in the order of the calls; a sequence of `Prediction`.

    Attributes:
        latency_us: expected times, µs.
        low_us: lower ends of the 90 % intervals, µs.
        high_us: upper ends of the 90 % intervals, µs.
        floor_us: times that no kernel can beat, µs.
        ceiling_us: times that well-made kernels reach, µs.
        bound: pipe that sets each floor, index into `PIPES`.
        group: what each answer rests on, index into `sources`.
        sources: basis, implementation, stack and notes of each group.
        joules: energy above what the idle board draws, J.
        carried: columns of a DataFrame that are no fields.
        index: of a DataFrame.
    """

    latency_us: Array
    low_us: Array
    high_us: Array
    floor_us: Array
    ceiling_us: Array
    bound: NDArray[np.intp]  # index into PIPES
    group: NDArray[np.intp]  # index into `sources`
    sources: tuple[Source, ...]
    joules: Array  # of energy above what the idle board draws
    carried: Mapping[str, Any] = field(default_factory=dict)  # columns of a DataFrame that are no fields
    index: Any = None  # of a DataFrame

    def __len__(self) -> int:
        return len(self.latency_us)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prediction]: ...
    def __getitem__(self, index: int | slice) -> Prediction | Sequence[Prediction]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        source = self.sources[self.group[index]]
        return Prediction(
            float(self.latency_us[index]),
            float(self.low_us[index]),
            float(self.high_us[index]),
            float(self.floor_us[index]),
            float(self.ceiling_us[index]),
            PIPES[self.bound[index]],
            source.basis,
            source.impl,
            source.stack,
            source.notes,
            source.software,
        )

    def __iter__(self) -> Iterator[Prediction]:
        return (self[i] for i in range(len(self)))

    def to_dict(self) -> dict[str, list[Any]]:
        """Lists by name, with the fields of the contract."""
        told = ("basis", "impl", "stack", "notes", "software")
        sources = [self.sources[group] for group in self.group.tolist()]
        return (
            {name: getattr(self, name).tolist() for name in LATENCIES}
            | {"bound": [PIPES[pipe] for pipe in self.bound.tolist()]}
            | {name: [getattr(source, name) for source in sources] for name in told}
        )

    def to_pandas(self) -> Any:
        """A DataFrame, one row a call, with the index and the further columns of the one it was asked with.

        Raises MissingExtra where pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtra("to_pandas needs pandas: pip install pandas") from error
        answers = self.to_dict()
        kept = {f"{name}_given" if name in answers else name: column for name, column in self.carried.items()}
        return pd.DataFrame({name: np.asarray(column) for name, column in kept.items()} | answers, index=self.index)


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
        return _one_call(as_case(calls, stack, impl), at.gpu, at.protocol)
    found = [(part.rows, _part(part, stack, impl)) for part in requests.parts(calls, gpu, protocol)]
    answered = found[0][1] if len(found) == 1 else joined(found)
    kept = requests.carried(calls)
    return replace(answered, carried=kept, index=getattr(calls, "index", None)) if kept or _indexed(calls) else answered


def _indexed(calls: Any) -> bool:
    return tables.is_table(calls) and not isinstance(calls, Mapping)


def _part(part: requests.Part, stack: str | None, impl: str | None) -> Predictions:
    """Rows asked for in one place."""
    asked, at = part.calls, part.where
    if not isinstance(asked, Sequence) and (rows := tables.batch(asked)) is not None:
        return _uniform(rows, at.gpu, at.protocol, stack, impl)
    many = asked if isinstance(asked, Sequence) else tables.calls(asked)
    return predict_cases([as_case(call, stack, impl) for call in many], at.gpu, at.protocol)


def joined(parts: Sequence[tuple[Sequence[int] | slice, Predictions]]) -> Predictions:
    """Parts of a batch as one, each row at its number."""
    size = sum(len(found) for _, found in parts)
    columns, bound, group = np.empty((6, size)), np.empty(size, np.intp), np.empty(size, np.intp)
    sources: list[Source] = []
    for rows, found in parts:
        columns[:, rows] = (*(getattr(found, name) for name in LATENCIES), found.joules)
        bound[rows] = found.bound
        group[rows] = found.group + len(sources)
        sources += found.sources
    latency, low, high, floor, ceiling, joules = columns
    return Predictions(latency, low, high, floor, ceiling, bound, group, tuple(sources), joules)


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
    card, case = find(gpu), as_case(call, None, None)
    batch = answer_one(case, card, requests.check_protocol(protocol))
    pipes = batch.analysis.demand.seconds(card, case["dtype"])[:, 0]
    prediction = _one(batch)
    busy = {pipe: float(s) * US / prediction.latency_us for pipe, s in zip(PIPES, pipes, strict=True)}
    return Explanation(call, card, prediction, busy)


def _uniform(rows: TableBatch, gpu: GPU, protocol: str, stack: str | None, impl: str | None) -> Predictions:
    case = {**rows.case, "stack": rows.case.get("stack") or stack, "impl": rows.case.get("impl") or impl}
    key = group_key(rows.family, case)
    seconds, bound, joules = np.empty((5, len(rows))), np.empty(len(rows), np.intp), np.empty(len(rows))
    for part, cols in rows.chunks():
        found = answer(rows.family, cols, key, gpu, protocol)
        seconds[:, part], bound[part], joules[part] = found.seconds, found.bound, found.joules
    latency, low, high, floor, ceiling = seconds * US
    group = np.zeros(len(rows), np.intp)
    return Predictions(latency, low, high, floor, ceiling, bound, group, (found.source,), joules)


def _one_call(case: Mapping[str, Any], gpu: GPU, protocol: str) -> Prediction:
    family = family_of(case["kernel"])
    if family.check_on:
        family.check_on(case, gpu)
    key = group_key(family, case)
    found = answer_scalar(family, case, key, gpu, protocol)
    if found is None:
        return _one(answer(family, columns(family, [case]), key, gpu, protocol))
    latency, low, high, floor, ceiling = found.seconds
    source = found.source
    return Prediction(
        latency * US, low * US, high * US, floor * US, ceiling * US, found.bound,
        source.basis, source.impl, source.stack, source.notes, source.software,
    )  # fmt: skip


def _one(batch: Answers) -> Prediction:
    """The only answer of a batch of length one."""
    source = batch.source
    latency, low, high, floor, ceiling = (batch.seconds[:, 0] * US).tolist()
    bound = PIPES[batch.bound[0]]
    return Prediction(
        latency, low, high, floor, ceiling, bound,
        source.basis, source.impl, source.stack, source.notes, source.software,
    )  # fmt: skip


def answer_one(case: Mapping[str, Any], gpu: GPU, protocol: str) -> Answers:
    """The batch of length one."""
    family = family_of(case["kernel"])
    if family.check_on:
        family.check_on(case, gpu)
    return answer(family, columns(family, [case]), group_key(family, case), gpu, protocol)


def as_case(call: Call, stack: str | None, impl: str | None) -> dict[str, Any]:
    """The fields of a call, as `predict_cases` takes them; `stack` and `impl` where it names none."""
    known = schema(type(call))
    case = dict(zip(known.rules, known.values(call), strict=True), kernel=call.kernel)
    case["stack"] = case["stack"] or stack
    case["impl"] = case["impl"] or impl
    return case


def predict_cases(cases: Sequence[Mapping[str, Any]], gpu: GPU, protocol: str) -> Predictions:
    """Predictions for valid cases (dicts with `kernel` and its fields) on one GPU."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, case in enumerate(cases):
        family = family_of(case["kernel"])
        if family.check_on:
            family.check_on(case, gpu)
        groups.setdefault((family.name, *group_key(family, case)), []).append(i)
    seconds = np.empty((5, len(cases)))
    bound, group, joules = np.empty(len(cases), np.intp), np.empty(len(cases), np.intp), np.empty(len(cases))
    sources = []
    for number, (key, members) in enumerate(groups.items()):
        found = _answered(family_of(key[0]), [cases[i] for i in members], key[1:], gpu, protocol)
        seconds[:, members], bound[members], source, joules[members] = found
        group[members] = number
        sources.append(source)
    latency, low, high, floor, ceiling = seconds * US
    return Predictions(latency, low, high, floor, ceiling, bound, group, tuple(sources), joules)


def _answered(
    family: Family, cases: Sequence[Mapping[str, Any]], key: tuple[Any, ...], gpu: GPU, protocol: str
) -> tuple[Array, Any, Source, Any]:
    """Seconds [5, case], bounds, source and joules of cases that share a group key."""
    scalar = answer_scalar(family, cases[0], key, gpu, protocol) if len(cases) == 1 else None
    if scalar is not None:
        return np.array(scalar.seconds)[:, None], PIPES.index(scalar.bound), scalar.source, scalar.joules
    found = answer(family, columns(family, cases), key, gpu, protocol)
    return found.seconds, found.bound, found.source, found.joules
