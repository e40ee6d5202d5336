"""Rows of the corpus as cases of the public contract, and which of them shipped weights never saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile, PipewaveError
from pipewave.gpus import find
from pipewave.kernels import group_of, rows_of

Row = dict[str, Any]
ACTIVATIONS = {"mxfp4_mxfp8": ("mxfp4", ":mxfp8"), "int4_fp8": ("int4", ":w4afp8")}


def held_out(case: Mapping[str, Any]) -> bool:
    """Whether shipped weights never saw any row of the case's group."""
    from train.splits import HELD_OUT, fold

    return fold(group_of(case)) == HELD_OUT


def held_out_rows(data: Path, tables: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of fold 0: newest version of each framework on each GPU, unflagged, capped, none of our own.

    `tables`: corpus tables, all that families name by default. BadFile where no corpus lies at `data`.
    """
    from train.corpus import is_own, load, newest
    from train.splits import HELD_OUT, fold

    if not data.is_dir():
        raise BadFile(f"no corpus at {data}", field="data")
    known = _case_readers()
    for table in tables or known:
        frame = newest(load(table, data))
        groups = frame["group"].astype(str)
        held = groups.map({name: fold(name) for name in groups.unique()}) == HELD_OUT
        for given in frame[held & ~is_own(frame)].to_dict("records"):
            row = _row(known[table], given)
            if row is not None:
                yield row


def case_row(table: str, given: Mapping[str, Any]) -> Row | None:
    """The contract's case of a row of a corpus table; None for what the contract does not name."""
    return _row(_case_readers()[table], given)


def _row(case_of: Callable[[Mapping[str, Any]], Row], given: Mapping[str, Any]) -> Row | None:
    dtype, suffix = ACTIVATIONS.get(str(given["dtype"]), (str(given["dtype"]), ""))
    try:
        gpu = find(str(given["gpu"]))
        gpu.peak_flops(dtype)
    except PipewaveError:  # a type or a GPU that the contract does not know
        return None
    impl = str(given["impl"]) + suffix
    case = case_of(given) | {"dtype": dtype, "stack": str(given["stack"]), "impl": impl}
    latency = float(given["latency_us"])
    return {"case": case, "gpu": gpu.name, "protocol": str(given["protocol"]), "impl": impl, "latency_us": latency}


def _case_readers() -> dict[str, Callable[[Mapping[str, Any]], Row]]:
    """How a row of each corpus table reads as a case, in the order of the families."""
    return {rows.table: rows.case for rows in rows_of().values() if rows.case}
