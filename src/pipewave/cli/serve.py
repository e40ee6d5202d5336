"""`pipewave serve`: requests over time, of one deployment or of every line of a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipewave.cli.serving import (
    AsJson,
    Backend,
    Budget,
    Dp,
    EngineName,
    Ep,
    Ignore,
    KvDtype,
    Memory,
    Most,
    Pp,
    Speculation,
    Tp,
    cache_word,
    facts,
)
from pipewave.errors import MissingField

if TYPE_CHECKING:
    from pipewave.models import ModelSpec
    from pipewave.serving.client_command import ClientLoad
    from pipewave.serving.disaggregated import Disaggregated
    from pipewave.serving.run import Server, Setup
    from pipewave.serving.server_command import Deployed
    from pipewave.serving.traffic import Traffic

INTERVAL = "90 %"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve_command)


def serve_command(
    model: Annotated[str | None, typer.Option("--model", help="As of `estimate`.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPU name or spec file.")] = None,
    cases: Annotated[
        str | None, typer.Option(help="JSON-lines file of deployments instead; - is standard input.")
    ] = None,
    out: Annotated[str, typer.Option(help="Where answers to --cases go; - is standard output.")] = "-",
    executor: Annotated[
        str | None, typer.Option(help="Of --cases: processes://N or dask://HOST:PORT; else one process a core.")
    ] = None,
    from_command: Annotated[
        str | None, typer.Option("--from-command", help="A server's own command line, quoted, instead of its options.")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", help="A benchmark's own command line, quoted: vllm bench serve ...")
    ] = None,
    isl: Annotated[int, typer.Option("--isl", "--input-len", "--random-input-len", help="Mean prompt tokens.")] = 1024,
    osl: Annotated[
        int, typer.Option("--osl", "--output-len", "--random-output-len", help="Mean output tokens; 0: none.")
    ] = 128,
    images: Annotated[int, typer.Option(help="Images of each prompt, of the size that its tower is made for.")] = 0,
    requests: Annotated[int | None, typer.Option("--requests", "--num-prompts", help="How many requests.")] = None,
    rate: Annotated[float | None, typer.Option("--request-rate", help="Requests a second; inf: all at once.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", "--max-concurrency", help="In flight.")] = None,
    burstiness: Annotated[float, typer.Option(help="1 = Poisson; smaller is burstier.")] = 1.0,
    spread: Annotated[float, typer.Option("--spread", help="Lengths are uniform within ± this share.")] = 0.0,
    ratio: Annotated[
        float | None,
        typer.Option(
            "--random-range-ratio",
            help="Lengths from this share of isl and osl up to them, as InferenceX and SGLang mean it.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random requests.")] = 0,
    dataset: Annotated[
        str | None, typer.Option("--dataset", "--dataset-name", help="Lengths of recorded conversations: sharegpt.")
    ] = None,
    trace: Annotated[str | None, typer.Option(help="CSV, JSON-lines or parquet trace instead.")] = None,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    dp: Dp = 1,
    engine: EngineName = "vllm",
    replicas: Annotated[int, typer.Option("--replicas", help="Engines side by side.")] = 1,
    prefill_pool: Annotated[
        str | None, typer.Option("--prefill", help="Disaggregated: the prompts' engines, such as workers=2,tp=4.")
    ] = None,
    decode_pool: Annotated[
        str | None,
        typer.Option("--decode", help="Disaggregated: the later tokens' engines, such as workers=1,dp=8,ep=8."),
    ] = None,
    prefill: Annotated[int, typer.Option("--prefill-engines", help="Disaggregated: engines for prompts.")] = 0,
    decode: Annotated[int, typer.Option("--decode-engines", help="Disaggregated: engines for later tokens.")] = 0,
    max_num_batched_tokens: Budget = None,
    max_num_seqs: Most = None,
    memory: Memory = None,
    kv_cache_dtype: KvDtype = None,
    moe_backend: Backend = None,
    speculative: Speculation = None,
    lora: Annotated[str | None, typer.Option("--lora", help="Adapters: rank=16,adapters=4.")] = None,
    all2all: Annotated[
        str | None,
        typer.Option(
            "--all2all-backend", "--moe-a2a-backend", help="How tokens reach the experts of other ranks: deepep, ..."
        ),
    ] = None,
    two_batch: Annotated[
        bool, typer.Option("--enable-two-batch-overlap", "--enable-dbo", help="Its overlap with kernels.")
    ] = False,
    eplb: Annotated[
        str | None,
        typer.Option("--eplb", help="Copies of busy experts, and loads: redundant=32,loads=FILE or power_law_1.2."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", help="A server over HTTP on such a host: cores=16,speed=0.8,api_servers=2."),
    ] = None,
    offload: Annotated[
        float, typer.Option("--kv-offload-gib", help="Host memory a GPU for prompts' blocks of a trace with hashes.")
    ] = 0.0,
    ttft: Annotated[float | None, typer.Option(help="Limit on time to first token, ms.")] = None,
    tpot: Annotated[float | None, typer.Option(help="Limit on time per later token (first left out), ms.")] = None,
    request_latency: Annotated[float | None, typer.Option("--request-latency", help="Limit end to end, ms.")] = None,
    trace_out: Annotated[str | None, typer.Option("--trace-out", help="Write a Perfetto trace here.")] = None,
    interval: Annotated[bool, typer.Option(help="The 90 % interval of every time.")] = True,
    ignore: Ignore = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Requests over time: latency percentiles, throughput and goodput of a deployment, or of every line of a file.

    \b
    pipewave serve --model Llama-3.1-8B --gpu H200 --request-rate 10 --ttft 500 --tpot 30
    pipewave serve --model DeepSeek-V3 --gpu H200 --dp 8 --ep 8 --speculative method=mtp,tokens=1
    pipewave serve --model Llama-3.1-8B --gpu H200 --prefill workers=2 --decode tp=2 --concurrency 32
    pipewave serve --gpu H200 --from-command 'vllm serve ... -tp 4' --client 'vllm bench serve --max-concurrency 64'
    """
    if cases is not None:
        from pipewave.cli.serving_cases import answer_file

        raise typer.Exit(answer_file(cases, out, executor))
    pasted = _deployed(from_command, engine)
    model = pasted.model if pasted else model
    if model is None or gpu is None:
        missing = "model" if model is None else "gpu"
        raise MissingField(f"missing option '--{missing}': name one, or give --cases FILE", field=missing)
    from pipewave.serving.perfetto import write
    from pipewave.serving.report import Sla
    from pipewave.serving.run import Setup, with_interval

    spec, client_load = _model(model, osl, ignore), _client_load(client)
    drawn = {"burstiness": burstiness, "seed": seed, **_lengths(spec, isl, images, osl, spread, ratio)}
    steady = {"rate": None if rate == math.inf else rate, "concurrency": concurrency}
    traffic = client_load.traffic if client_load else _traffic(trace, dataset, requests, drawn, steady)
    sides: dict[str, Any] = {
        "replicas": replicas,
        "dp": dp,
        "prefill": prefill,
        "decode": decode,
        "exchange": all2all,
        "two_batch": two_batch,
        "images": images,
        "kv_offload_gib": offload,
    }
    options = _options(kv_cache_dtype, moe_backend, eplb, speculative, lora)
    limits = _limits(max_num_batched_tokens, max_num_seqs, memory)
    setup = _hosted(pasted.setup if pasted else Setup(tp, pp, ep, engine, **sides, **options, **limits), host, gpu)
    sla = Sla(ttft, tpot, request_latency)
    sla = client_load.sla if client_load and sla == Sla() else sla
    server = _server(spec, gpu, setup, (prefill_pool, decode_pool), traffic.longest)
    served = with_interval(server, traffic, sla) if interval else server.run(traffic, sla)
    if trace_out:
        write(trace_out, served.record, served.traffic)
    notes = [*(note for one in (pasted, client_load) if one for note in one.notes), *served.answer.get("notes", ())]
    _served(served.to_dict() | ({"notes": notes} if notes else {}), as_json)


