"""What `predict` answers: one prediction, or many as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import NotFinite, extra
from pipewave.nets.weights_metadata import BASES, furthest
from pipewave.physics.demand import PIPES, Array
from pipewave.physics.power import POWER_BASES, START_S, Draw, Spent
from pipewave.prediction.kernel_latency import BOUND, NUMBERS, US, Answers
from pipewave.prediction.resolve import Source

SHOWN = 8  # answers of many that are printed
LONGEST_S = 1e9  # thirty years: no kernel call
LATENCIES = ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us")
SPENT = Spent._fields


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
        power_w: mean board power of a GPU that runs the call back to back until it is steady, W, memory included.
        power_low_w: lower end of its 90 % interval, W.
        power_high_w: upper end, W.
        energy_j: what one of these calls takes, J.
        power_basis: what stands behind the watts: rows of this GPU (`measured_gpu`), of its architecture, or of
            others (`extrapolated`).
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
    notes: tuple[str, ...]
    software: str
    power_w: float
    power_low_w: float
    power_high_w: float
    energy_j: float
    power_basis: str

    def to_dict(self) -> dict[str, Any]:
        """The answer of the contract, less its id.

        Returns:
            Values by field name; times in µs.
        """
        return asdict(self) | {"notes": list(self.notes)}

    def __str__(self) -> str:
        return (
            f"{self.latency_us:.4g} µs ({self.low_us:.4g} to {self.high_us:.4g}), bound by {self.bound}, floor "
            f"{self.floor_us:.4g}, ceiling {self.ceiling_us:.4g}; {self.basis}, {self.stack} {self.impl}".rstrip()
        )

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
        same |= _spent_by_both(self, other)
        return replace(longer, **times, **same, basis=least, notes=notes, software=software)

    @classmethod
    def of(cls, times_us: Sequence[float], bound: int, source: Source, draw: Draw, work_j: float) -> Prediction:
        """One answer from its times (those of LATENCIES), the index of its pipe, and what it rests on and draws."""
        latency, low, high, floor, ceiling = times_us
        watts, watts_low, watts_high, joules = draw.spent_alone(work_j, 1e-6 * latency)
        found: Any = OPEN(
            latency, low, high, floor, ceiling, PIPES[bound],
            source.basis, source.impl, source.stack, source.notes, source.software,
            watts, watts_low, watts_high, joules, draw.board.basis,
        )  # fmt: skip
        found.__class__ = cls
        return cast("Prediction", found)

    def __radd__(self, other: int) -> Prediction:
        """So that `sum(predictions)` works."""
        return self if other == 0 else NotImplemented


# The same slots: a frozen dataclass sets its fields one by one through `object`, which takes a µs for all of them.
OPEN: Any = make_dataclass("OPEN", [each.name for each in fields(Prediction)], slots=True)


def _spent_by_both(one: Prediction, other: Prediction) -> dict[str, Any]:
    """Joules of two calls, and watts of the time that each takes of the board."""
    joules = one.energy_j + other.energy_j
    seconds = one.energy_j / one.power_w + other.energy_j / other.power_w

    def mean(name: str) -> float:
        ratios = (getattr(each, name) / each.power_w * each.energy_j for each in (one, other))
        return float(sum(ratios) / seconds)

    basis = max(one.power_basis, other.power_basis, key=POWER_BASES.index)
    return {name: mean(name) for name in SPENT[:-1]} | {"energy_j": joules, "power_basis": basis}


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
        work_j: of FLOPs and bytes, as watts are counted, J.
        draws: what each group draws on its board.
        carried: columns of a DataFrame that are no fields.
        index: of a DataFrame.
    """

    latency_us: Array
    low_us: Array
    high_us: Array
    floor_us: Array
    ceiling_us: Array
    bound: NDArray[np.intp]
    group: NDArray[np.intp]
    sources: tuple[Source, ...]
    work_j: Array
    draws: tuple[Draw, ...]
    carried: Mapping[str, Any] = field(default_factory=dict)
    index: Any = None

    def __len__(self) -> int:
        return len(self.latency_us)

    def __repr__(self) -> str:
        """The first answers, a line each."""
        left = [f"... {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        lines = [*map(str, self[:SHOWN]), *left]
        return "\n    ".join([f"Predictions of {len(self):,} call{'s'[: len(self) != 1]}:", *lines])

    @property
    def spent(self) -> Spent:
        """Watts, the ends of their interval and joules of each call run back to back, [call] each."""
        columns = np.empty((len(SPENT), len(self)))
        for number, draw in enumerate(self.draws):
            rows = self.group == number
            columns[:, rows] = draw.spent(self.work_j[rows], 1e-6 * self.latency_us[rows])
        return Spent(*columns)

    @property
    def above_idle_j(self) -> Array:
        """Joules above what the idle board draws, of each call once inside a step, [call]."""
        active_w, in_step = np.array([(draw.active_w, draw.in_step) for draw in self.draws])[self.group].T
        in_step = np.where(self.bound == PIPES.index("dram"), in_step, 1.0)  # of calls that wait for their weights
        return np.asarray(in_step * (active_w * np.maximum(1e-6 * self.latency_us - START_S, 0.0) + self.work_j))

    def scaled(self, factor: Array) -> Predictions:
        """The same with times and their intervals multiplied; floors and ceilings stay.

        Args:
            factor: of each call, [call].

        Returns:
            New predictions in the same order.
        """
        latency, low, high = (factor * each for each in (self.latency_us, self.low_us, self.high_us))
        return replace(self, latency_us=latency, low_us=low, high_us=high)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prediction]: ...
    def __getitem__(self, index: int | slice) -> Prediction | Sequence[Prediction]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        group, times_us = self.group[index], [float(getattr(self, name)[index]) for name in LATENCIES]
        work_j = float(self.work_j[index])
        return Prediction.of(times_us, self.bound[index], self.sources[group], self.draws[group], work_j)

    def __iter__(self) -> Iterator[Prediction]:
        return (self[i] for i in range(len(self)))

    def to_dict(self) -> dict[str, list[Any]]:
        """Lists by name, with the fields of the contract.

        Returns:
            A list, [call], for every field; times in µs.
        """
        sourced = ("basis", "impl", "stack", "notes", "software")
        sources = [self.sources[group] for group in self.group.tolist()]
        return (
            {name: getattr(self, name).tolist() for name in LATENCIES}
            | {"bound": [PIPES[pipe] for pipe in self.bound.tolist()]}
            | {name: [getattr(source, name) for source in sources] for name in sourced}
            | {name: column.tolist() for name, column in zip(SPENT, self.spent, strict=True)}
            | {"power_basis": [self.draws[group].board.basis for group in self.group.tolist()]}
        )

    def to_pandas(self) -> Any:
        """A DataFrame with the index and the further columns of the one it was asked with.

        Returns:
            One row a call, a column for every field of `to_dict`; times in µs.

        Raises:
            MissingExtra: pandas is not installed.
        """
        pd = extra("pandas", "to_pandas", "pandas")
        answers = self.to_dict()
        kept = {f"{name}_given" if name in answers else name: column for name, column in self.carried.items()}
        return pd.DataFrame({name: np.asarray(column) for name, column in kept.items()} | answers, index=self.index)


