"""The kernel view: one kernel over a range of sizes on several GPUs, or over two fields as a table for a heat map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from pipewave.calls.families import Call, class_of, from_dict
from pipewave.calls.fields import Rule, rules
from pipewave.errors import BadInput, PipewaveError
from pipewave.gpus import GPU
from pipewave.kernels import family_of
from pipewave.physics.demand import PIPES
from pipewave.prediction.columns import columns, group_key
from pipewave.prediction.kernel_latency import US, answer
from pipewave.prediction.requests import check_protocol
from pipewave.web import limits, tuner
from pipewave.web.forms import Form, Gpu, GpuFile, Name, WhatIf, gpu_of, page_words, query_command

TIMES = ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us")
ROUNDED = 4  # digits behind the point of µs


class Sweep(Form):
    """Which field varies, from where to where."""

    field: Name
    first: Annotated[int, Field(alias="from", ge=0, le=1 << 50)]
    last: Annotated[int, Field(alias="to", ge=0, le=1 << 50)]
    points: Annotated[int, Field(ge=1, le=limits.SWEEP_POINTS)] = 200
    scale: Literal["linear", "log"] = "linear"


class KernelQuery(Form):
    """A kernel without its swept field, the sweep, and where to predict it."""

    kernel: Name
    case: Annotated[dict[str, Any], Field(default_factory=dict)]
    sweep: Sweep
    gpus: Annotated[list[Gpu], Field(min_length=1, max_length=limits.SWEEP_GPUS)]
    protocol: Name = "cold"
    what_if: WhatIf


def kernel_answer(query: KernelQuery) -> dict[str, Any]:
    """The curves of the kernel view. Raises what the library raises; a GPU that cannot run the call says so itself."""
    check_protocol(query.protocol)
    x = points(query.sweep)
    calls = swept_calls(query.kernel, query.case, "sweep.points", (query.sweep, x))
    failed: list[PipewaveError] = []
    series = [_series(gpu, calls, query, failed) for gpu in query.gpus]
    if len(failed) == len(series):
        raise failed[0]
    shipped = [] if query.what_if else [gpu for gpu in query.gpus if not isinstance(gpu, GpuFile)]
    tuned = [run for name in shipped for run in tuner.runs(calls, x, name)]
    return {"schema_version": 1, "kernel": query.kernel, "field": query.sweep.field, "protocol": query.protocol, "x": x,
            "series": series, "tuner": tuned or None, "command": query_command("kernel", query)}  # fmt: skip


def points(sweep: Sweep) -> list[int]:
    """Distinct integers of a sweep, in order, both ends included."""
    if sweep.last < sweep.first:
        raise BadInput(f"to = {sweep.last}: must be at least from = {sweep.first}", field="sweep.to")
    if sweep.scale == "log":
        spread = np.geomspace(max(sweep.first, 1), max(sweep.last, 1), sweep.points)
    else:
        spread = np.linspace(sweep.first, sweep.last, sweep.points)
    inner = np.rint(spread).astype(np.int64)
    inner[0], inner[-1] = sweep.first, sweep.last
    return [int(value) for value in np.unique(inner)]


def swept_calls(kernel: str, case: Mapping[str, Any], field: str, *axes: tuple[Sweep, list[int]]) -> list[Call]:
    """One valid call a point, the last axis fastest. field: what to reduce where lists are too long. Raises
    UnknownKernel, UnknownField, MissingField or BadInput.
    """
    cases, known = [dict(case)], rules(class_of(kernel))
    for sweep, values in axes:
        changes = [(one, change_of(sweep.field, known, one)) for one in cases]
        lists = sum(len(value) for one in cases for value in one.values() if isinstance(value, list))
        entries = 2 * sum(values) * len(cases) if sweep.field == "batch" else lists * len(values)
        limits.at_most("entries of lists, all points together", entries, limits.SWEEP_ENTRIES, field)
        cases = [one | change(value) for one, change in changes for value in values]
    return [from_dict({"kernel": kernel, **one}) for one in cases]


def sweepable(kernel: str) -> list[str]:
    """Fields a sweep may vary: integers, and for attention the lengths of its requests and their number."""
    known = rules(class_of(kernel))
    lists = ("prompt", "kv_lens", "q_lens", "batch") if "q_lens" in known else ()
    return [*lists, *(name for name, rule in known.items() if rule.kind == "int")]


def change_of(field: str, known: Mapping[str, Rule], case: Mapping[str, Any]) -> Callable[[int], dict[str, Any]]:
    """What a value of the swept field changes in the case."""
    if field in known and known[field].kind == "int":
        return lambda value: {field: value}
    if "q_lens" not in known or field not in ("prompt", "kv_lens", "q_lens", "batch"):
        raise BadInput(f"sweep.field = {field!r}: must be an integer field", field="sweep.field")
    lens = {name: case.get(name, [1]) for name in ("q_lens", "kv_lens")}
    for name, value in lens.items():
        if not isinstance(value, list) or not value:
            raise BadInput(f"{name}: must be a list of lengths, one a request", field=f"case.{name}")
    if field == "batch":
        return lambda value: {name: given[:1] * value for name, given in lens.items()}
    varied = ("q_lens", "kv_lens") if field == "prompt" else (field,)
    return lambda value: {name: [value] * len(lens[name]) for name in varied}


def _series(gpu: Gpu, calls: Sequence[Call], query: KernelQuery, failed: list[PipewaveError]) -> dict[str, Any]:
    """Predictions on one GPU, or why there are none, which is noted in `failed`, too."""
    found = gpu_of(gpu, query.what_if)
    try:
        return curves(calls, found, query.protocol)
    except PipewaveError as error:
        failed.append(error)
        told = error.to_dict() | {"message": page_words(error.message)}
        return {"gpu": gpu.file if isinstance(gpu, GpuFile) else gpu, "error": told}


def curves(calls: Sequence[Call], gpu: GPU, protocol: str) -> dict[str, Any]:
    """Predictions of calls of one family as lists, with the waves of each where the family has tasks."""
    family = family_of(calls[0].kernel)
    cases = [{name: getattr(call, name) for name in rules(type(call))} for call in calls]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, case in enumerate(cases):
        groups.setdefault(group_key(family, case), []).append(i)
    seconds, rounds = np.empty((len(TIMES), len(calls))), np.full(len(calls), np.nan)
    text: dict[str, list[str]] = {name: [""] * len(calls) for name in ("bound", "basis", "impl", "stack")}
    notes: list[str] = []
    for key, members in groups.items():
        cols = columns(family, [cases[i] for i in members])
        found = answer(family, cols, key, gpu, protocol)
        seconds[:, members] = found.seconds
        if family.page and family.page.waves:  # tasks / (resident thread blocks × SMs)
            rounds[members] = family.page.waves(cols, found.ctx, found.analysis)
        notes += found.source.notes
        for i, bound in zip(members, found.bound.tolist(), strict=True):
            text["bound"][i] = PIPES[bound]
            for name in ("basis", "impl", "stack"):
                text[name][i] = getattr(found.source, name)
    lists = {name: np.round(row * US, ROUNDED).tolist() for name, row in zip(TIMES, seconds, strict=True)}
    counted = None if np.isnan(rounds).all() else np.round(rounds, ROUNDED).tolist()
    return {"gpu": gpu.name} | lists | text | {"notes": list(dict.fromkeys(notes)), "waves": counted}


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
    if query.x.field == query.y.field:
        raise BadInput(f"y.field = {query.y.field!r}: must differ from x.field", field="y.field")
    calls = swept_calls(query.kernel, query.case, "y.points", (query.y, y), (query.x, x))
    found = curves(calls, gpu, query.protocol)
    tables = {name: np.reshape(found[name], (len(y), len(x))).tolist() for name in (*TIMES, "bound", "basis")}
    return {"schema_version": 1, "kernel": query.kernel, "gpu": gpu.name, "protocol": query.protocol,
            "x_field": query.x.field, "y_field": query.y.field, "x": x, "y": y, **tables,
            "notes": found["notes"], "command": query_command("grid", query)}  # fmt: skip
