"""`pipewave trace`: which kernels of a profile are slower than they need be, and by how much."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pipewave.traces import Report, Workload
    from pipewave.traces.compare import Comparison
    from pipewave.traces.report import Entry, UnpredictedKernel

FORMATS = ("table", "json", "html", "md")
TOP = 25


LITTLE_SHAPED = 0.5  # of the GPU time: below it most calls had no shape to predict from


def register(app: typer.Typer) -> None:
    """Add `trace`."""
    app.command("trace")(trace_command)


def trace_command(
    file: Annotated[str, typer.Argument(help="Chrome trace of torch.profiler (may be gzip) or `ncu --csv` output.")],
    other: Annotated[str | None, typer.Argument(help="A second trace to compare with.", show_default=False)] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU name or spec file; default: the one the trace names.")] = None,
    model: Annotated[str | None, typer.Option(help="config.json, directory or built-in name, for CUDA graphs.")] = None,
    tp: Annotated[int, typer.Option("--tp", "--tp-size", help="Tensor-parallel ranks.")] = 1,
    ep: Annotated[int, typer.Option("--ep", "--ep-size", help="Expert-parallel ranks inside the tensor group.")] = 1,
    q_lens: Annotated[str, typer.Option("--q-lens", help="New tokens of each request, such as 1*32.")] = "",
    kv_lens: Annotated[str, typer.Option("--kv-lens", help="Cache lengths with them; one number stands for all.")] = "",
    kv_cache_dtype: Annotated[str | None, typer.Option("--kv-cache-dtype", help="fp8 or the model's own.")] = None,
    engine: Annotated[str, typer.Option(help="vllm or sglang.")] = "vllm",
    stack: Annotated[str | None, typer.Option(help="Software version, such as vllm-0.22.1.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Default: serving; cold for ncu, which flushes caches.")] = None,
    form: Annotated[str, typer.Option("--format", help="table, json, html or md.")] = "table",
    out: Annotated[str, typer.Option(help="Where the answer goes; - is standard output.")] = "-",
    top: Annotated[int, typer.Option(min=0, help="Rows of the table; 0 shows all.")] = TOP,
) -> None:
    """Measured, predicted and reachable time of every kernel call of a trace, ranked by what can be won back."""
    from pipewave.traces import compare, explain_trace

    _check_format(form)
    workload = _workload(model, tp, ep, q_lens, kv_lens, kv_cache_dtype, engine)
    reports = [
        explain_trace(path, gpu=gpu, workload=workload, protocol=protocol, stack=stack)
        for path in (file, other)
        if path is not None
    ]
    found = compare(*reports) if len(reports) == 2 else reports[0]
    if form == "table" and out == "-":
        _print(found, top)
    else:
        _write(_text(found, form, top), out)


def _check_format(form: str) -> None:
    from pipewave.errors import BadInput

    if form not in FORMATS:
        raise BadInput(f"--format {form}: must be one of {', '.join(FORMATS)}", field="format")


def _workload(
    model: str | None, tp: int, ep: int, q_lens: str, kv_lens: str, kv_dtype: str | None, engine: str
) -> Workload:
    from pipewave.calls.dtypes import cache_type
    from pipewave.calls.lists import integers
    from pipewave.kernels.launched import Given
    from pipewave.models import load
    from pipewave.models.kernels import Deployment
    from pipewave.models.shard import Parallel
    from pipewave.step import find_engine
    from pipewave.traces import Workload

    given = Given(integers(q_lens) if q_lens else (), integers(kv_lens) if kv_lens else ())
    if model is None:
        return Workload(None, given, engine)
    spec, parallel = load(model), Parallel(tp, 1, ep)
    parallel.check(spec)
    return Workload(Deployment(spec, parallel, cache_type(kv_dtype), find_engine(engine).page_size), given, engine)


def _text(found: Report | Comparison, form: str, top: int) -> str:
    """The answer as it is asked for."""
    from pipewave.report import report

    if form == "json":
        return json.dumps(found.to_dict()) + "\n"
    if form != "table":
        return report(found.to_dict(), form)
    printed = io.StringIO()
    with redirect_stdout(printed):
        _print(found, top)
    return printed.getvalue()


def _print(found: Report | Comparison, top: int) -> None:
    from pipewave.traces import Report

    if isinstance(found, Report):
        _table(found, top)
    else:
        _comparison_table(found, top)


def _write(text: str, out: str) -> None:
    from pipewave.errors import BadFile

    if out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise BadFile(f"{out}: cannot be written ({problem.strerror})", field="out") from problem


def _table(report: Report, top: int) -> None:
    counted, assumed = ([one for one in report.entries if one.counted is sure] for sure in (True, False))
    title = f"{report.source} on {report.gpu} [{report.protocol}]: µs of one call; recoverable of all of them"
    _entries(counted, report, top, title)
    if assumed:
        _entries(assumed, report, top, "resting on an assumption or a stand-in, not counted as recoverable")
    _unpredicted("shape unknown", report.unshaped, report.gpu_us)
    _unpredicted("not recognised", report.unknown, report.gpu_us)
    _totals(report)


def _entries(entries: Sequence[Entry], report: Report, top: int, title: str) -> None:
    from pipewave.cli.render import table

    shown = entries[: top or None]
    rows = [
        {
            "call": entry.name,
            "×": entry.count,
            "measured": entry.measured_us,
            "predicted": entry.latency_us,
            "90 % interval": f"{entry.low_us:.4g} – {entry.high_us:.4g}",
            "ceiling": entry.ceiling_us,
            "floor": entry.floor_us,
            "bound": entry.bound,
            "recoverable": entry.total_recoverable_us,
            "share": f"{entry.total_measured_us / report.gpu_us:5.1%}",
        }
        for entry in shown
    ]
    table(rows, title=title, droppable=("90 % interval", "bound", "floor", "share"))
    if len(shown) < len(entries):
        print(f"{len(entries) - len(shown)} more calls; --top 0 shows all")


def _unpredicted(title: str, rows: Sequence[UnpredictedKernel], whole: float) -> None:
    if rows:
        listed = ", ".join(f"{row.name} ×{row.count} {row.total_measured_us:.4g} µs" for row in rows[:6])
        more = f", and {len(rows) - 6} more" if len(rows) > 6 else ""
        share = sum(row.total_measured_us for row in rows) / (whole or 1.0)
        print(f"{title} ({share:.1%}): {listed}{more}")


def _totals(report: Report) -> None:
    facts = {
        "GPU time": f"{report.gpu_us / 1e3:,.3f} ms",
        "recoverable": f"{report.recoverable_us / 1e3:,.3f} ms ({report.recoverable_us / (report.gpu_us or 1.0):.1%})",
        "if assumed holds": f"{report.assumed_us / 1e3:,.3f} ms more" if report.assumed_us else "",
        "recognised": f"{report.recognized_share:.1%} of GPU time",
        "with shapes": f"{report.shaped_share:.1%} of GPU time",
        "within 10 %": f"{report.close_share:.1%} of recognised time",
    }
    for name, value in facts.items():
        if value:
            print(f"{name:16} {value}")
    if report.shaped_share < LITTLE_SHAPED:
        print("hint: inside CUDA graphs no shapes are recorded; they come from the model: pass --model")
    for note in dict.fromkeys(entry.note for entry in report.entries if entry.note):
        print(f"note: {note}")


def _comparison_table(found: Comparison, top: int) -> None:
    from pipewave.cli.render import table

    of = "a step" if found.by_step else "all"
    rows: list[dict[str, Any]] = [
        {
            "call": change.name,
            "family": change.family,
            "× A": change.count_a,
            "× B": change.count_b,
            "A each": change.a_us / (change.count_a or 1),
            "B each": change.b_us / (change.count_b or 1),
            f"A {of}": change.a_us,
            f"B {of}": change.b_us,
            "B − A": change.change_us,
            "predicted B − A": None if change.predicted_us is None else round(change.predicted_us, 3),
        }
        for change in found.changes[: top or None]
    ]
    title = f"µs of A {found.a.source} on {found.a.gpu} and B {found.b.source} on {found.b.gpu}"
    table(rows, title=title, droppable=("family", "× A", "× B", "predicted B − A"))
    (a, b), unit = found.gpu_us, " a step" if found.by_step else ""
    print(f"GPU time{unit}: A {a / 1e3:,.3f} ms, B {b / 1e3:,.3f} ms, B / A {b / a if a else 0.0:.3f}")
