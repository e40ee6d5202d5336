"""`pipewave serve`: requests over time, of one deployment or of every line of a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pipewave.cli import options as opt
from pipewave.cli.command import Option
from pipewave.cli.options import Number, Text
from pipewave.cli.streams import answer_cases, bar, give, waiting
from pipewave.errors import BadInput, MissingField
from pipewave.version import VERSION

if TYPE_CHECKING:
    from pipewave.models import ModelSpec
    from pipewave.published.answers import Served
    from pipewave.published.client_command import ClientLoad
    from pipewave.published.find_rate import FoundRate
    from pipewave.published.server_command import Pasted
    from pipewave.published.unstated import Stated
    from pipewave.simulate.report import Limit
    from pipewave.simulate.traffic import Traffic

LIMIT = "ms; with --find-rate on the mean, or p99=2000 on a percentile over requests."
MEMORY = ("--gpu-memory-utilization", "--mem-fraction-static")
ALL_TO_ALL = ("--all2all-backend", "--moe-a2a-backend")
OVERLAP = ("--enable-two-batch-overlap", "--enable-dbo")
PREFIX_CACHE = ("--enable-prefix-caching/--no-enable-prefix-caching", " /--disable-radix-cache")
BESIDE_COMMAND = ("engine", "host", "power_limit", "steady")  # options that a pasted line leaves to us
BESIDE_TRACE = ("trace", "rate", "concurrency", "requests", "block_tokens", "prefix_share", "steady", "seed")
FOUND = ("rate", "concurrency", "requests")  # what --find-rate finds, or needs itself
NO_HOST = "none"  # nothing stands before the engine


@dataclass(frozen=True, slots=True)
class CommandLines:
    """Command lines of others, instead of options."""

    from_command: Annotated[Text, Option("--from-command", help="A server's own command line, quoted.")] = None
    client: Annotated[Text, Option("--client", help="A benchmark's: vllm bench serve, aiperf, guidellm ...")] = None

    def check_alone(self, requests: Requests, *deployment: Any) -> None:
        """Raises BadInput for options beside a pasted line that says the same."""
        if self.from_command:
            opt.refuse_given("say it in the command line of --from-command", BESIDE_COMMAND, *deployment)
        if self.client:
            opt.refuse_given("say it in the command line of --client", BESIDE_COMMAND, requests)

    def read(self, model: str | None, engine: str | None) -> tuple[Pasted | None, ClientLoad | None]:
        """The server's deployment, with the version of `--engine` and `--model`; the client's traffic. BadInput."""
        from pipewave.published import client_command, server_command
        from pipewave.software.engine import parts

        name, version = parts(engine or "")
        deployed = server_command.read(self.from_command, version or None, model) if self.from_command else None
        if deployed and name not in ("", deployed.engine):
            raise BadInput(f"--engine {engine}: --from-command starts {deployed.engine}", field="engine")
        return deployed, client_command.read(self.client) if self.client else None


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests: how many, how long, and when they come."""

    isl: opt.Isl = 1024
    osl: opt.Osl = 128
    images: opt.Images = 0
    requests: Annotated[int | None, Option("--requests", "--num-prompts", help="How many requests.")] = None
    rate: Annotated[Number, Option("--request-rate", "--rate", "--qps", help="Requests a second; inf: at once.")] = None
    concurrency: Annotated[int | None, Option("--concurrency", "--max-concurrency", help="In flight.")] = None
    burstiness: Annotated[float, Option(help="1 = Poisson; smaller is burstier.")] = 1.0
    spread: Annotated[float, Option("--spread", help="Lengths are uniform within ± this share.")] = 0.0
    ratio: Annotated[
        Number,
        Option("--random-range-ratio", help="Lengths from this share of isl and osl up, as InferenceX means it."),
    ] = None
    seed: Annotated[int, Option(help="Of the random requests.")] = 0
    steady: Annotated[bool, Option("--steady", help="Figures of the run's middle, where its load is steady.")] = False
    dataset: Annotated[Text, Option("--dataset", "--dataset-name", help="Lengths of recorded ones: sharegpt.")] = None
    trace: Annotated[
        Text, Option("--trace", "--arrivals", help="Arrivals, or sessions of turns: CSV, JSON, parquet.")
    ] = None
    block_tokens: Annotated[int, Option("--block-tokens", min=1, help="Of a block of --trace's hash_ids.")] = 512
    prefix_share: Annotated[float, Option("--prefix-share", help="Share of every prompt that the cache holds.")] = 0.0

    def traffic(self, spec: ModelSpec) -> Traffic:
        """Requests of a trace file, or as many as asked for, drawn with a dataset's lengths or with given ones."""
        from pipewave.simulate.arrival_files import read_trace
        from pipewave.simulate.traffic import drawn_from, synthetic, usual_count

        pace: dict[str, Any] = {"rate": self.rate, "concurrency": self.concurrency}
        if self.trace:
            opt.refuse_given("the file of --trace says how long requests are and when they come", BESIDE_TRACE, self)
            found = read_trace(self.trace, requests=self.requests, block_tokens=self.block_tokens, **pace)
        else:
            pace |= {"rate": None if self.rate == math.inf else self.rate, "seed": self.seed}
            pace["burstiness"] = self.burstiness
            count = usual_count(self.concurrency) if self.requests is None else self.requests
            if self.dataset:
                opt.refuse_given("lengths are those of --dataset", (*BESIDE_TRACE, "dataset", "burstiness"), self)
            found = drawn_from(self.dataset, count, **pace) if self.dataset else synthetic(
                count, **self._lengths(spec), **pace)  # fmt: skip
        return found.with_prefix(self.prefix_share) if self.prefix_share else found

    def _lengths(self, spec: ModelSpec) -> dict[str, Any]:
        """Mean tokens in and out, those of images among them, and their spread."""
        from pipewave.published.client_command import below
        from pipewave.simulate.estimate import image_tokens

        prompt, output = self.isl + image_tokens(spec, self.images), max(self.osl, 1)
        if self.ratio is None:
            return {"input_len": prompt, "output_len": output, "spread": self.spread}
        (mean, spread), later = below(prompt, self.ratio), below(output, self.ratio)[0]
        return {"input_len": max(round(mean), 1), "output_len": max(round(later), 1), "spread": spread}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine and its settings."""

    engine: Annotated[
        Text, Option(help="vllm, sglang, trtllm; with a version: sglang:0.5.9. Else the newest vLLM.")
    ] = None
    max_num_batched_tokens: opt.StepTokens = None
    max_num_seqs: Annotated[int | None, Option(*opt.SEQUENCES, help="Requests at once.")] = None
    gpu_memory_utilization: Annotated[Number, Option(*MEMORY, help="Share of memory.")] = None
    kv_dtype: opt.KvDtype = None
    quantize: opt.Quantize = None
    moe_backend: opt.Backend = None
    speculative: opt.Speculation = None
    lora: Annotated[Text, Option("--lora", help="Adapters: rank=16,adapters=4.")] = None
    exchange: Annotated[Text, Option(*ALL_TO_ALL, help="How tokens reach other ranks' experts: deepep, ...")] = None
    two_batch: Annotated[bool, Option(*OVERLAP, help="The exchange overlaps with kernels.")] = False
    balance: Annotated[Text, Option("--eplb", help="Experts' copies: redundant=32,loads=FILE or power_law_1.2.")] = None
    dcp: Annotated[int, Option("--dcp", "--decode-context-parallel-size", "-dcp", help="GPUs that part a cache.")] = 1
    kv_offload_gib: Annotated[float, Option("--kv-offload-gib", help="Host memory a GPU for blocks of prompts.")] = 0.0
    prefix_cache: Annotated[
        bool | None, Option(*PREFIX_CACHE, help="Cache the beginnings of prompts; else as the engine does.")
    ] = None

    def given(self) -> dict[str, Any]:
        """The fields of `Setup` that these options set."""
        from pipewave.calls.dtypes import cache_type
        from pipewave.models.expert_parallel import balance_of
        from pipewave.models.lora_and_drafts import lora_of
        from pipewave.simulate.speculative import of as speculative_of

        said = {name: value for name, value in asdict(self).items() if name not in ("engine", "quantize")}
        words = {"kv_dtype": cache_type, "speculative": speculative_of, "lora": lora_of, "balance": balance_of}
        return said | {name: read(said[name]) for name, read in words.items() if said[name] is not None}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines side by side, pools and host."""

    replicas: Annotated[int, Option("--replicas", help="Engines side by side.")] = 1
    prefill: Annotated[Text, Option("--prefill", help="Engines of prompts apart: workers=2,tp=4.")] = None
    decode: Annotated[Text, Option("--decode", help="Those of later tokens: workers=1,dp=8,ep=8.")] = None
    group: Annotated[int | None, Option("--gpus", help="Of a replica, where degrees count some twice.")] = None
    host: Annotated[Text, Option("--host", help="cores=16,speed=0.8,api_servers=2; none: in-process.")] = None
    power_limit: opt.PowerLimit = None

    def stated(self, spec: ModelSpec, gpu: str, split: opt.Split, engine: EngineOptions, images: int) -> Stated:
        """The deployment as the options state it."""
        from pipewave.published.unstated import Stated
        from pipewave.simulate.pools import side_of
        from pipewave.simulate.setup import Setup

        setup = Setup(replicas=self.replicas, images=images, **asdict(split), **engine.given())
        said = frozenset(["kv_dtype"] if engine.kv_dtype else [])
        apart = self.prefill or self.decode
        pools = (side_of(self.prefill or {}, "prefill"), side_of(self.decode or {}, "decode")) if apart else None
        return Stated(spec, gpu, setup, engine.engine, said=said, gpus=self.group, pools=pools)

    def hosted(self, stated: Stated) -> Stated:
        """The deployment behind its engine's front end on the host that is described; called from its own process on
        `none`. Its boards under their power limit.
        """
        from pipewave.gpus import find
        from pipewave.physics.power import limited
        from pipewave.simulate.pools import Side
        from pipewave.software.front import INSIDE, host_of, of

        gpu, setup = limited(find(stated.gpu), self.power_limit), stated.setup
        front = INSIDE if self.host == NO_HOST else setup.front
        if self.host not in (None, NO_HOST):
            sides = stated.sides() or (Side(setup.replicas, setup.tp, setup.pp, setup.ep, setup.dp),)
            world, schedulers = sum(side.gpus for side in sides), sum(side.workers * side.dp for side in sides)
            gpus = min(world, gpu.gpus_per_node)
            front = host_of(self.host).front(of(stated.named[0]), gpus, max(schedulers * gpus // world, 1))
        return replace(stated, gpu=gpu, setup=replace(setup, front=front))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that requests are held to."""

    ttft: Annotated[Text, Option(help=f"Limit on time to first token: {LIMIT}")] = None
    tpot: Annotated[Text, Option(help=f"Limit on time per later token: {LIMIT}")] = None
    request_latency: Annotated[Text, Option("--request-latency", help=f"Limit end to end: {LIMIT}")] = None

    def given(self, load: ClientLoad | None = None) -> tuple[Limit, ...]:
        """The limits as given, or those of a pasted client where none are."""
        from pipewave.simulate.report import limits_of

        given = limits_of(ttft_ms=self.ttft, tpot_ms=self.tpot, e2e_ms=self.request_latency)
        return given or (load.limits if load else ())


@dataclass(frozen=True, slots=True)
class Files:
    """Options.

    Files: of deployments that are answered instead of one, and what a run is written to beside its answer.
    """

    cases: Annotated[Text, Option(help="JSON-lines file of deployments instead; - is standard input.")] = None
    out: Annotated[str, Option(help="Where answers to --cases go; - is standard output.")] = "-"
    resume: Annotated[bool, Option("--resume", help="Of --cases: go on where an interrupted run stopped.")] = False
    executor: Annotated[
        Text, Option(help="Of --cases: processes://N or dask://HOST:PORT; else one process a core.")
    ] = None
    trace_out: Annotated[Text, Option("--trace-out", help="Write a Perfetto trace here.")] = None
    aiperf: Annotated[Text, Option("--aiperf", help="Write AIPerf's result files into this folder.")] = None

    def answer(self, cases: str) -> int:
        """Answer a file of cases; 0 = all answered, 1 = some in error. Raises BadFile and BadInput."""
        from pipewave.published.stream import answer_stream, one_a_core
        from pipewave.published.stream import executor as open_executor
        from pipewave.told.answers import answer

        with open_executor(self.executor or one_a_core()) as pool, bar("deployments") as tell:
            work = partial(answer_stream, executor=pool, progress=tell, ask=answer)
            return answer_cases(cases, self.out, work, resume=self.resume, asked=["serve", VERSION])

    def write(self, found: Served, *inputs: str | None) -> None:
        """Write what is asked for of a run, its trace in none of the inputs' place. Raises BadInput."""
        if self.trace_out:
            from pipewave.export.runs import write_perfetto
            from pipewave.files.whole import distinct

            distinct(self.trace_out, *inputs, field="trace_out")
            write_perfetto(self.trace_out, found.record, found.traffic)
        if self.aiperf:
            from pipewave.export.runs import write_aiperf

            write_aiperf(self.aiperf, found.record, found.traffic, found.answer)


def serve_command(
    requests: Requests,
    split: opt.Split,
    engine: EngineOptions,
    fleet: Fleet,
    limits: Limits,
    bill: opt.Bill,
    pasted: CommandLines,
    model: opt.ModelName = None,
    gpu: opt.GpuName = None,
    *,
    files: Files,
    interval: Annotated[bool, Option(help="The 90 % interval of every time.")] = True,
    find_rate: Annotated[
        bool, Option("--find-rate", help="The largest rate within --ttft, --tpot and --request-latency instead.")
    ] = False,
    ignore: opt.Ignore = (),
    told: opt.ToldRuns = (),
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> int:
    """Requests over time: latency percentiles, throughput and goodput of a deployment, or of every line of a file.

    `pipewave serve --model Llama-3.1-8B --gpu H200 --request-rate 10 --ttft 500 --tpot 30`

    `pipewave serve --model Llama-3.1-8B --gpu H200 --find-rate --ttft p99=1000 --tpot 30`

    `pipewave serve --model DeepSeek-V3 --gpu H200 --dp 8 --ep 8 --speculative method=mtp,tokens=1`

    `pipewave serve --model Llama-3.1-8B --gpu H200 --prefill workers=2 --decode tp=2 --concurrency 32`

    `pipewave serve --gpu H200 --from-command 'vllm serve Qwen/Qwen3-8B -tp 2' --client 'vllm bench serve'`
    """
    if files.cases is not None:
        opt.refuse_given("say it in each case", (), requests, split, engine, fleet, limits, bill, pasted)
        said = {"model": model, "gpu": gpu, "told": told, "find-rate": find_rate, "no-interval": not interval}
        opt.refuse_said("say it in each case", said | {"ignore-field": ignore})
        return files.answer(files.cases)
    opt.refuse_given("it is of --cases", ("trace_out", "aiperf"), files)
    from pipewave.models.load import load_as
    from pipewave.simulate.estimate import for_output

    pasted.check_alone(requests, split, engine, fleet)
    server, client = pasted.read(model, engine.engine)
    source = server.spec if server else model
    if gpu is None or source is None:
        option = "model" if gpu else "gpu"
        raise MissingField(f"missing option '--{option}': name one, or give --cases FILE", field=option)
    spec = for_output(load_as(source, engine.quantize, engine.engine, tuple(ignore)), requests.osl)
    asked = server.stated(spec, gpu) if server else fleet.stated(spec, gpu, split, engine, requests.images)
    stated, goals = fleet.hosted(asked), limits.given(client)
    if find_rate:
        opt.refuse_given("--find-rate answers without it", (), bill, files)
        opt.refuse_said("--find-rate answers without it", {"told": told, "no-interval": not interval})
        most = _largest_rate(stated, goals, requests, client=client)
        give(most.to_dict(), as_json, verbose=verbose)
        return 0
    traffic = client.traffic if client else requests.traffic(spec)
    how = {"steady": requests.steady, "interval": interval, "keep_steps": bool(files.trace_out)}
    found = _served(stated, traffic, goals, how)
    files.write(found, requests.trace, model, gpu)
    read = [note for one in (server, client) if one for note in one.notes]  # out of pasted command lines
    answer: dict[str, Any] = found.to_dict() | {"notes": [*read, *found.answer["notes"]]}
    if told:
        from pipewave.told.answers import corrected_run
        from pipewave.told.tell import runs_of

        case = {"model": model or str(spec.name), "gpu": gpu, "engine": engine.engine, "quantize": engine.quantize}
        answer = corrected_run(answer, stated, found.traffic, case | asdict(split), runs_of(told))
    give(bill.added(answer, gpu), as_json, verbose=verbose)
    return 0


def _served(stated: Stated, traffic: Traffic, goals: tuple[Limit, ...], how: Mapping[str, bool]) -> Served:
    """The run of these requests, under a line that says what it waits for. `how`: options of `served`."""
    from pipewave.published.answers import deploy, served

    with waiting(f"{len(traffic):,} requests to {stated.model.name}"):
        return served(deploy(stated, traffic), goals, **how)


def _largest_rate(stated: Stated, goals: tuple[Limit, ...], requests: Requests, **others: Any) -> FoundRate:
    """The largest rate within the limits. Raises BadInput where a rate, or what it follows from, is given."""
    from pipewave.published.answers import deploy
    from pipewave.published.find_rate import find_rate

    given = {name: getattr(requests, name) for name in FOUND} | others
    if said := next((name for name, value in given.items() if value is not None), ""):
        raise BadInput(f"--find-rate looks for a rate of --isl and --osl: leave out --{said}", field=said)
    sent = partial(replace, requests)
    with waiting(f"the largest rate of {stated.model.name}"):
        return find_rate(lambda rate, n: deploy(stated, sent(rate=rate, requests=n).traffic(stated.model)), goals)
