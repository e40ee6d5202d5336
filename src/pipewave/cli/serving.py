"""`pipewave step | estimate | replay | workload`: models and what serving them takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

Model = Annotated[str, typer.Option("--model", help="config.json, a directory with one, or a built-in name.")]
Gpu = Annotated[str, typer.Option("--gpu", help="GPU name or spec file.")]
Tp = Annotated[int, typer.Option("--tp", "--tp-size", "--tensor-parallel-size", "-tp", help="Tensor parallel GPUs.")]
Pp = Annotated[int, typer.Option("--pp", "--pp-size", "--pipeline-parallel-size", "-pp", help="Pipeline stages.")]
Dp = Annotated[
    int,
    typer.Option("--dp", "--dp-size", "--data-parallel-size", "-dp", help="Ranks of attention data parallelism."),
]
Ep = Annotated[int, typer.Option("--ep", "--ep-size", help="Expert parallel degree inside the tensor group.")]
EngineName = Annotated[str, typer.Option("--engine", help="vllm, sglang, trtllm; a version: sglang:0.5.9.")]
Backend = Annotated[str | None, typer.Option("--moe-backend", "--moe-runner-backend", help="What runs the experts.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]
Ignore = Annotated[list[str], typer.Option("--ignore-field", help="Config field known to change nothing; repeatable.")]
Tokens = Annotated[
    int,
    typer.Option("--max-num-batched-tokens", "--chunked-prefill-size", help="Token budget of a step."),
]
Budget = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", "--chunked-prefill-size", help="Tokens of a step.")
]
Most = Annotated[int | None, typer.Option("--max-num-seqs", "--max-running-requests", help="Requests at once.")]
Memory = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", "--mem-fraction-static", help="Share of memory.")
]
KvDtype = Annotated[str | None, typer.Option("--kv-cache-dtype", help="fp8 or the model's own type.")]


Speculation = Annotated[
    str | None,
    typer.Option("--speculative", help="Such as method=mtp,tokens=3,acceptance=0.8; or eagle3, ngram, draft."),
]


def register(app: typer.Typer) -> None:
    """Add the serving commands."""
    app.command("step")(step_command)
    app.command("estimate")(estimate_command)
    app.command("replay")(replay_command)
    app.command("workload")(workload_command)


def step_command(
    model: Model,
    gpu: Gpu,
    q_lens: Annotated[str, typer.Option("--q-lens", help="New tokens of each request; 1*64,2048 repeats.")],
    kv_lens: Annotated[str, typer.Option("--kv-lens", help="Cache lengths, new tokens included.")],
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    dp: Dp = 1,
    engine: EngineName = "vllm",
    kv_cache_dtype: KvDtype = None,
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """One engine iteration, kernel by kernel, with its gaps."""
    from dataclasses import asdict

    from pipewave.calls.lists import integers
    from pipewave.gpus import find
    from pipewave.models import load
    from pipewave.models.kernels import Deployment
    from pipewave.models.shard import Parallel
    from pipewave.step import Runner, find_engine
    from pipewave.step.detail import detail

    spec, parallel = load(model, ignore=tuple(ignore)), Parallel(tp, pp, ep, dp)
    parallel.check(spec)
    deployment = Deployment(spec, parallel, cache_word(kv_cache_dtype))
    runner = Runner.of(deployment, find(gpu), find_engine(engine))
    batch = runner.batch(integers(q_lens), integers(kv_lens))
    rows = [asdict(part) for part in detail(runner, batch)]
    steps = runner.steps([batch])
    total = {side: float(getattr(steps, f"{side}_us")[0]) for side in ("total", "low", "high")}
    if as_json:
        print(json.dumps({"schema_version": 1, **{f"{k}_us": v for k, v in total.items()}, "parts": rows}))
        return
    from pipewave.cli.render import table

    title = f"{spec.name} on {gpu}, {engine}: {total['total']:,.0f} µs ({total['low']:,.0f} to {total['high']:,.0f})"
    shown = [_part(row, staged=pp > 1) for row in rows if row["total_us"]]
    table(shown, title=title, droppable=("basis", "each µs", "low", "high"))


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


def estimate_command(
    model: Model,
    gpu: Gpu,
    batch: Annotated[int, typer.Option("--batch", "--batch-size", help="Requests that arrive together.")],
    input_len: Annotated[int, typer.Option("--input-len", "--isl", help="Prompt tokens of each.")],
    output_len: Annotated[
        int, typer.Option("--output-len", "--osl", help="Generated tokens of each; 0: an embedding or a score.")
    ],
    images: Annotated[int, typer.Option(help="Images of each prompt; their tokens come on top.")] = 0,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    dp: Dp = 1,
    engine: EngineName = "vllm",
    max_num_batched_tokens: Tokens = 8192,
    kv_cache_dtype: KvDtype = None,
    moe_backend: Backend = None,
    speculative: Speculation = None,
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Time to first token, time per token, total and memory of a static batch."""
    from pipewave.models import load
    from pipewave.serving import estimate

    answer = estimate(
        load(model, ignore=tuple(ignore)),
        gpu,
        batch=batch,
        input_len=input_len,
        output_len=output_len,
        tp=tp,
        pp=pp,
        ep=ep,
        dp=dp,
        engine=engine,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_dtype=cache_word(kv_cache_dtype),
        moe_backend=moe_backend,
        images=images,
        speculative=speculative,
    ).to_dict()
    _print(answer, as_json, f"{answer['model']} on {answer['gpus']} × {answer['gpu']}, {engine}")


