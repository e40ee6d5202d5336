"""`pipewave model | estimate | replay`: models and what serving them takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

Model = Annotated[str, typer.Option("--model", help="config.json, a directory with one, or a built-in name.")]
Gpu = Annotated[str, typer.Option("--gpu", help="GPU name or spec file.")]
Tp = Annotated[int, typer.Option("--tp", "--tp-size", "--tensor-parallel-size", "-tp", help="Tensor parallel GPUs.")]
Pp = Annotated[int, typer.Option("--pp", "--pp-size", "--pipeline-parallel-size", "-pp", help="Pipeline stages.")]
Ep = Annotated[int, typer.Option("--ep", "--ep-size", help="Expert parallel degree inside the tensor group.")]
EngineName = Annotated[str, typer.Option("--engine", help="vllm or sglang.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]
Ignore = Annotated[list[str], typer.Option("--ignore-field", help="Config field known to change nothing; repeatable.")]
Tokens = Annotated[
    int,
    typer.Option("--max-num-batched-tokens", "--chunked-prefill-size", help="Token budget of a step."),
]
KvDtype = Annotated[str | None, typer.Option("--kv-cache-dtype", help="fp8 or the model's own type.")]


def register(app: typer.Typer) -> None:
    """Add the serving commands."""
    app.command("model")(model_command)
    app.command("estimate")(estimate_command)
    app.command("replay")(replay_command)


def model_command(
    model: Annotated[str, typer.Argument(help="config.json, a directory with one, or a built-in name.")] = "",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    ignore: Ignore = [],  # noqa: B006 typer reads the default, nothing writes it
    as_json: AsJson = False,
) -> None:
    """Layers, parameters and bytes of a model; without a name, the built-in ones."""
    from pipewave.model import load, names
    from pipewave.model.shard import Parallel
    from pipewave.model.view import rows, summary

    if not model:
        print(json.dumps(list(names())) if as_json else "\n".join(names()))
        return
    spec, parallel = load(model, ignore=tuple(ignore)), Parallel(tp, pp, ep)
    totals = summary(spec, parallel)
    if as_json:
        print(json.dumps({"schema_version": 1, **totals, "parts": rows(spec, parallel)}))
        return
    from pipewave.cli.render import table

    table(rows(spec, parallel), title=f"{spec.name} ({spec.model_type})")
    _facts({k: v for k, v in totals.items() if k not in ("model", "model_type")})


def estimate_command(
    model: Model,
    gpu: Gpu,
    batch: Annotated[int, typer.Option("--batch", "--batch-size", help="Requests that arrive together.")],
    input_len: Annotated[int, typer.Option("--input-len", "--isl", help="Prompt tokens of each.")],
    output_len: Annotated[int, typer.Option("--output-len", "--osl", help="Generated tokens of each.")],
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    engine: EngineName = "vllm",
    max_num_batched_tokens: Tokens = 8192,
    kv_cache_dtype: KvDtype = None,
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Time to first token, time per token, total and memory of a static batch."""
    from pipewave.model import load
    from pipewave.serve import estimate

    answer = estimate(
        load(model, ignore=tuple(ignore)),
        gpu,
        batch=batch,
        input_len=input_len,
        output_len=output_len,
        tp=tp,
        pp=pp,
        ep=ep,
        engine=engine,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_dtype=None if kv_cache_dtype in (None, "auto") else kv_cache_dtype,
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
    from pipewave.model import load
    from pipewave.serve import replay

    answer = replay(workload, gpu, engine, model=load(model) if model else None).to_dict()
    _print(answer, as_json, f"{workload} on {answer['gpu']}, {engine}")


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


def _facts(facts: Mapping[str, Any]) -> None:
    for name, value in facts.items():
        if value not in ([], None):
            print(f"{name:28} {value:,}" if isinstance(value, (int, float)) else f"{name:28} {value}")
