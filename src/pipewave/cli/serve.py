"""`pipewave serve`: requests over time, of one deployment or of every line of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pipewave.cli.bars import waiting
from pipewave.cli.command import Option
from pipewave.cli.options import AsJson, Ignore, Split, ToldRuns, Verbose
from pipewave.cli.serve_options import CommandLines, EngineOptions, Fleet, Limits, Requests
from pipewave.cli.streams import give
from pipewave.errors import MissingField

if TYPE_CHECKING:
    from pipewave.models import ModelSpec
    from pipewave.published.client_command import ClientLoad
    from pipewave.published.server_command import Pasted
    from pipewave.published.unstated import Stated
    from pipewave.simulate.server import Served


import os
from dataclasses import asdict
from functools import partial

from pipewave.cli.bars import bar
from pipewave.cli.streams import answer_cases
from pipewave.version import VERSION


def serve_command(
    requests: Requests,
    split: Split,
    engine: EngineOptions,
    fleet: Fleet,
    limits: Limits,
    pasted: CommandLines,
    model: Annotated[str | None, Option("--model", help="As of `estimate`.")] = None,
    gpu: Annotated[str | None, Option("--gpu", help="GPU name or spec file.")] = None,
    cases: Annotated[str | None, Option(help="JSON-lines file of deployments instead; - is standard input.")] = None,
    out: Annotated[str, Option(help="Where answers to --cases go; - is standard output.")] = "-",
    resume: Annotated[bool, Option("--resume", help="Of --cases: go on where an interrupted run stopped.")] = False,
    executor: Annotated[
        str | None, Option(help="Of --cases: processes://N or dask://HOST:PORT; else one process a core.")
    ] = None,
    trace_out: Annotated[str | None, Option("--trace-out", help="Write a Perfetto trace here.")] = None,
    interval: Annotated[bool, Option(help="The 90 % interval of every time.")] = True,
    find_rate: Annotated[
        bool, Option("--find-rate", help="The largest rate within --ttft, --tpot and --request-latency instead.")
    ] = False,
    ignore: Ignore = [],  # noqa: B006
    told: ToldRuns = [],  # noqa: B006
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> int:
    """Requests over time: latency percentiles, throughput and goodput of a deployment, or of every line of a file.

    `pipewave serve --model Llama-3.1-8B --gpu H200 --request-rate 10 --ttft 500 --tpot 30`

    `pipewave serve --model Llama-3.1-8B --gpu H200 --find-rate --ttft p99=1000 --tpot 30`

    `pipewave serve --model DeepSeek-V3 --gpu H200 --dp 8 --ep 8 --speculative method=mtp,tokens=1`

    `pipewave serve --model Llama-3.1-8B --gpu H200 --prefill workers=2 --decode tp=2 --concurrency 32`

    `pipewave serve --gpu H200 --from-command 'vllm serve Qwen/Qwen3-8B -tp 2' --client 'vllm bench serve'`
    """
    if cases is not None:
        return answer_file(cases, out, executor, resume=resume)
    from pipewave.published.answers import deploy, served

    deployed = pasted.deployed(engine.engine)
    gpu, load = _named("gpu", gpu), pasted.load()
    spec = _model(deployed.spec if deployed else _named("model", model), requests.osl, ignore)
    stated = deployed.stated(spec, gpu) if deployed else fleet.stated(spec, gpu, split, engine, requests.images)
    if find_rate:
        with waiting(f"the largest rate of {spec.name}"):
            give(_rate(fleet.hosted(stated), spec, requests, limits), as_json, verbose=verbose)
        return 0
    traffic = load.traffic if load else requests.traffic(spec)
    with waiting(f"{len(traffic):,} requests to {spec.name}"):
        ready = deploy(fleet.hosted(stated), traffic)
        found = served(ready, limits.sla(load), steady=requests.steady, interval=interval)
    if trace_out:
        from pipewave.export.perfetto import write
        from pipewave.files.whole import distinct

        distinct(trace_out, requests.trace, model, gpu, field="trace_out")
        write(trace_out, found.record, found.traffic)
    answer = _with_notes(found, deployed, load)
    if told:
        from pipewave.told.others import corrected_run
        from pipewave.told.tell import runs_of

        asked = {"model": model or str(spec.name), "gpu": gpu, "engine": engine.engine, **asdict(split)}
        answer = corrected_run(answer, fleet.hosted(stated), ready.traffic, asked, runs_of(told))
    give(answer, as_json, verbose=verbose)
    return 0


def _rate(stated: Stated, spec: ModelSpec, requests: Requests, limits: Limits) -> dict[str, Any]:
    """The largest rate of such requests within limits."""
    from pipewave.published.answers import deploy
    from pipewave.published.find_rate import find_rate

    return find_rate(
        lambda rate, count: deploy(stated, requests.at_rate(spec, rate, count)), limits.given()
    ).to_dict()  # fmt: skip


def _named(option: str, value: str | None) -> str:
    """What serves and on what; MissingField where nothing says."""
    if value is None:
        raise MissingField(f"missing option '--{option}': name one, or give --cases FILE", field=option)
    return value


def _model(model: str | ModelSpec, output: int, ignore: list[str]) -> ModelSpec:
    """The model as it runs for so many output tokens."""
    from pipewave.models import load
    from pipewave.simulate.estimate import for_output

    return for_output(load(model, ignore=tuple(ignore)), output)


def _with_notes(served: Served, *pasted: Pasted | ClientLoad | None) -> dict[str, Any]:
    """The answer, with what was made of pasted command lines among its notes."""
    return served.to_dict() | {
        "notes": [*(note for one in pasted if one for note in one.notes), *served.answer["notes"]]
    }


def answer_file(cases: str, out: str, executor: str | None, *, resume: bool = False) -> int:
    """Answer a file of cases; 0 = all answered, 1 = some in error. Raises BadFile and BadInput."""
    from pipewave.planning import executors
    from pipewave.published.stream import answer_stream
    from pipewave.told.answers import answer

    where = executor or (f"processes://{cores}" if (cores := os.cpu_count() or 1) > 1 else None)
    with executors.executor(where) as pool, bar("deployments") as tell:
        work = partial(answer_stream, executor=pool, progress=tell, ask=answer)
        return answer_cases(cases, out, work, resume=resume, asked=["serve", VERSION])
