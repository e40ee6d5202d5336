"""What the `tune` commands need beside the library: parsing of shapes, rows to show, and a clear word without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput, MissingExtra
from pipewave.tune.explain import reachable, trade_off
from pipewave.tune.law.wave import PARTS

MOST_POINTS = 1_000_000  # of a range: each is a choice of some microseconds


def need_gpu() -> None:
    """Say what is missing where nothing can be timed.

    Raises:
        MissingExtra: torch or triton is absent, or no CUDA GPU is visible.
    """
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"timing needs torch and triton ({error.name} is missing): pip install 'pipewave[gpu]'"
        ) from None
    if not torch.cuda.is_available():
        raise MissingExtra(
            "timing needs a CUDA GPU; none is visible here. Shipped tables work without one.", field="gpu"
        )


def fields_of(text: str) -> dict[str, int]:
    """Parse `m=300,n=4096`.

    Raises:
        BadInput: a part is not name=integer, or an integer below one.
    """
    try:
        found = {name.strip(): int(value) for name, _, value in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise BadInput(f"shape {text!r}: write name=integer, separated by commas, such as m=300,n=4096,k=4096",
                       field="shape") from None  # fmt: skip
    for name, value in found.items():
        if value < 1:
            raise BadInput(f"{name} = {value}: must be at least 1", field=name)
    return found


def range_of(text: str) -> tuple[str, range, dict[str, int]]:
    """Parse fixed fields and one range `name=LOW:HIGH[:STEP]`; HIGH belongs to it.

    Raises:
        BadInput: no range, several, one of no values or too many, or something that is not a number.
    """
    parts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    ranges = {name: value for name, value in parts.items() if ":" in value}
    if len(ranges) != 1:
        raise BadInput(f"shape {text!r}: give exactly one field a range, such as m=1:8192", field="shape")
    ((name, value),) = ranges.items()
    fixed = fields_of(",".join(f"{n}={v}" for n, v in parts.items() if n != name)) if len(parts) > 1 else {}
    try:
        low, high, *step = (int(number) for number in value.split(":"))
        points = range(low, high + 1, *step)
    except (ValueError, TypeError):
        raise BadInput(f"{name} = {value!r}: write LOW:HIGH or LOW:HIGH:STEP", field=name) from None
    if not 0 < len(points) <= MOST_POINTS:
        raise BadInput(f"{name} = {value!r}: holds {len(points):,} values, not 1 to {MOST_POINTS:,}", field=name)
    return name, points, fixed


def reach_rows(
    table: Any, vary: str, points: range, fixed: Mapping[str, int]
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return one row a reachable configuration with its intervals, and how few configurations would do."""
    found = reachable(table, vary, points, **fixed)
    rows = [{**dict(config), vary: " ".join(f"{a}-{b}" if a < b else str(a) for a, b in intervals)}
            for config, intervals in found.items()]  # fmt: skip
    some = np.unique(np.geomspace(points.start, points[-1], 200).astype(int))
    columns = {vary: some[:, None], **{name: np.full((len(some), 1), value) for name, value in fixed.items()}}
    return rows, trade_off(table.us(columns))


def compact(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Put a row's parameters into one column, `128·64·64·4·3·1`, so that the row fits 80 columns."""
    rest = {name: value for name, value in row.items() if name not in names}
    return {"configuration": "·".join(str(row[name]) for name in names), **rest}


def candidate_rows(candidates: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of `tune explain`: µs, two sigma, and what share of the time each part of the law is, in percent."""
    rows = (compact(row, names) for row in candidates)
    return [{"configuration": row["configuration"], "µs": row["us"], "±": row["within_us"],
             **{f"{part} %": round(100 * row[part]) for part in PARTS}, "": row["is"]} for row in rows]  # fmt: skip


def engine_rows(wanted: Sequence[Any], gpu: str) -> list[dict[str, Any]]:
    """Rows of the files that an engine looks up on a GPU."""
    from pipewave.tune.engine.lookups import file_name, rules

    return [{"used by": ", ".join(of.used_by), "file": file_name(of, gpu),
             "found by": rules()[of.engine][of.kind]["found_by"]} for of in wanted]  # fmt: skip


def ranked_rows(
    kernel: str, gpu: str, grid: str, words: Sequence[str], shapes: Path | None, top: int
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rows of `tune rank`, and the loss to expect of timing no others. BadInput: neither grid nor shapes."""
    from pipewave.tune import rank as ranking
    from pipewave.tune.source.inspect import arguments, expression_grid
    from pipewave.tune.user_kernels.offline import from_shapes

    if (shapes is None) == (not grid):
        raise BadInput("say --grid and --arg of one launch, or --shapes of several", field="grid")
    launches = [(one.grid, one.args) for one in from_shapes(shapes)] if shapes else [
        (expression_grid(grid), arguments(words))]  # fmt: skip
    of = ranking.kernel_of(kernel)
    found = ranking.rank(of, launches, gpu)
    mean, most = ranking.loss_of(min(top, len(found))) if top < len(found) else (0.0, 0.0)
    rows = [{"configuration": " ".join(f"{name}={value}" for name, value in one.config.items()), "us": one.us,
             "low_us": one.low_us, "high_us": one.high_us, "registers": one.registers, "smem_bytes": one.smem_bytes,
             "stack_bytes": one.stack_bytes, "blocks_per_sm": one.blocks_per_sm, "error": one.error}
            for one in found[:top]]  # fmt: skip
    return rows, {"loss_mean": mean, "loss_p90": most}


def own_profile(kernel: str, shapes: Path | None, log: Path | None, out: Path | None, seconds: float) -> str:
    """Measure a kernel of the user's own, and say where its table is.

    Raises:
        BadInput: neither shapes nor a log. MissingExtra: no GPU. BadFile: what is named cannot be read.
    """
    from pipewave.tune.user_kernels import offline

    device = _device()
    found = offline.kernel_of(kernel, device, out or True)
    path = offline.measure_all(found, _launches(found, shapes, log), device, offline.on_cuda, seconds)
    return str(path) if path else "nothing could be measured"


def own_check(kernel: str, table: Path | None, log: Path | None) -> Any:
    """Time a few launches of a table of the user's own again; raises as `own_profile` does."""
    from pipewave.tune.user_kernels import offline

    device = _device()
    found = offline.kernel_of(kernel, device)
    beside = found.path()
    where = table or (beside.with_suffix(".safetensors") if beside else Path())
    return offline.check(found, where, _launches(found, None, log), device, offline.on_cuda)


def _device() -> Any:
    need_gpu()
    from pipewave.tune.user_kernels import gpu

    return gpu.current()


def _launches(kernel: Any, shapes: Path | None, log: Path | None) -> list[Any]:
    from pipewave.tune.user_kernels import offline

    if (shapes is None) == (log is None):
        raise BadInput("say --shapes FILE or --from-log FILE: which launches to measure", field="shapes")
    return offline.from_shapes(shapes) if shapes else offline.from_log(Path(str(log)), kernel)


def verdict_text(verdict: Any) -> str:
    """What a canary found, in a line."""
    return f"{verdict.answer}: new times are {verdict.factor:.3f} of the old, spread {verdict.spread:.1%}"
