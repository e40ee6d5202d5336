"""The report of two traces side by side: what takes longer in B than in A."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipewave.report.document import Block, Document, Fact, Facts, Table, ms, number

ROWS = 60
COLUMNS = ("call", "family", "A: ×", "B: ×", "A", "B", "B − A", "predicted B − A")


def document(answer: Mapping[str, Any]) -> Document:
    """Everything `pipewave trace A B` says. Raises KeyError or TypeError where it is not that."""
    names = [f"{str(answer[side]['source']).rsplit('/', 1)[-1]} on {answer[side]['gpu']}" for side in ("a", "b")]
    unit = "a step" if answer["by_step"] else "of the whole traces"
    return Document(f"A: {names[0]}; B: {names[1]}", f"GPU time {unit}.", tuple(_blocks(answer["changes"])))


def _blocks(changes: list[Mapping[str, Any]]) -> Iterator[Block]:
    a, b = (sum(float(change[side]) for change in changes) for side in ("a_us", "b_us"))
    yield Facts((
        Fact("A: GPU time", ms(a / 1e3)),
        Fact("B: GPU time", ms(b / 1e3)),
        Fact("B / A", number(b / a) if a else "–"),
    ))  # fmt: skip
    more = f" {number(len(changes) - ROWS)} smaller ones are left out." if len(changes) > ROWS else ""
    note = f"µs of all calls, ranked by the size of the change.{more}"
    yield Table("Changes", COLUMNS, tuple(_row(change) for change in changes[:ROWS]), note)


def _row(change: Mapping[str, Any]) -> tuple[Any, ...]:
    expected = (change["predicted_a_us"], change["predicted_b_us"])
    predicted = None if None in expected else float(expected[1]) - float(expected[0])
    times = (float(change[name]) for name in ("a_us", "b_us", "change_us"))
    return (change["name"], change["family"], change["count_a"], change["count_b"], *times, predicted)