def _hosted(setup: Setup, host: str | None, gpu: str) -> Setup:
    """The set-up behind its engine's front end on a host that is described; as it is where none is."""
    if host is None:
        return setup
    from dataclasses import replace

    from pipewave.gpus import find
    from pipewave.software.front import of
    from pipewave.software.host import host_of

    engine = setup.engine if isinstance(setup.engine, str) else setup.engine.name
    world = setup.engines * setup.tp * setup.pp * setup.dp
    gpus = min(world, find(gpu).gpus_per_node)
    engines = max(setup.engines * setup.dp * gpus // world, 1)
    return replace(setup, front=host_of(host).front(of(engine), gpus, engines))


def _server(
    spec: ModelSpec, gpu: str, setup: Setup, pools: tuple[str | None, str | None], longest: int
) -> Server | Disaggregated:
    """One engine, or `prefill` and `decode` pools as the options say them."""
    from pipewave.serving.disaggregated import Disaggregated, side_of
    from pipewave.serving.run import Server

    if not any(pools):
        return Server.of(spec, gpu, setup, longest)
    sides = (side_of(pools[0] or {}, "prefill"), side_of(pools[1] or {}, "decode"))
    return Disaggregated.of(spec, gpu, setup, sides, longest)


def _deployed(command: str | None, engine: str) -> Deployed | None:
    """The deployment of a server's own command line; its version as `--engine name:version` says it."""
    from pipewave.serving.server_command import read

    return read(command, engine.partition(":")[2] or None) if command else None


def _client_load(command: str | None) -> ClientLoad | None:
    """The traffic of a client's own command line."""
    from pipewave.serving.client_command import read

    return read(command) if command else None


def _model(model: str, output: int, ignore: Sequence[str]) -> ModelSpec:
    """The model as it runs for so many output tokens."""
    from pipewave.models import load
    from pipewave.serving.estimate import for_output

    return for_output(load(model, ignore=tuple(ignore)), output)


def _lengths(
    spec: ModelSpec, prompt: int, images: int, output: int, spread: float, ratio: float | None
) -> dict[str, Any]:
    """Mean tokens in and out, those of images among them, and their spread."""
    from pipewave.serving.estimate import image_tokens

    tokens = prompt + image_tokens(spec, images)
    if ratio is not None:
        return _below(tokens, max(output, 1), ratio)
    return {"input_len": tokens, "output_len": max(output, 1), "spread": spread}


def _options(
    kv_cache_dtype: str | None, moe_backend: str | None, eplb: str | None, speculative: str | None, lora: str | None
) -> dict[str, Any]:
    """What changes a step: the cache's type, what runs and balances the experts, drafts and adapters."""
    from pipewave.models.adapters import lora_of
    from pipewave.models.balance import balance_of
    from pipewave.serving.speculative import of as speculative_of

    return {
        "kv_dtype": cache_word(kv_cache_dtype),
        "moe_backend": moe_backend,
        "balance": balance_of(eplb) if eplb else None,
        "speculative": speculative_of(speculative) if speculative else None,
        "lora": lora_of(lora) if lora else None,
    }


def _below(prompt: int, output: int, ratio: float) -> dict[str, Any]:
    """Lengths from a share of the nominal ones up to them, as mean and spread."""
    from pipewave.serving.client_command import below

    mean, spread = below(prompt, ratio)
    return {"input_len": max(round(mean), 1), "output_len": max(round(below(output, ratio)[0]), 1), "spread": spread}


def _traffic(
    trace: str | None, dataset: str | None, requests: int | None, drawn: dict[str, Any], pace: dict[str, Any]
) -> Traffic:
    """Requests of a trace file, or as many as asked for drawn at random, of a dataset's lengths or of given ones."""
    from pipewave.serving.traffic import read_trace, synthetic

    if trace:
        return read_trace(trace, requests=requests, **pace)
    if dataset:
        from pipewave.serving import datasets

        more = {name: drawn[name] for name in ("seed", "burstiness")}
        return datasets.drawn(dataset, 1000 if requests is None else requests, **more, **pace)
    return synthetic(1000 if requests is None else requests, **drawn, **pace)


def _limits(tokens: int | None, requests: int | None, memory: float | None) -> dict[str, Any]:
    """The engine's own limits where they were given."""
    return {"max_num_batched_tokens": tokens, "max_num_seqs": requests, "gpu_memory_utilization": memory}


def _served(answer: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"schema_version": 1, **answer}))
        return
    from pipewave.cli.render import table

    rows = [_times(answer, name) for name in ("ttft", "tpot", "itl", "e2e") if f"{name}_mean_ms" in answer]
    title = f"{answer['model']} on {answer['gpus']} × {answer['gpu']}, {answer['engine']}"
    table(rows, title=title, droppable=(INTERVAL,))
    rest = {k: v for k, v in answer.items() if not k.endswith(("_ms", "_low", "_high"))}
    facts({k: v for k, v in rest.items() if k not in ("model", "gpu", "gpus", "engine", "notes")})
    for note in answer.get("notes", ()):
        print(f"note: {note}")


def _times(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A line of the table: the mean, its interval where there is one, and percentiles."""
    low, high = (answer.get(f"{name}_mean_ms_{side}") for side in ("low", "high"))
    interval = {} if low is None or high is None else {INTERVAL: f"{low:.4g} – {high:.4g}"}
    points = {f"p{p}": answer[f"{name}_p{p}_ms"] for p in (50, 90, 95, 99)}
    return {"": f"{name} ms", "mean": answer[f"{name}_mean_ms"], **interval, **points}
