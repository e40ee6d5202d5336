"""From kernel calls to predictions: group, analyse, correct, clamp. One call is the batch of length one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pipewave import serving, stacks, tables
from pipewave.calibrate import corrections
from pipewave.calls import Call
from pipewave.columns import columns, group_key, options_of
from pipewave.demand import PIPES, Array, busiest, floor_s
from pipewave.errors import BadInput, MissingExtra, did_you_mean
from pipewave.estimator import UNTRAINED_SCALE, Card, Interval, Residual, Trained, half_width, trained
from pipewave.fields import rules
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.residency import COLD, SERVING
from pipewave.tables import Table

US = 1e6
LOW, FLOOR, CEILING = 1, 3, 4  # rows of an answer's seconds
DRAM = PIPES.index("dram")
DRAM_REACHED, FIRST_BYTES_S = 1.1, 1.6e-6  # the envelope of our 26,000 cold rows: times of the DRAM pipe, and before it
WIDEST = 2.3  # log of the widest factor an interval states, ten: beyond it nothing is known but the floor
REPLAYED = "no cold rows of this GPU: answered as graph replays, not below the floor of serving"
UNTRAINED = {"measured_gpu": Interval(1.0), "same_architecture": Interval(1.5), "new_architecture": Interval(2.0)}
REVEALING = ("config", "tile", "ctas")  # options that say how a call was implemented, not what it computes


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer: latencies in µs, a 90 % interval, the floor no kernel beats, the ceiling a good kernel reaches."""

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


@dataclass(frozen=True, slots=True)
class Predictions(Sequence[Prediction]):
    """Many answers as arrays, in the order of the calls."""

    latency_us: Array
    low_us: Array
    high_us: Array
    floor_us: Array
    ceiling_us: Array
    bound: NDArray[np.intp]  # index into PIPES
    group: NDArray[np.intp]  # index into `sources`
    sources: tuple[Source, ...]

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
        )

    def __iter__(self) -> Iterator[Prediction]:
        return (self[i] for i in range(len(self)))

    def to_dict(self) -> dict[str, list[Any]]:
        """Lists by name, with the fields of the contract."""
        names = ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us")
        sources = [self.sources[group] for group in self.group.tolist()]
        return (
            {name: getattr(self, name).tolist() for name in names}
            | {"bound": [PIPES[pipe] for pipe in self.bound.tolist()]}
            | {name: [getattr(source, name) for source in sources] for name in ("basis", "impl", "stack", "notes")}
        )

    def to_pandas(self) -> Any:
        """A DataFrame, one row a call. MissingExtra where pandas is not installed."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtra("to_pandas needs pandas: pip install pandas") from error
        return pd.DataFrame(self.to_dict())


@dataclass(frozen=True, slots=True)
class Source:
    """What a batch of answers rests on."""

    basis: str
    impl: str
    stack: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answers:
    """A batch with one context: [6, call] of latency, low, high, floor, ceiling (seconds) and the bound."""

    seconds: Array
    bound: NDArray[np.intp]
    source: Source
    analysis: Analysis
    ctx: Context


@overload
def predict(
    calls: Call, gpu: str | GPU, *, protocol: str = ..., stack: str | None = ..., impl: str | None = ...
) -> Prediction: ...
@overload
def predict(
    calls: Sequence[Call] | Table,
    gpu: str | GPU,
    *,
    protocol: str = ...,
    stack: str | None = ...,
    impl: str | None = ...,
) -> Predictions: ...
def predict(
    calls: Call | Sequence[Call] | Table,
    gpu: str | GPU,
    *,
    protocol: str = "cold",
    stack: str | None = None,
    impl: str | None = None,
) -> Prediction | Predictions:
    """Latency of one call or of many on a GPU, under a protocol of the contract.

    Many calls are a list of calls, a dict of arrays or a DataFrame whose columns are the contract's fields. `stack` and
    `impl` stand in where a call names none. Raises UnknownGPU, UnsupportedDtype or BadInput.
    """
    card = find(gpu)
    if isinstance(calls, Call):
        return _one(answer_one(as_case(calls, stack, impl), card, check_protocol(protocol)))
    many = calls if isinstance(calls, Sequence) else tables.calls(calls)
    return predict_cases([as_case(call, stack, impl) for call in many], card, check_protocol(protocol))


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
    batch = answer_one(case, card, check_protocol(protocol))
    pipes = batch.analysis.demand.seconds(card, case["dtype"])[:, 0]
    prediction = _one(batch)
    busy = {pipe: float(s) * US / prediction.latency_us for pipe, s in zip(PIPES, pipes, strict=True)}
    return Explanation(call, card, prediction, busy)


def check_protocol(protocol: str) -> str:
    """The protocol itself, or BadInput."""
    if protocol not in stacks.PROTOCOLS:
        hint = did_you_mean(str(protocol), stacks.PROTOCOLS)
        raise BadInput(f"protocol = {protocol!r}: must be one of {', '.join(stacks.PROTOCOLS)}{hint}", field="protocol")
    return protocol


def _one(batch: Answers) -> Prediction:
    """The only answer of a batch of length one."""
    source = batch.source
    latency, low, high, floor, ceiling = (batch.seconds[:, 0] * US).tolist()
    bound = PIPES[batch.bound[0]]
    return Prediction(latency, low, high, floor, ceiling, bound, source.basis, source.impl, source.stack, source.notes)


def answer_one(case: Mapping[str, Any], gpu: GPU, protocol: str) -> Answers:
    """The batch of length one."""
    family = family_of(case["kernel"])
    return answer(family, columns(family, [case]), group_key(family, case), gpu, protocol)


def as_case(call: Call, stack: str | None, impl: str | None) -> dict[str, Any]:
    """The fields of a call, as `predict_cases` takes them; `stack` and `impl` where it names none."""
    case = {name: getattr(call, name) for name in rules(type(call))} | {"kernel": call.kernel}
    case["stack"] = case["stack"] or stack
    case["impl"] = case["impl"] or impl
    return case


def predict_cases(cases: Sequence[Mapping[str, Any]], gpu: GPU, protocol: str) -> Predictions:
    """Predictions for valid cases (dicts with `kernel` and its fields) on one GPU."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, case in enumerate(cases):
        groups.setdefault((case["kernel"], *group_key(family_of(case["kernel"]), case)), []).append(i)
    seconds = np.empty((5, len(cases)))
    bound, group = np.empty(len(cases), np.intp), np.empty(len(cases), np.intp)
    sources = []
    for number, (key, members) in enumerate(groups.items()):
        family = family_of(key[0])
        answers = answer(family, columns(family, [cases[i] for i in members]), key[1:], gpu, protocol)
        seconds[:, members], bound[members], group[members] = answers.seconds, answers.bound, number
        sources.append(answers.source)
    latency, low, high, floor, ceiling = seconds * US
    return Predictions(latency, low, high, floor, ceiling, bound, group, tuple(sources))


