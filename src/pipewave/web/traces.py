"""The trace view: a profile parsed here, its calls ranked by the time that could be won back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pipewave.calls.fields import integers
from pipewave.errors import BadInput
from pipewave.kernels.profiler import Given
from pipewave.prediction.requests import check_protocol
from pipewave.traces import Report, Workload, compare, explain_trace
from pipewave.traces.compare import Comparison
from pipewave.traces.reader import Limits, parse
from pipewave.web import limits
from pipewave.web.forms import Form, Name, cache_dtype, gpu_of, line, model_of

OURS = ("name", "other", "first_bytes", "report")  # fields that are no option of the command
Ranks = Annotated[int, Field(ge=1, le=4096, strict=False)]  # a query string has text only
Lens = Annotated[str, Field(max_length=2_000, pattern=r"^([0-9]{1,12}(\*[0-9]{1,5})?(,|$))*$")]


class TraceQuery(Form):
    """What a trace may not say; the fields of `pipewave trace`.

    other: name of a second trace, to compare with. Its bytes come after the `first_bytes` of the first one.
    """

    name: Name = "trace"
    other: Name | None = None
    first_bytes: Annotated[int, Field(ge=1, le=limits.TRACE_BYTES, strict=False)] | None = None
    gpu: Name | None = None
    model: Name | None = None
    tp: Ranks = 1
    ep: Ranks = 1
    q_lens: Lens = ""
    kv_lens: Lens = ""
    kv_cache_dtype: Name | None = None
    engine: Name = "vllm"
    stack: Name | None = None
    protocol: Name | None = None
    report: Literal["html", "md"] | None = None


def trace_answer(query: TraceQuery, file: Path) -> dict[str, Any]:
    """`pipewave trace --format json` of a file, or of the two that it holds one after the other.

    Raises BadFile and what the library raises.
    """
    data, names, at = file.read_bytes(), [query.name], query.first_bytes
    if query.other is not None:
        if at is None or at >= len(data):
            raise BadInput("first_bytes: must say where the second trace begins", field="first_bytes")
        one, other = _explained(query, query.name, data[:at]), _explained(query, query.other, data[at:])
        found: Report | Comparison = compare(one, other)
        names.append(query.other)
    else:
        found = _explained(query, query.name, data)
    given = {name: value for name, value in query.given().items() if name not in OURS}
    return found.to_dict() | {"command": line(["pipewave", "trace", *names, "--format", "json"], given)}


def _explained(query: TraceQuery, name: str, data: bytes) -> Report:
    """One of a question's traces."""
    given = Given(_lens("q_lens", query.q_lens), _lens("kv_lens", query.kv_lens))
    spec = None if query.model is None else model_of(query.model)
    cache = cache_dtype(query.kv_cache_dtype)
    workload = Workload.of(spec, tp=query.tp, ep=query.ep, kv_dtype=cache, given=given, engine=query.engine)
    gpu = gpu_of(query.gpu, {}) if query.gpu else None
    if query.protocol is not None:
        check_protocol(query.protocol)
    trace = parse(data, name, Limits(limits.UNPACKED_BYTES, limits.TRACE_EVENTS))
    if gpu is None and trace.gpu is not None:
        gpu = gpu_of(trace.gpu, {})  # a file must not name another file
    return explain_trace(trace, gpu=gpu, workload=workload, protocol=query.protocol, stack=query.stack)


def _lens(name: str, text: str) -> tuple[int, ...]:
    """`1*32,2048` as integers."""
    found = integers(text, name) if text else ()
    limits.at_most(f"{name}: requests", len(found), limits.BATCH, name)
    return found
