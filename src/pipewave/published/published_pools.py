"""Public launches of disaggregated deployments: which pools of prefill and decode engines serve how many requests.

The launches are data (`pools.yaml`). A deployment that is only known to be disaggregated is answered as the
launch nearest to it: one for the same engine, and as far as there is one for the same model, GPU and type, lengths,
GPUs and requests in flight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput, CannotShard, DoesNotFit
from pipewave.files import packaged
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.fabric import joined
from pipewave.models import ModelSpec
from pipewave.models.attention_spec import Mixer, Mla
from pipewave.models.expert_parallel import Balance
from pipewave.models.kernels import Deployment
from pipewave.models.precision import NVFP4
from pipewave.models.shard import ALONE
from pipewave.models.spec import Layer
from pipewave.simulate.pools import Pools, Side, routed
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.traffic import Traffic
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.step import find_engine

FILE = Path(__file__).with_name("pools.yaml")
HANDOVER = FILE.with_name("handover.yaml")
LAUNCH = re.compile(r"(\d+) (\w+?)(\d+), (\d+) (\w+?)(\d+)(?: b(\d+|fill))?(?: mtp(\d))?(?: p(\d+))?")
# What tells a launch from a deployment, in units of a factor e of requests in flight.
OTHER_MODEL, OTHER_GPU, OTHER_DTYPE, OTHER_GPUS, GPUS_UNSAID = 3.0, 2.0, 1.0, 1.5, 0.2
OTHER_VERSION, ANY_VERSION, UNNAMED_VERSION = 1.0, 0.1, 0.2
LENGTHS = 2.0  # a factor e of tokens in, or out
NOT_MEANT = 0.5  # a launch for other numbers of requests
DRAFTS, DRAFTS_HERE = 1.0, 0.3  # drafting that was not asked for: a launch for other requests, for just these
SHORT = 0.12  # by which those sent are below nominal ones in public runs
FARTHEST = 6.0
# What launches of whole engines set, and those of pools do not: tokens held back, prompts that wait for company.
BARE: dict[str, Any] = {"stream_interval": 1, "recv_interval": 1, "prefill_wait_steps": 0, "wait_steps": 0}
TRIED = 8  # launches, from the nearest on, until one holds the model


def _side(workers: str, kind: str, gpus: str) -> Side:
    """A pool, from `2`, `dep` and `8`: attention data parallel (`dp`, `dep`) or tensor parallel, experts whole (`tep`,
    `dep`) or cut.
    """
    size, apart, whole = int(gpus), kind in ("dp", "dep"), kind in ("tep", "dep")
    return Side(int(workers), tp=1 if apart else size, ep=size if whole else 1, dp=size if apart else 1)


@dataclass(frozen=True, slots=True)
class Launch:
    """Pools, what they were launched for, and their limits. batch: requests of a decode rank (None: the engine's own
    limit; 0: the largest power of two that the requests fill). drafts: tokens drafted. prompt_tokens: of a prefill step
    and rank (None: the engine's default).
    """

    prefill: Side
    decode: Side
    lengths: tuple[int, int]
    flights: tuple[int, ...]
    batch: int | None
    drafts: int
    prompt_tokens: int | None
    of: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return self.prefill.gpus + self.decode.gpus

    def requests(self, flight: int) -> int | None:
        """Most requests of a decode rank, for so many in flight; a launch for other numbers has room for all."""
        if self.batch is None:
            return None
        share = math.log2(max(flight / (self.decode.workers * self.decode.dp), 1))
        if self.batch == 0:
            return 1 << int(share)
        return self.batch if flight in self.flights else max(self.batch, 1 << math.ceil(share))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A deployment that is to be matched: its facts, experts of a layer, engine and version ("": none given), mean
    tokens in and out, requests in flight, GPUs as a table gives them (of a decode engine, of all, or 1: not given),
    and whether tokens are drafted.
    """

    facts: DeploymentFacts
    experts: int
    engine: str
    version: str
    lengths: tuple[float, float]
    flight: int
    gpus: int = 1
    drafts: bool = False


def near(wanted: Wanted) -> list[Launch]:
    """Launches near a deployment, the nearest first; of equals the one with most prefill engines, for what is published
    of several launches is what did best.
    """
    ranked = [
        (_distance(one, wanted), -one.prefill.workers, i)
        for i, one in enumerate(_launches())
        if one.of["engine"] == wanted.engine
    ]
    return [_launches()[i] for distance, _, i in sorted(ranked) if distance < FARTHEST]


def _distance(launch: Launch, wanted: Wanted) -> float:
    of, facts = launch.of, wanted.facts
    model = (of["model_type"], of["experts"]) != (facts.model_type, wanted.experts)
    distance = OTHER_MODEL * model + OTHER_GPU * (of["gpu"] != facts.gpu) + OTHER_DTYPE * (of["dtype"] != facts.dtype)
    if model and wanted.experts == 0:
        return math.inf  # dense models are cut otherwise
    off = (abs(math.log(a / b)) for a, b in zip(launch.lengths, wanted.lengths, strict=True))
    distance += LENGTHS * sum(max(each - SHORT, 0.0) for each in off)
    meant = wanted.flight in launch.flights
    flight = 0.0 if meant else NOT_MEANT + min(abs(math.log(wanted.flight / one)) for one in launch.flights)
    distance += flight + _version(of, wanted.version) + OTHER_GPUS * _other_gpus(launch, wanted.gpus)
    if bool(launch.drafts) != wanted.drafts:
        distance += DRAFTS_HERE if meant and not wanted.drafts else DRAFTS
    return float(distance)


def _version(of: Mapping[str, Any], given: str) -> float:
    """`unnamed` launches are those of runs that kept no version."""
    meant = of.get("version", "")
    if not given:
        return 0.0 if of.get("unnamed") else UNNAMED_VERSION if meant else ANY_VERSION
    return OTHER_VERSION * (meant != given) if meant else ANY_VERSION


def _other_gpus(launch: Launch, gpus: int) -> float:
    """How far GPUs as tables give them are from a launch's: of a decode engine or of all; one GPU is what tables say
    that know of tensor ranks alone, or of nothing.
    """
    if gpus in (launch.decode.tp * launch.decode.dp, launch.gpus) or (gpus == 1 and launch.decode.dp > 1):
        return 0.0
    return GPUS_UNSAID if gpus == 1 else 1.0


@cache
def _launches() -> tuple[Launch, ...]:
    return tuple(
        _launch(line, (int(tokens[0]), int(tokens[1])), flights, group["of"])
        for group in packaged.yaml(FILE)
        for lengths, lines in group.items()
        if lengths != "of"
        for tokens in [lengths.split("/")]
        for line, flights in lines.items()
    )


def _launch(line: str, lengths: tuple[int, int], flights: list[int], of: Mapping[str, Any]) -> Launch:
    found = LAUNCH.fullmatch(line)
    if found is None:
        raise BadInput(f"{FILE.name}: {line!r} is no launch", field="path")
    parts = found.groups()
    decode = _side(*parts[3:6])
    times = decode.workers if of.get("each") else 1
    batch = None if parts[6] is None else 0 if parts[6] == "fill" else int(parts[6])
    meant = tuple(times * flight for flight in flights)
    prompts = int(parts[8]) if parts[8] else of.get("prompt_tokens")
    return Launch(_side(*parts[:3]), decode, lengths, meant, batch, int(parts[7] or 0), prompts, of)


def handover_ms(engine: str) -> float:
    """Milliseconds to hand a request from a prefill to a decode engine, beside its cache's way over the link."""
    return float(packaged.shared(HANDOVER)["ms"][engine])


def send_ms(engine: str, fabric: str, ranks: str) -> float:
    """Milliseconds that it takes a prefill rank's scheduler to send a prompt's cache over a fabric (`nvlink`,
    `network`) from ranks of a kind (`data_parallel`, `tensor`); 0 where it does not wait for it.
    """
    return float(packaged.shared(HANDOVER)["send_ms"].get(engine, {}).get(fabric, {}).get(ranks, 0.0))


def launched(
    spec: ModelSpec, gpu: str | GPU, setup: Setup, version: str, gpus_given: int, traffic: Traffic
) -> tuple[Pools, str] | None:
    """The pools of the nearest published launch for some traffic, and a note on them; None where none is near or
    can hold the model.

    version: as the deployment names it; gpus_given: GPUs that a table gives for the deployment. A pool's share of
    memory is the launch's: a deployment's one share cannot say which pool it is of.
    """
    lengths = float(traffic.input_len.mean()), float(traffic.output_len.mean())
    flight = traffic.concurrency or len(traffic)
    facts = Deployment(spec, ALONE).facts(find_gpu(gpu))
    engine = find_engine(setup.engine).name
    drafts = setup.speculative is not None
    setup = routed(setup)
    wanted = Wanted(facts, experts_of(spec), engine, version, lengths, flight, gpus_given, drafts)
    for launch in near(wanted)[:TRIED]:
        try:
            served = _weights(spec, launch, facts.dtype)
            first = Server.of(served, gpu, _prefill(setup, launch, spec), traffic.longest)
            then = Server.of(served, gpu, _decode(setup, launch, spec, flight), traffic.longest)
        except (DoesNotFit, CannotShard):
            continue  # a launch of a smaller model, or one that is cut otherwise
        maps = ", attention's output maps in NVFP4" if served is not spec else ""
        return _pools(launch, gpu, engine, first, then), _note(launch) + maps
    return None


def _pools(launch: Launch, gpu: str | GPU, engine: str, first: Server, then: Server) -> Pools:
    """Prefill and decode engines as a launch joins them."""
    crossed = "nvlink" if launch.gpus <= joined(find_gpu(gpu)) else "network"
    fabric = crossed, "data_parallel" if launch.prefill.dp > 1 else "tensor"  # and the ranks that send caches
    late = packaged.shared(HANDOVER)["late"].get(engine, {})
    return Pools(
        (first, then),
        (launch.prefill.workers, launch.decode.workers),
        handover_s=1e-3 * handover_ms(engine),
        send_s=1e-3 * send_ms(engine, *fabric),
        handoff_delay_share=float(late.get(first.setup.exchange or "", late.get("other", 0.0))),
    )


def experts_of(model: ModelSpec) -> int:
    """Routed experts of a layer; 0 of a dense model."""
    return max((moe.experts for layer, _ in model.grouped() for moe in layer.moes), default=0)


def _weights(model: ModelSpec, launch: Launch, dtype: str) -> ModelSpec:
    """The model as the launch's checkpoint holds it: attention's output maps in the experts' type, where the launch
    says so and the model's are in 16 bits. dtype: of the model's experts.
    """
    if launch.of.get("output_maps") != dtype or dtype != NVFP4.dtype or launch.of["model_type"] != model.model_type:
        return model
    known: dict[int, Layer] = {}  # equal layers stay one object
    for layer in model.layers:
        known.setdefault(id(layer), replace(layer, mixers=tuple(map(_output_narrowed, layer.mixers))))
    return replace(model, layers=tuple(known[id(layer)] for layer in model.layers))


def _output_narrowed(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, Mla) or not mixer.out.precision.full:
        return mixer
    return replace(mixer, out=replace(mixer.out, precision=NVFP4))


def _prefill(setup: Setup, launch: Launch, model: ModelSpec) -> Setup:
    """Prefill engines run step after step, without overlap (disable_overlap_scheduler of the launches)."""
    return replace(
        _cut(setup, launch, launch.prefill, model, launch.of.get("prompt_exchange") or launch.of.get("exchange")),
        max_num_seqs=None,
        max_num_batched_tokens=launch.prompt_tokens,
        speculative=None,
        overlaps=False,
    )


def _decode(setup: Setup, launch: Launch, model: ModelSpec, flight: int) -> Setup:
    drafting = setup.speculative
    if launch.drafts and drafting is None:
        drafting = speculative_of({"method": "mtp", "tokens": launch.drafts})
    graphs = launch.of.get("only_graph", setup.graph_limit)
    own = find_engine(setup.engine).scheduler.max_requests if drafting else None
    most = min(filter(None, (setup.max_num_seqs, launch.requests(flight))), default=own)
    return replace(
        _cut(setup, launch, launch.decode, model, launch.of.get("exchange")),
        max_num_seqs=most,
        max_num_batched_tokens=None,
        speculative=drafting,
        graph_limit=graphs if launch.decode.dp > 1 else setup.graph_limit,
        graph_step=graphs if launch.decode.dp > 1 else None,
    )


def _cut(setup: Setup, launch: Launch, side: Side, model: ModelSpec, exchange: str | None) -> Setup:
    """One engine of a pool. Expert parts that do not divide the experts hold copies of some."""
    missing = -experts_of(model) % side.ep
    return replace(
        setup,
        **BARE,
        tp=side.tp,
        ep=side.ep,
        dp=side.dp,
        replicas=1,
        balance=Balance(missing, "even") if missing else setup.balance,
        kv_dtype=launch.of.get("kv_dtype") or setup.kv_dtype,
        gpu_memory_utilization=launch.of.get("memory_fraction") or setup.gpu_memory_utilization,
        message_tokens=launch.of["stream_interval"],
        exchange=exchange if side.dp > 1 else None,
        gemm_backend=None if side.dp > 1 and exchange in launch.of.get("plain", ()) else setup.gemm_backend,
    )


def _note(launch: Launch) -> str:
    drafts = f", {launch.drafts} tokens drafted" if launch.drafts else ""
    rank = f", {launch.batch} requests a rank" if launch.batch else ""
    flights = " to ".join(map(str, dict.fromkeys((min(launch.flights), max(launch.flights)))))
    return (
        f"disaggregated, pools not given: as launched in public for {launch.of['model']} on {launch.of['gpu']} at "
        f"{flights} requests in flight: prefill {_words(launch.prefill)}, decode {_words(launch.decode)}{rank}{drafts}"
    )


def _words(side: Side) -> str:
    kind = f"dp {side.dp}" if side.dp > 1 else f"tp {side.tp}"
    return f"{side.workers} engine{'s' * (side.workers > 1)} of {kind}{', whole experts' if side.ep > 1 else ''}"
