"""The serve view: one deployment, where its time goes, and one step of each phase kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from pipewave.gpus import GPU
from pipewave.models import ModelSpec
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.models.shard import Parallel
from pipewave.prediction.answers import Prediction
from pipewave.simulate import estimate
from pipewave.simulate.setup import Setup
from pipewave.simulate.static_batch import StaticBatch, first_steps
from pipewave.step import Runner, Steps, find_engine
from pipewave.step.kernel_latency import kernel_latencies
from pipewave.web import limits
from pipewave.web.forms import Form, Gpu, Model, Name, WhatIf, cache_dtype, gpu_of, line, model_of, query_command

GAP = "gap"  # family and bound of what the engine adds to its kernels
Degree = Annotated[int, Field(ge=1, le=4096)]


class ServeQuery(Form):
    """A static batch on one deployment: the fields of `pipewave estimate`, and GPU numbers to change."""

    model: Model
    gpu: Gpu
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


def serve_answer(query: ServeQuery) -> dict[str, Any]:
    """`pipewave estimate --json`, and what the charts need beside it."""
    steps = query.batch * query.input_len // query.max_num_batched_tokens
    limits.at_most("prompt steps (batch × input_len / max_num_batched_tokens)", steps, limits.PROMPT_STEPS, "batch")
    found = _estimated(model_of(query.model), gpu_of(query.gpu, query.what_if), query)
    runner, batches = _phases(query)
    return {"schema_version": 1, **found, "throughput_tokens_s": found["output_tokens_per_s"],
            **_step_facts(runner, batches), "command": estimate_command(query)}  # fmt: skip


def _estimated(spec: ModelSpec, gpu: GPU, query: ServeQuery) -> dict[str, Any]:
    return estimate(
        spec,
        gpu,
        batch=query.batch,
        input_len=query.input_len,
        output_len=query.output_len,
        tp=query.tp,
        pp=query.pp,
        ep=query.ep,
        engine=query.engine,
        max_num_batched_tokens=query.max_num_batched_tokens,
        kv_dtype=cache_dtype(query.kv_cache_dtype),
    ).to_dict()


def _phases(query: ServeQuery) -> tuple[Runner, dict[str, Batch]]:
    """The first prompt step, and a decode step at full batch half way through the output."""
    engine = find_engine(query.engine)
    parallel = Parallel(query.tp, query.pp, query.ep)
    deployment = Deployment(model_of(query.model), parallel, cache_dtype(query.kv_cache_dtype))
    runner = Runner.of(deployment, gpu_of(query.gpu, query.what_if), engine)
    batch = StaticBatch(query.batch, query.input_len, query.output_len, query.max_num_batched_tokens)
    return runner, first_steps(runner, Setup(engine=query.engine), batch)


def _step_facts(runner: Runner, batches: dict[str, Batch]) -> dict[str, Any]:
    """Timeline of each phase's step, and the share of its time by what it waits for."""
    steps = runner.steps(list(batches.values()))
    parts = _parts(runner, list(batches.values()), steps)
    timelines = {
        phase: _totals(steps, index) | {"requests": batch.requests, "tokens": sum(batch.q_lens), "parts": rows}
        for index, ((phase, batch), rows) in enumerate(zip(batches.items(), parts, strict=True))
    }
    return {"pipes": {phase: _pipes(rows) for phase, rows in zip(batches, parts, strict=True)}, "timeline": timelines}


def _parts(runner: Runner, batches: Sequence[Batch], steps: Steps) -> list[list[dict[str, Any]]]:
    """Kernels of each step in launch order, equal ones of all layers together, then its gaps.

    The same rows as `pipewave step` prints; here the kernels of all steps are predicted in one go.
    """
    stages = range(runner.deployment.parallel.pp)
    uses = [[(stage, use) for stage in stages for use in runner.deployment.kernels(batch, stage)] for batch in batches]
    found = iter(kernel_latencies([use.call for one in uses for _, use in one], runner.gpu, runner.engine).found)
    rows = [[_kernel(stage, use, next(found)) for stage, use in one] for one in uses]
    gaps = [[_gap(name, float(us[index])) for name, us in steps.gaps.items()] for index in range(len(batches))]
    return [_placed([*kernels, *waits]) for kernels, waits in zip(rows, gaps, strict=True)]


def _kernel(stage: int, use: Use, found: Prediction) -> dict[str, Any]:
    return _row(use.name, use.call.kernel, stage, use.count, found.latency_us, found.bound, found.basis)


def _gap(name: str, us: float) -> dict[str, Any]:
    return _row(name, GAP, 0, 1, us, GAP, "")


def _row(name: str, family: str, stage: int, count: int, each_us: float, bound: str, basis: str) -> dict[str, Any]:
    return {"name": name, "family": family, "stage": stage, "count": count, "each_us": each_us,
            "duration_us": each_us * count, "bound": bound, "basis": basis}  # fmt: skip


def _placed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows one after another."""
    starts = accumulate((row["duration_us"] for row in rows), initial=0.0)
    return [row | {"start_us": start} for row, start in zip(rows, starts, strict=False)]


def _totals(steps: Steps, index: int) -> dict[str, float]:
    return {f"{side}_us": float(getattr(steps, f"{side}_us")[index]) for side in ("total", "low", "high")}


def _pipes(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share of a step's time by the pipe its kernels wait for, largest first; `gap` is what the engine adds."""
    total = sum(row["duration_us"] for row in rows) or 1.0
    shares: dict[str, float] = {}
    for row in rows:
        shares[row["bound"]] = shares.get(row["bound"], 0.0) + row["duration_us"] / total
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def cached(query: ServeQuery) -> dict[str, Any]:
    """The answer, remembered for models and GPUs with a name: sliders come back to where they were."""
    named = isinstance(query.model, str) and isinstance(query.gpu, str)
    return _cached(query.model_dump_json()) if named else serve_answer(query)


@lru_cache(maxsize=512)
def _cached(queries: str) -> dict[str, Any]:
    return serve_answer(ServeQuery.model_validate_json(queries))


def estimate_command(query: ServeQuery) -> str:
    """`pipewave estimate ...`; with changed GPU numbers or a model of one's own, `pipewave query`."""
    if query.what_if or not (isinstance(query.model, str) and isinstance(query.gpu, str)):
        return query_command("serve", query)
    return line(["pipewave", "estimate", "--json"], query.given())