def answer(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """Answer a batch that shares the group key (dtype, stack, impl, options...)."""
    found = _alone(family, cols, key, gpu, protocol)
    if protocol != SERVING or family.name not in serving.HEAVY:
        return found
    if found.source.basis == "measured_gpu":
        spared = serving.spare(found.seconds, found.analysis.demand, family.name, found.ctx, key[1])
        return replace(found, seconds=spared)
    # Of most GPUs only graph replays over rotating weights were measured, which come closer than other GPUs' cold rows.
    graph = _alone(family, cols, (key[0], key[1] or stacks.DEFAULT[SERVING], *key[2:]), gpu, "graph")
    seconds = np.maximum(graph.seconds, found.seconds[serving.FLOOR])
    seconds[serving.FLOOR] = found.seconds[serving.FLOOR]
    source = replace(graph.source, notes=(*graph.source.notes, REPLAYED))
    return Answers(seconds, found.bound, source, found.analysis, found.ctx)


def _alone(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """Answers from the net and its correction: under `serving`, what a cold call takes with its activations in L2."""
    dtype, stack, impl = key[:3]
    options = options_of(family, key)
    ctx, source = _resolve(family, gpu, dtype, protocol, stack, impl, options)
    analysis = family.analyse(cols, ctx)
    seconds, bound = _combine(analysis, ctx, source)
    seconds[CEILING] = _ceiling(family, cols, analysis, ctx, seconds)
    correction = corrections.of(ctx, analysis.net)
    if correction is not None:
        seconds = correction.apply(seconds, analysis.features, codes_of(ctx))
        source = replace(source, notes=(*source.notes, f"calibrated with {correction.rows} rows"))
    return Answers(seconds, bound, source, analysis, ctx)


@lru_cache(maxsize=4096)
def _resolve(
    family: Family, gpu: GPU, dtype: str, protocol: str, stack: str | None, impl: str | None, options: tuple[Any, ...]
) -> tuple[Context, Source]:
    """Decide which software a batch is answered from, and say what was substituted."""
    gpu.peak_flops(dtype)  # raises UnsupportedDtype
    net = _net_name(family, dict(options))
    card = _card(net)
    known: tuple[str, ...] = ()
    if card is None:
        used, note = stacks.resolve(stack, protocol, known, None)
        basis = "new_architecture"
    else:
        seen = measured_protocol(protocol)
        known, usual = card.known_stacks(seen, dtype), card.default_stack.get(seen)
        used, note = stacks.resolve(stack, protocol, known, usual if usual in known else None)
        basis = card.basis(gpu.name, gpu.compute_capability, dtype, seen)
        note = "; ".join(filter(None, (note, _unknown_impl(net, impl))))
        impl = impl or card.impl(stacks.measured_as(used, known), gpu.compute_capability, dtype)
    source = Source(basis, impl or "", used, (note,) if note else ())
    return Context(gpu, dtype, protocol, stacks.measured_as(used, known), impl or "", options), source


def _unknown_impl(net: str, impl: str | None) -> str:
    """What to say of an implementation without measured rows; nothing where the net does not tell them apart."""
    learned = trained(net)
    seen = learned.net.categories.get("impl", {}) if learned else {}
    if not impl or not seen or impl in seen or impl in learned.card.default_impl.values():  # type: ignore[union-attr]
        return ""
    return f"impl {impl!r}: no row was measured with it"


def _net_name(family: Family, options: Mapping[str, Any]) -> str:
    return next((net for net in family.nets if net in options.values()), family.nets[0]) if family.nets else ""


def _card(net: str) -> Card | None:
    found = trained(net)
    return found.card if found else None


def _combine(analysis: Analysis, ctx: Context, source: Source) -> tuple[Array, NDArray[np.intp]]:
    """Base estimate, learned residual, interval; nothing below the floor. The ceiling's row still holds the low end."""
    pipes = analysis.demand.seconds(ctx.gpu, ctx.dtype)
    floor = floor_s(pipes)
    residual, intervals = _residual(trained(analysis.net), analysis, ctx)
    latency = np.maximum(analysis.base_s * np.exp(residual.mean), _reached(pipes, floor, ctx))
    half = half_width(intervals, source.basis, residual.scale, measured_protocol(ctx.protocol))
    spread = np.exp(np.minimum(half, WIDEST))
    low = latency / spread
    return np.maximum(np.array((latency, low, latency * spread, floor, low)), floor), busiest(pipes)


def _reached(pipes: Array, floor: Array, ctx: Context) -> Array:
    """What no measured row went below: the floor, and for cold calls DRAM as fast as it ever delivered."""
    if ctx.protocol != COLD:
        return floor
    return np.asarray(np.maximum(floor, DRAM_REACHED * pipes[DRAM] + FIRST_BYTES_S))


def _residual(learned: Trained | None, analysis: Analysis, ctx: Context) -> tuple[Residual, Mapping[str, Interval]]:
    if learned is None:
        zeros = np.zeros(len(analysis.base_s))
        return Residual(zeros, zeros + UNTRAINED_SCALE), UNTRAINED
    return learned.net(analysis.features, codes_of(ctx)), learned.card.intervals


def _ceiling(family: Family, cols: Columns, analysis: Analysis, ctx: Context, seconds: Array) -> Array:
    """Seconds that a well-made kernel takes; the low end of the interval where no ceiling was trained."""
    learned = trained(analysis.net)
    if learned is None or learned.ceiling is None:
        return np.asarray(seconds[LOW])
    plain = plain_context(ctx, analysis.net)
    seen = analysis if plain == ctx else family.analyse(cols, plain)
    ceiling = seen.base_s * np.exp(learned.ceiling(seen.features, codes_of(plain)))
    return np.asarray(np.maximum(ceiling, seconds[FLOOR]))


@lru_cache(maxsize=4096)
def plain_context(ctx: Context, net: str) -> Context:
    """The context that net's ceiling is answered in: default software, nothing said about how a call is implemented."""
    learned = trained(net)
    if learned is None or learned.ceiling is None or learned.ceiling.plain is None:
        return ctx
    known = learned.ceiling.plain
    stack, impl = known.plain(measured_protocol(ctx.protocol), ctx.gpu.compute_capability, ctx.dtype)
    options = tuple((name, None if name in REVEALING else value) for name, value in ctx.options)
    return replace(ctx, stack=stack, impl=impl, options=options)


def measured_protocol(protocol: str) -> str:
    """The protocol whose rows answer for it: calls inside a step are predicted as cold ones."""
    return "cold" if protocol == SERVING else protocol


def codes_of(ctx: Context) -> dict[str, str]:
    """The categories a net may look at."""
    kv = ctx.option("kv_dtype") or ctx.dtype
    protocol = measured_protocol(ctx.protocol)
    codes = {"stack": ctx.stack, "impl": ctx.impl, "dtype": ctx.dtype, "kv_dtype": kv, "protocol": protocol}
    return codes | {"gpu": ctx.gpu.name, "family": ctx.gpu.architecture}
