"""`pipewave serve`: requests over time, of one deployment or of every line of a file."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from pipewave.cli.command import Option
from pipewave.cli.options import AsJson, Bill, GpuName, Ignore, ModelName, Split, ToldRuns, Verbose
from pipewave.cli.serve_options import CommandLines, EngineOptions, Fleet, Limits, Requests
from pipewave.cli.streams import answer_cases, bar, give, waiting
from pipewave.errors import MissingField
from pipewave.version import VERSION


def serve_command(
    requests: Requests,
    split: Split,
    engine: EngineOptions,
    fleet: Fleet,
    limits: Limits,
    bill: Bill,
    pasted: CommandLines,
    model: ModelName = None,
    gpu: GpuName = None,
    cases: Annotated[str | None, Option(help="JSON-lines file of deployments instead; - is standard input.")] = None,
    out: Annotated[str, Option(help="Where answers to --cases go; - is standard output.")] = "-",
    resume: Annotated[bool, Option("--resume", help="Of --cases: go on where an interrupted run stopped.")] = False,
    executor: Annotated[
        str | None, Option(help="Of --cases: processes://N or dask://HOST:PORT; else one process a core.")
    ] = None,
    trace_out: Annotated[str | None, Option("--trace-out", help="Write a Perfetto trace here.")] = None,
    aiperf: Annotated[str | None, Option("--aiperf", help="Write AIPerf's result files into this folder.")] = None,
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
    from pipewave.models import load as load_model
    from pipewave.published.answers import deploy, served
    from pipewave.published.find_rate import find_rate as search
    from pipewave.simulate.estimate import for_output

    deployed, load = pasted.deployed(engine.engine), pasted.load()
    asked = deployed.spec if deployed else model
    if gpu is None or asked is None:
        option = "model" if gpu else "gpu"
        raise MissingField(f"missing option '--{option}': name one, or give --cases FILE", field=option)
    spec = for_output(load_model(asked, ignore=tuple(ignore)), requests.osl)
    stated = deployed.stated(spec, gpu) if deployed else fleet.stated(spec, gpu, split, engine, requests.images)
    stated = fleet.hosted(stated)
    if find_rate:
        with waiting(f"the largest rate of {spec.name}"):
            found_rate = search(lambda rate, n: deploy(stated, requests.at_rate(spec, rate, n)), limits.given())
        give(found_rate.to_dict(), as_json, verbose=verbose)
        return 0
    traffic = load.traffic if load else requests.traffic(spec)
    with waiting(f"{len(traffic):,} requests to {spec.name}"):
        ready = deploy(stated, traffic)
        found = served(ready, limits.sla(load), steady=requests.steady, interval=interval, keep_steps=bool(trace_out))
    if trace_out:
        from pipewave.export.runs import write_perfetto
        from pipewave.files.whole import distinct

        distinct(trace_out, requests.trace, model, gpu, field="trace_out")
        write_perfetto(trace_out, found.record, found.traffic)
    if aiperf:
        from pipewave.export.runs import write_aiperf

        write_aiperf(aiperf, found.record, found.traffic, found.answer)
    read = [note for one in (deployed, load) if one for note in one.notes]  # out of pasted command lines
    answer: dict[str, Any] = found.to_dict() | {"notes": [*read, *found.answer["notes"]]}
    if told:
        from pipewave.told.answers import corrected_run
        from pipewave.told.tell import runs_of

        case = {"model": model or str(spec.name), "gpu": gpu, "engine": engine.engine, **asdict(split)}
        answer = corrected_run(answer, stated, ready.traffic, case, runs_of(told))
    give(bill.added(answer, gpu), as_json, verbose=verbose)
    return 0


def answer_file(cases: str, out: str, executor: str | None, *, resume: bool = False) -> int:
    """Answer a file of cases; 0 = all answered, 1 = some in error. Raises BadFile and BadInput."""
    from pipewave.published.stream import answer_stream, one_a_core
    from pipewave.published.stream import executor as open_executor
    from pipewave.told.answers import answer

    with open_executor(executor or one_a_core()) as pool, bar("deployments") as tell:
        work = partial(answer_stream, executor=pool, progress=tell, ask=answer)
        return answer_cases(cases, out, work, resume=resume, asked=["serve", VERSION])
