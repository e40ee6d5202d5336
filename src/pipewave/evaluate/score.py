"""Predictions beside measurements, cell by cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.calls.families import Call, from_dict
from pipewave.errors import PipewaveError
from pipewave.kernels import rows_of
from pipewave.nets.calibration.corrections import suspended
from pipewave.physics.demand import Array
from pipewave.prediction.answers import Predictions
from pipewave.prediction.api import predict

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """What rows of a cell share; `family` tells attention prefill and decode apart."""

    family: str
    gpu: str
    dtype: str
    stack: str
    impl: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Percentages over the rows of a cell, but for counts and ratios.

    `mape`, `median`, `bias`: mean, median and signed mean of predicted over measured - 1. `coverage`: rows inside the
    90 % interval. `slower`: rows slower than the ceiling (80 where the ceiling is a true P80). `over_floor`: median of
    measured over floor. `width`: median width of the interval over the prediction. `failed`: rows without an answer.
    """

    rows: int
    mape: float
    median: float
    bias: float
    coverage: float
    slower: float
    below_floor: int
    over_floor: float
    width: float
    failed: int = 0


Seen = Callable[[Key, Predictions, Array], None]


def score(rows: Iterable[Row], seen: Seen | None = None) -> dict[Key, Figures]:
    """Figures by cell. A row has `case` (stack and impl in it), `gpu`, `protocol`, `impl` and `latency_us`.

    `seen` is shown the predictions of each cell and what was measured, in µs.
    """
    cells: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        cells[key_of(row)].append(row)
    return {key: _scored(key, cells[key], seen) for key in sorted(cells, key=_order)}


def key_of(row: Row) -> Key:
    """The cell of a row."""
    case = row["case"]
    return Key(
        family_name(case), row["gpu"], case.get("dtype", "bf16"), case["stack"] or "", row["impl"], row["protocol"]
    )


def family_name(case: Mapping[str, Any]) -> str:
    """The kernel, with its phase for attention: decode when every request brings one token."""
    kernel = str(case["kernel"])
    rows = rows_of().get(kernel)
    return f"{kernel} {rows.phase(case)}" if rows and rows.phase else kernel


def predicted(key: Key, rows: Sequence[Row]) -> tuple[Predictions, Array, int]:
    """Uncalibrated predictions for the rows that have one, their measured µs, and how many have none."""
    calls: list[Call] = []
    measured = []
    for row in rows:
        try:
            calls.append(from_dict(row["case"]))
        except PipewaveError:
            continue
        measured.append(row["latency_us"])
    with suspended():
        return predict(calls, key.gpu, protocol=key.protocol), np.array(measured), len(rows) - len(calls)


def _scored(key: Key, rows: Sequence[Row], seen: Seen | None) -> Figures:
    answers, measured, failed = predicted(key, rows)
    if not len(answers):
        nan = float("nan")
        return Figures(0, nan, nan, nan, nan, nan, 0, nan, nan, failed)
    if seen:
        seen(key, answers, measured)
    return figures(answers, measured, failed)


def figures(answers: Predictions, measured: Array, failed: int = 0) -> Figures:
    """Figures of some predictions, `measured` in µs."""
    error = answers.latency_us / measured - 1.0
    inside = (answers.low_us <= measured) & (measured <= answers.high_us)
    return Figures(
        rows=len(measured),
        mape=_percent(np.abs(error).mean()),
        median=_percent(np.median(np.abs(error))),
        bias=_percent(error.mean()),
        coverage=_percent(inside.mean()),
        slower=_percent((measured > answers.ceiling_us).mean()),
        below_floor=int((measured < answers.floor_us).sum()),
        over_floor=round(float(np.median(measured / answers.floor_us)), 3),
        width=round(float(np.median((answers.high_us - answers.low_us) / answers.latency_us)), 3),
        failed=failed,
    )


def _percent(share: Any) -> float:
    return round(100.0 * float(share), 2)


def _order(key: Key) -> tuple[str, ...]:
    return (key.protocol, key.family, key.dtype, key.gpu, key.stack, key.impl)