def replay_command(
    workload: Annotated[str, typer.Argument(help="JSON file of recorded iterations.")],
    gpu: Gpu,
    engine: EngineName = "sglang",
    model: Annotated[
        str | None, typer.Option("--model", help="Model, where the file's own shape is not meant.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What recorded engine iterations would take on a GPU."""
    from pipewave.models import load
    from pipewave.serving import replay

    answer = replay(workload, gpu, engine, model=load(model) if model else None).to_dict()
    _print(answer, as_json, f"{workload} on {answer['gpu']}, {engine}")


def cache_word(dtype: str | None) -> str | None:
    from pipewave.calls.dtypes import cache_type

    return cache_type(dtype)


def workload_command(
    model: Model,
    requests: Annotated[str, typer.Option("--requests", help="CSV or JSON-lines table of prompt and output tokens.")],
    out: Annotated[str, typer.Option("--out", help="Where the workload goes; - is standard output.")] = "-",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")] = None,
) -> None:
    """A replayable workload from a model and a table of requests, which all start together.

    When they arrive is no part of a workload: `pipewave serve --trace` takes that into account.
    """
    from pathlib import Path

    from pipewave.errors import BadFile
    from pipewave.serving.traffic import read_trace
    from pipewave.serving.workload import workload

    traffic = read_trace(requests, requests=limit)
    if traffic.arrival_s[-1] > 0:
        sys.stderr.write("note: arrival times left out; `pipewave serve --trace` takes them into account\n")
    text = json.dumps(workload(model, traffic, tp=tp, pp=pp, ep=ep))
    if out == "-":
        print(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise BadFile(f"{out}: cannot be written ({problem.strerror})", field="out") from problem


def _print(answer: Mapping[str, Any], as_json: bool, title: str) -> None:
    """An answer with intervals and a breakdown: as JSON, or as tables."""
    if as_json:
        print(json.dumps({"schema_version": 1, **answer}))
        return
    from pipewave.cli.render import table

    times = [name for name in answer if f"{name}_low" in answer]
    table(
        [{"": n, "ms": answer[n], "low": answer[f"{n}_low"], "high": answer[f"{n}_high"]} for n in times], title=title
    )
    _shares(answer["breakdown"])
    if "memory_gib" in answer:
        table([answer["memory_gib"]], title="memory of the fullest GPU, GiB")
    print("evidence: " + ", ".join(f"{share:.0%} {name}" for name, share in answer["basis"].items()))
    for note in answer.get("notes", ()):
        print(f"note: {note}")


def _shares(breakdown: Mapping[str, Mapping[str, float]]) -> None:
    from pipewave.cli.render import bar, table

    for phase, parts in breakdown.items():
        whole = sum(parts.values()) or 1.0
        ranked = sorted(((v, k) for k, v in parts.items() if v > 0), reverse=True)
        table(
            [{"family": k, "ms": v, "share": f"{v / whole:5.1%}", "": bar(v / whole)} for v, k in ranked], title=phase
        )


def facts(named: Mapping[str, Any]) -> None:
    """Print one fact a line."""
    from pipewave.cli.render import text

    for name, value in named.items():
        if value not in ([], None):
            print(f"{name:28} {value:,}" if isinstance(value, int) else f"{name:28} {text(value)}")
