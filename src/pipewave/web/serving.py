"""The serve view: one deployment, where its time goes, and one step of each phase kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.simulate import estimate
from pipewave.simulate.setup import Setup
from pipewave.simulate.static_batch import StaticBatch, first_steps
from pipewave.step import Runner, find_engine
from pipewave.step.predict import Part, detail
from pipewave.web import limits
from pipewave.web.forms import Form, Gpu, Model, Name, WhatIf, cache_dtype, gpu_of, line, model_of, query_command

ASKED = ("batch", "input_len", "output_len", "tp", "pp", "ep", "engine", "max_num_batched_tokens")
GAP = "gap"  # family and bound of what the engine adds to its kernels


class ServeQuery(Form):
    """A static batch on one deployment: the fields of `pipewave estimate`, and GPU numbers to change."""

    model: Model
    gpu: Gpu
    what_if: WhatIf
    batch: Annotated[int, Field(ge=1, le=limits.BATCH)]
    input_len: limits.InputLen
    output_len: limits.OutputLen
    tp: limits.Degree = 1
    pp: limits.Degree = 1
    ep: limits.Degree = 1
    engine: Name = "vllm"
    max_num_batched_tokens: limits.StepTokens = 8192
    kv_cache_dtype: Name | None = None


def serve_answer(query: ServeQuery) -> dict[str, Any]:
    """`pipewave estimate --json`, and what the charts need beside it."""
    steps = query.batch * query.input_len // query.max_num_batched_tokens
    limits.at_most("prompt steps (batch × input_len / max_num_batched_tokens)", steps, limits.PROMPT_STEPS, "batch")
    spec, gpu, engine = model_of(query.model), gpu_of(query.gpu, query.what_if), query.engine
    cache, parallel = cache_dtype(query.kv_cache_dtype), Parallel(query.tp, query.pp, query.ep)
    batch = StaticBatch(query.batch, query.input_len, query.output_len, query.max_num_batched_tokens)
    found = estimate(spec, gpu, **{name: getattr(query, name) for name in ASKED}, kv_dtype=cache).to_dict()
    runner = Runner.of(Deployment(spec, parallel, cache), gpu, find_engine(engine))
    facts = _step_facts(runner, first_steps(runner, Setup(engine=engine), batch))
    # Changed GPU numbers and a model of one's own are no options of `estimate`.
    plain = not query.what_if and isinstance(query.model, str) and isinstance(query.gpu, str)
    command = line(["pipewave", "estimate", "--json"], query.given()) if plain else query_command("serve", query)
    return {"schema_version": 1, **found, "throughput_tokens_s": found["output_tokens_per_s"], **facts,
            "command": command}  # fmt: skip


def _step_facts(runner: Runner, batches: dict[str, Batch]) -> dict[str, Any]:
    """Timeline of each phase's step, and the share of its time by what it waits for."""
    steps, pipes, timelines = runner.steps(list(batches.values())), {}, {}
    for index, (phase, batch) in enumerate(batches.items()):
        rows = _placed(detail(runner, batch))
        totals = {f"{side}_us": float(getattr(steps, f"{side}_us")[index]) for side in ("total", "low", "high")}
        timelines[phase] = totals | {"requests": batch.requests, "tokens": sum(batch.q_lens), "parts": rows}
        pipes[phase] = _pipes(rows)
    return {"pipes": pipes, "timeline": timelines}


def _placed(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Kernels of a step in launch order, equal ones of all layers together, then its gaps, one after another."""
    kept = ("name", "family", "stage", "count", "each_us", "basis")
    starts = accumulate((part.total_us for part in parts), initial=0.0)
    return [{name: getattr(part, name) for name in kept} | {"duration_us": part.total_us, "start_us": start,
            "bound": GAP if part.family == GAP else part.bound}
            for part, start in zip(parts, starts, strict=False)]  # fmt: skip


def _pipes(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share of a step's time by the pipe its kernels wait for, largest first; `gap` is what the engine adds."""
    total = sum(row["duration_us"] for row in rows) or 1.0
    shares: dict[str, float] = {}
    for row in rows:
        shares[row["bound"]] = shares.get(row["bound"], 0.0) + row["duration_us"] / total
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
