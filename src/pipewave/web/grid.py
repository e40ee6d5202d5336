"""The kernel view over two fields at once: a table of latencies, fit for a heat map."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from pipewave.calls.families import Call, class_of, from_dict
from pipewave.calls.fields import rules
from pipewave.errors import BadInput
from pipewave.prediction.requests import check_protocol
from pipewave.web import limits
from pipewave.web.forms import Form, Gpu, Name, WhatIf, gpu_of, query_command
from pipewave.web.kernel import TIMES, Sweep, change_of, curves, points

WORDS = ("bound", "basis")


class GridQuery(Form):
    """A kernel without its two swept fields, both sweeps, and where to predict it."""

    kernel: Name
    case: Annotated[dict[str, Any], Field(default_factory=dict)]
    x: Sweep
    y: Sweep
    gpu: Gpu
    protocol: Name = "cold"
    what_if: WhatIf


def grid_answer(query: GridQuery) -> dict[str, Any]:
    """Latency, interval, floor and ceiling by row (y) and column (x). Raises what the library raises."""
    check_protocol(query.protocol)
    gpu = gpu_of(query.gpu, query.what_if)
    x, y = points(query.x), points(query.y)
    limits.at_most("points (columns × rows)", len(x) * len(y), limits.GRID_POINTS, "y.points")
    found = curves(_calls(query, x, y), gpu, query.protocol)
    tables = {name: np.reshape(found[name], (len(y), len(x))).tolist() for name in (*TIMES, *WORDS)}
    return {"schema_version": 1, "kernel": query.kernel, "gpu": gpu.name, "protocol": query.protocol,
            "x_field": query.x.field, "y_field": query.y.field, "x": x, "y": y, **tables,
            "notes": found["notes"], "command": query_command("grid", query)}  # fmt: skip


def _calls(query: GridQuery, x: list[int], y: list[int]) -> list[Call]:
    """One valid call a cell, row after row."""
    if query.x.field == query.y.field:
        raise BadInput(f"y.field = {query.y.field!r}: must differ from x.field", field="y.field")
    known = rules(class_of(query.kernel))
    down = change_of(query.y.field, known, query.case)
    rows = [query.case | down(value) for value in y]
    lists = sum(len(value) for row in rows for value in row.values() if isinstance(value, list))
    entries = 2 * sum(x) * len(y) if query.x.field == "batch" else lists * len(x)
    limits.at_most("entries of lists, all points together", entries, limits.SWEEP_ENTRIES, "y.points")
    across = [change_of(query.x.field, known, row) for row in rows]
    return [from_dict({"kernel": query.kernel, **row, **change(value)})
            for row, change in zip(rows, across, strict=True) for value in x]  # fmt: skip
