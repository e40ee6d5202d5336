"""`pipewave estimate`, `step`, `replay` and `workload`: what a static batch or recorded iterations take on a GPU."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pipewave.cli import options as opt
from pipewave.cli.command import Argument, Option
from pipewave.cli.streams import give, put, say
from pipewave.files.json_text import dumps

UNTOLD = ("batch", "moe_backend", "images", "host")  # arguments that cases of told runs do not know


@dataclass(frozen=True, slots=True)
class StaticBatch:
    """Options.

    Requests that arrive together, and how their engine runs: arguments of `estimate`.
    """

    batch: Annotated[int, Option("--batch", "--batch-size", help="Requests that arrive together.")]
    input_len: opt.Isl
    output_len: opt.Osl
    images: opt.Images = 0
    engine: opt.EngineName = "vllm"
    max_num_batched_tokens: Annotated[int, Option(*opt.STEP_TOKENS, help="Token budget of a step.")] = 8192
    kv_dtype: opt.KvDtype = None
    moe_backend: opt.Backend = None
    speculative: opt.Speculation = None
    host: opt.HostWords = None
    power_limit_w: opt.PowerLimit = None
    quantize: opt.Quantize = None


def estimate_command(
    model: opt.Model,
    gpu: opt.Gpu,
    batch: StaticBatch,
    split: opt.Split,
    bill: opt.Bill,
    ignore: opt.Ignore = (),
    told: opt.ToldRuns = (),
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> None:
    """Time to first token, time per token, total and memory of a static batch."""
    from pipewave.calls.dtypes import cache_type
    from pipewave.models.load import load_as
    from pipewave.simulate import estimate

    asked: dict[str, Any] = asdict(batch) | asdict(split) | {"kv_dtype": cache_type(batch.kv_dtype)}
    spec = load_as(model, batch.quantize, batch.engine, tuple(ignore))
    answer = estimate(spec, gpu, **asked | {"quantize": None})
    if told:
        from pipewave.told.answers import corrected_estimate
        from pipewave.told.tell import runs_of

        case = {name: value for name, value in asked.items() if name not in UNTOLD} | {"concurrency": batch.batch}
        answer = corrected_estimate(answer, case | {"model": model, "gpu": gpu}, runs_of(told))
    give(bill.added(answer.to_dict(), gpu), as_json, verbose=verbose)


def step_command(
    model: opt.Model,
    gpu: opt.Gpu,
    q_lens: opt.QLens,
    kv_lens: opt.KvLens,
    split: opt.Split,
    engine: opt.EngineName = "vllm",
    kv_cache_dtype: opt.KvDtype = None,
    host: opt.HostWords = None,
    ignore: opt.Ignore = (),
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> None:
    """One engine iteration, kernel by kernel, with its gaps."""
    from pipewave.calls.dtypes import cache_type
    from pipewave.calls.fields import integers
    from pipewave.gpus import find
    from pipewave.models import load
    from pipewave.models.kernels import Deployment
    from pipewave.models.shard import Parallel
    from pipewave.software.front import host_of
    from pipewave.step import Runner, find_engine
    from pipewave.step.predict import detail

    spec, parallel = load(model, ignore=tuple(ignore)), Parallel(**asdict(split))
    runner = Runner.of(Deployment(spec, parallel, cache_type(kv_cache_dtype)), find(gpu), find_engine(engine))
    runner = runner.hosted(host_of(host)) if host else runner
    batch = runner.batch(integers(q_lens, "q_lens"), integers(kv_lens, "kv_lens"))
    rows = [asdict(part) for part in detail(runner, batch)]
    steps = runner.steps([batch])
    total = {f"{side}_us": float(getattr(steps, f"{side}_us")[0]) for side in ("total", "low", "high")}
    total |= runner.energy(steps)
    answer = total | {"parts": rows, "notes": steps.notes, "model": spec.name, "gpu": gpu}
    give(answer, as_json, verbose=verbose)


def replay_command(
    workload: Annotated[str, Argument(help="JSON file of recorded iterations.")],
    gpu: opt.Gpu,
    engine: opt.EngineName = "sglang",
    model: Annotated[str | None, Option("--model", help="Model, where the file's own shape is not meant.")] = None,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> None:
    """What recorded engine iterations would take on a GPU."""
    from pipewave.models import load
    from pipewave.simulate import replay

    answer = replay(workload, gpu, engine, model=load(model) if model else None).to_dict()
    give(answer, as_json, verbose=verbose)


def workload_command(
    model: opt.Model,
    requests: Annotated[str, Option("--requests", help="CSV or JSON-lines table of prompt and output tokens.")],
    out: Annotated[str, Option("--out", help="Where the workload goes; - is standard output.")] = "-",
    tp: opt.Tp = 1,
    pp: opt.Pp = 1,
    ep: opt.Ep = 1,
    limit: Annotated[int | None, Option(min=1, help="Only the first so many requests.")] = None,
) -> None:
    """A replayable workload from a model and a table of requests, which all start together.

    When they arrive is no part of a workload: `pipewave serve --trace` takes that into account.
    """
    from pipewave.simulate.arrival_files import read_trace
    from pipewave.simulate.replay import workload

    traffic = read_trace(requests, requests=limit, rate=math.inf)
    say(f"note: {traffic.notes[0]}; `pipewave serve --trace` takes them into account")
    put(dumps(workload(model, traffic, tp=tp, pp=pp, ep=ep)) + "\n", out, requests)
