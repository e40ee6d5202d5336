"""`pipewave estimate` and `replay`: what a static batch, or recorded iterations, take on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

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
    Speculation,
    Split,
    cache_word,
)
from pipewave.cli.streams import print_json, print_notes

DECODE = "decode_step_ms"  # the part of a breakdown that an embedding has not


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
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
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
    ).to_dict()
    _print(answer, as_json, f"{answer['model']} on {answer['gpus']} × {answer['gpu']}, {engine}")


def replay_command(
    workload: Annotated[str, Argument(help="JSON file of recorded iterations.")],
    gpu: Gpu,
    engine: EngineName = "sglang",
    model: Annotated[str | None, Option("--model", help="Model, where the file's own shape is not meant.")] = None,
    as_json: AsJson = False,
) -> None:
    """What recorded engine iterations would take on a GPU."""
    from pipewave.models import load
    from pipewave.simulate import replay

    answer = replay(workload, gpu, engine, model=load(model) if model else None).to_dict()
    _print(answer, as_json, f"{workload} on {answer['gpu']}, {engine}")


def _print(answer: Mapping[str, Any], as_json: bool, title: str) -> None:
    """An answer with intervals and a breakdown: as JSON, or as tables."""
    if as_json:
        print_json(answer)
        return
    from pipewave.cli.render import table

    later = answer.get("tpot_ms") != 0.0  # an embedding has no decode step
    times = [name for name in answer if f"{name}_low" in answer and (later or name != "tpot_ms")]
    table(
        [{"": n, "ms": answer[n], "low": answer[f"{n}_low"], "high": answer[f"{n}_high"]} for n in times], title=title
    )
    _shares({phase: parts for phase, parts in answer["breakdown"].items() if later or phase != DECODE})
    if "memory_gib" in answer:
        table([answer["memory_gib"]], title="memory of the fullest GPU, GiB")
    print("evidence: " + ", ".join(f"{share:.0%} {name}" for name, share in answer["basis"].items()))
    print_notes(answer.get("notes", ()))


def _shares(breakdown: Mapping[str, Mapping[str, float]]) -> None:
    from pipewave.cli.render import bar, table

    for phase, parts in breakdown.items():
        whole = sum(parts.values()) or 1.0
        ranked = sorted(((v, k) for k, v in parts.items() if v > 0), reverse=True)
        table(
            [{"family": k, "ms": v, "share": f"{v / whole:5.1%}", "": bar(v / whole)} for v, k in ranked], title=phase
        )
