"""The serve view: one deployment, where its time goes, and one step of each phase kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from pipewave.gpus import GPU
from pipewave.model import ModelSpec
from pipewave.model.kernels import Batch, Deployment
from pipewave.model.shard import Parallel
from pipewave.serve import estimate
from pipewave.serve.uniform import Uniform
from pipewave.step import Runner, Steps, find_engine
from pipewave.step.detail import Part, detail
from pipewave.web import limits
from pipewave.web.commands import estimate_command
from pipewave.web.forms import Form, Model, Name, WhatIf, cache_dtype, gpu_of, model_of

Degree = Annotated[int, Field(ge=1, le=4096)]


class ServeAsk(Form):
    """A static batch on one deployment: the fields of `pipewave estimate`, and GPU numbers to change."""

    model: Model
    gpu: Name
    what_if: WhatIf
    batch: Annotated[int, Field(ge=1, le=limits.BATCH)]
    input_len: Annotated[int, Field(ge=1, le=limits.INPUT_LEN)]
    output_len: Annotated[int, Field(ge=1, le=limits.OUTPUT_LEN)]
    tp: Degree = 1
    pp: Degree = 1
    ep: Degree = 1
    engine: Name = "vllm"
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=limits.STEP_TOKENS)] = 8192
    kv_cache_dtype: Name | None = None


def serve_answer(ask: ServeAsk) -> dict[str, Any]:
    """`pipewave estimate --json`, and what the charts need beside it."""
    steps = ask.batch * ask.input_len // ask.max_num_batched_tokens
    limits.at_most("prompt steps (batch × input_len / max_num_batched_tokens)", steps, limits.PROMPT_STEPS, "batch")
    found = _estimated(model_of(ask.model), gpu_of(ask.gpu, ask.what_if), ask)
    runner, batches = _phases(ask)
    return {"schema_version": 1, **found, "throughput_tokens_s": found["output_tokens_per_s"],
            **_step_facts(runner, batches), "command": estimate_command(ask)}  # fmt: skip


def _estimated(spec: ModelSpec, gpu: GPU, ask: ServeAsk) -> dict[str, Any]:
    return estimate(
        spec,
        gpu,
        batch=ask.batch,
        input_len=ask.input_len,
        output_len=ask.output_len,
        tp=ask.tp,
        pp=ask.pp,
        ep=ask.ep,
        engine=ask.engine,
        max_num_batched_tokens=ask.max_num_batched_tokens,
        kv_dtype=cache_dtype(ask.kv_cache_dtype),
    ).to_dict()


def _phases(ask: ServeAsk) -> tuple[Runner, dict[str, Batch]]:
    """The first prompt step, and a decode step at full batch half way through the output."""
    engine = find_engine(ask.engine)
    parallel = Parallel(ask.tp, ask.pp, ask.ep)
    deployment = Deployment(model_of(ask.model), parallel, cache_dtype(ask.kv_cache_dtype))
    runner = Runner.of(deployment, gpu_of(ask.gpu, ask.what_if), engine)
    run = Uniform(ask.batch, ask.input_len, ask.output_len, ask.max_num_batched_tokens, ask.pp, engine.mixes_phases)
    lane = -(-ask.batch // ask.pp)
    half = ask.input_len + (ask.output_len + 1) // 2
    return runner, {"prefill": runner.batch(*run.plan().lengths(0)), "decode": runner.batch([1] * lane, [half] * lane)}


def _step_facts(runner: Runner, batches: dict[str, Batch]) -> dict[str, Any]:
    steps = runner.steps(list(batches.values()))
    timelines, pipes = {}, {}
    for index, (phase, batch) in enumerate(batches.items()):
        parts = detail(runner, batch)
        timelines[phase] = _timeline(batch, parts, steps, index)
        pipes[phase] = _pipes(parts)
    return {"pipes": pipes, "timeline": timelines}


def _timeline(batch: Batch, parts: Sequence[Part], steps: Steps, index: int) -> dict[str, Any]:
    """Parts one after another in launch order, equal kernels of all layers together."""
    starts = accumulate((part.total_us for part in parts), initial=0.0)
    total = {f"{side}_us": round(float(getattr(steps, f"{side}_us")[index]), 3) for side in ("total", "low", "high")}
    rows = [_row(part, start) for part, start in zip(parts, starts, strict=False)]
    return total | {"requests": batch.requests, "tokens": sum(batch.q_lens), "parts": rows}


def _row(part: Part, start: float) -> dict[str, Any]:
    return {
        "name": part.name,
        "family": part.family,
        "stage": part.stage,
        "count": part.count,
        "start_us": round(start, 3),
        "duration_us": round(part.total_us, 3),
        "each_us": round(part.each_us, 3),
        "bound": part.bound,
        "basis": part.basis,
        "kernels": part.kernels,
    }


def _pipes(parts: Sequence[Part]) -> dict[str, float]:
    """Share of a step's time by the pipe its kernels wait for; `gap` is what the engine adds."""
    total = sum(part.total_us for part in parts) or 1.0
    shares: dict[str, float] = {}
    for part in parts:
        pipe = "gap" if part.family == "gap" else part.bound
        shares[pipe] = shares.get(pipe, 0.0) + part.total_us / total
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return {name: round(share, 6) for name, share in ranked}


@lru_cache(maxsize=512)
def cached(asked: str) -> dict[str, Any]:
    """The answer to a question in its JSON form: sliders come back to where they were."""
    return serve_answer(ServeAsk.model_validate_json(asked))
