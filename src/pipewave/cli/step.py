"""`pipewave step`: one engine iteration, kernel by kernel."""

from __future__ import annotations

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
    Verbose,
    cache_word,
)
from pipewave.cli.streams import give


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
    verbose: Verbose = False,
) -> None:
    """One engine iteration, kernel by kernel, with its gaps."""
    from dataclasses import asdict

    from pipewave.calls.fields import integers
    from pipewave.gpus import find
    from pipewave.models import load
    from pipewave.models.kernels import Deployment
    from pipewave.software.host import host_of
    from pipewave.step import Runner, find_engine
    from pipewave.step.predict import detail

    spec = load(model, ignore=tuple(ignore))
    deployment = Deployment(spec, split.of(spec), cache_word(kv_cache_dtype))
    runner = Runner.of(deployment, find(gpu), find_engine(engine))
    runner = runner.hosted(host_of(host)) if host else runner
    batch = runner.batch(integers(q_lens), integers(kv_lens))
    rows = [asdict(part) for part in detail(runner, batch)]
    steps = runner.steps([batch])
    total = {f"{side}_us": float(getattr(steps, f"{side}_us")[0]) for side in ("total", "low", "high")}
    total |= runner.energy(steps)
    answer = total | {"parts": rows, "notes": steps.notes, "model": spec.name, "gpu": gpu}
    give(answer, as_json, verbose=verbose)
