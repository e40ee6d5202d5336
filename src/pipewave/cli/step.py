"""`pipewave step`: one engine iteration, kernel by kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.cli.options import (
    AsJson,
    EngineName,
    Gpu,
    HostWords,
    Ignore,
    KvDtype,
    KvLens,
    Model,
    QLens,
    Split,
    cache_word,
)
from pipewave.cli.streams import print_json, print_notes


def step_command(
    model: Model,
    gpu: Gpu,
    q_lens: QLens,
    kv_lens: KvLens,
    split: Split,
    engine: EngineName = "vllm",
    kv_cache_dtype: KvDtype = None,
    host: HostWords = None,
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """One engine iteration, kernel by kernel, with its gaps."""
    from dataclasses import asdict

    from pipewave.calls.lists import integers
    from pipewave.gpus import find
    from pipewave.models import load
    from pipewave.models.kernels import Deployment
    from pipewave.software.host import host_of
    from pipewave.step import Runner, find_engine
    from pipewave.step.detail import detail

    spec = load(model, ignore=tuple(ignore))
    deployment = Deployment(spec, split.of(spec), cache_word(kv_cache_dtype))
    runner = Runner.of(deployment, find(gpu), find_engine(engine))
    runner = runner.hosted(host_of(host)) if host else runner
    batch = runner.batch(integers(q_lens), integers(kv_lens))
    rows = [asdict(part) for part in detail(runner, batch)]
    steps = runner.steps([batch])
    total = {side: float(getattr(steps, f"{side}_us")[0]) for side in ("total", "low", "high")}
    if as_json:
        figures = {f"{side}_us": us for side, us in total.items()}
        print_json({**figures, "parts": rows, "notes": steps.notes})
        return
    from pipewave.cli.render import table

    title = f"{spec.name} on {gpu}, {engine}: {total['total']:,.0f} µs ({total['low']:,.0f} to {total['high']:,.0f})"
    shown = [_part(row, staged=split.pp > 1) for row in rows if row["total_us"]]
    table(shown, title=title, droppable=("basis", "each µs", "low", "high"))
    print_notes(steps.notes)


def _part(row: Mapping[str, Any], *, staged: bool) -> dict[str, Any]:
    """A part of a step as people read it."""
    return ({"stage": row["stage"]} if staged else {}) | {
        "part": row["name"],
        "×": row["count"],
        "each µs": row["each_us"],
        "total": row["total_us"],
        "low": row["low_us"],
        "high": row["high_us"],
        "share": f"{row['share']:5.1%}",
        "bound": row["bound"],
        "basis": row["basis"],
    }
