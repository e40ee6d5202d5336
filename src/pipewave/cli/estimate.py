"""`pipewave estimate` and `replay`: what a static batch, or recorded iterations, take on a GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pipewave.cli.command import Argument, Option
from pipewave.cli.options import (
    STEP_TOKENS,
    AsJson,
    Backend,
    EngineName,
    Gpu,
    HostWords,
    Ignore,
    Images,
    Isl,
    KvDtype,
    Model,
    Osl,
    PowerLimit,
    Speculation,
    Split,
    ToldRuns,
    Verbose,
    cache_word,
)
from pipewave.cli.streams import give


def estimate_command(
    model: Model,
    gpu: Gpu,
    batch: Annotated[int, Option("--batch", "--batch-size", help="Requests that arrive together.")],
    input_len: Isl,
    output_len: Osl,
    split: Split,
    images: Images = 0,
    engine: EngineName = "vllm",
    max_num_batched_tokens: Annotated[int, Option(*STEP_TOKENS, help="Token budget of a step.")] = 8192,
    kv_cache_dtype: KvDtype = None,
    moe_backend: Backend = None,
    speculative: Speculation = None,
    host: HostWords = None,
    power_limit: PowerLimit = None,
    ignore: Ignore = [],  # noqa: B006
    told: ToldRuns = [],  # noqa: B006
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Time to first token, time per token, total and memory of a static batch."""
    from pipewave.models import load
    from pipewave.simulate import estimate

    answer = estimate(
        load(model, ignore=tuple(ignore)),
        gpu,
        batch=batch,
        input_len=input_len,
        output_len=output_len,
        **asdict(split),
        engine=engine,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_dtype=cache_word(kv_cache_dtype),
        moe_backend=moe_backend,
        images=images,
        speculative=speculative,
        host=host,
        power_limit_w=power_limit,
    )
    if told:
        from pipewave.told.others import corrected_estimate
        from pipewave.told.tell import runs_of

        case = {"model": model, "gpu": gpu, "engine": engine, "concurrency": batch, "isl": input_len, "osl": output_len}
        limits = {"max_num_batched_tokens": max_num_batched_tokens, "speculative": speculative}
        case |= asdict(split) | limits | {"kv_dtype": cache_word(kv_cache_dtype), "power_limit_w": power_limit}
        answer = corrected_estimate(answer, case, runs_of(told))
    give(answer.to_dict(), as_json, verbose=verbose)


def replay_command(
    workload: Annotated[str, Argument(help="JSON file of recorded iterations.")],
    gpu: Gpu,
    engine: EngineName = "sglang",
    model: Annotated[str | None, Option("--model", help="Model, where the file's own shape is not meant.")] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """What recorded engine iterations would take on a GPU."""
    from pipewave.models import load
    from pipewave.simulate import replay

    answer = replay(workload, gpu, engine, model=load(model) if model else None).to_dict()
    give(answer, as_json, verbose=verbose)