def usable(seconds: Array) -> NDArray[np.bool_]:
    """Of answers [row, call] in seconds, which are times that a kernel call can take: above 0, below LONGEST_S."""
    return np.asarray(((seconds > 0.0) & (seconds < LONGEST_S)).all(axis=0))


def no_latency(where: str = "") -> NotFinite:
    """The error of a call of which no usable number comes out."""
    return NotFinite(f"{where}no finite latency comes out for this call", field=None)


def joined(parts: Iterable[tuple[Sequence[int] | NDArray[np.intp] | slice, Answers]], calls: int) -> Predictions:
    """Answers of parts of so many calls as one. NotFinite for the first call of which no usable number comes out."""
    numbers, group = np.empty((NUMBERS, calls)), np.empty(calls, np.intp)
    found = list(parts)
    for place, (rows, answers) in enumerate(found):
        numbers[:, rows], group[rows] = answers.numbers, place
    seconds, (bound, work_j) = numbers[:BOUND], numbers[BOUND:]
    fine = usable(seconds)
    if not fine.all():
        raise no_latency(f"calls[{int(np.argmin(fine))}]: ")
    sources, draws = (tuple(getattr(answers, name) for _, answers in found) for name in ("source", "draw"))
    latency, low, high, floor, ceiling = US * seconds
    return Predictions(latency, low, high, floor, ceiling, bound.astype(np.intp), group, sources, work_j, draws)
