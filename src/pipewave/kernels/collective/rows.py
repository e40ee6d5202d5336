"""Measured rows of collectives: libraries, near duplicates, the corpus table that holds all of them."""

from __future__ import annotations

from typing import Any

from pipewave.kernels.faces import Case, Rows, Runner, table_case

# Several processes measure them together (`pipewave.measure.collectives`).
RUNNERS = {"nccl": Runner("", "", "torch"), "custom": Runner("", "", "vllm")}


def _case(row: Case) -> dict[str, Any]:
    return table_case(str(row["op"]), "bytes", "world", "nodes")(row)


def rows_of(op: str) -> dict[str, Rows]:
    """What is known of measured rows of one collective."""
    return {op: Rows(runners=RUNNERS, usual={"": "nccl"}, group=("bytes",), table="collectives", case=_case)}
