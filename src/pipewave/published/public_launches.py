"""Public launches of disaggregated deployments: which pools of prefill and decode engines serve how many requests.

The launches are data (`pools.yaml`). A deployment that is only known to be disaggregated is answered as the
launch nearest to it: one for the same engine, and as far as there is one for the same model, GPU and type, lengths,
GPUs and requests in flight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.software.engine_parts import DeploymentFacts

FILE = Path(__file__).with_name("pools.yaml")
DYNAMO, HANDOVER = FILE.with_name("dynamo.yaml"), FILE.with_name("handover.yaml")
LAUNCH = re.compile(r"(\d+) (\w+?)(\d+), (\d+) (\w+?)(\d+)(?: b(\d+|fill))?(?: mtp(\d))?(?: p(\d+))?")
# What tells a launch from a deployment, in units of a factor e of requests in flight.
MODEL, GPU, DTYPE, GPUS, GPUS_UNSAID = 3.0, 2.0, 1.0, 1.5, 0.2
OTHER_VERSION, ANY_VERSION, UNNAMED_VERSION = 1.0, 0.1, 0.2
LENGTHS = 2.0  # a factor e of tokens in, or out
NOT_MEANT = 0.5  # a launch for other numbers of requests
DRAFTS, DRAFTS_HERE = 1.0, 0.3  # drafting that was not asked for: a launch for other requests, for just these
SHORT = 0.12
FARTHEST = 6.0


@dataclass(frozen=True, slots=True)
class Engines:
    """A pool: `workers` engines of `gpus` GPUs; attention data parallel or tensor parallel, experts whole or cut."""

    workers: int
    gpus: int
    data_parallel: bool
    whole_experts: bool

    @classmethod
    def read(cls, workers: str, kind: str, gpus: str) -> Engines:
        """From `2`, `dep` and `8`."""
        return cls(int(workers), int(gpus), kind in ("dp", "dep"), kind in ("tep", "dep"))

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Tensor, expert and attention data parallelism of an engine."""
        ep = self.gpus if self.whole_experts else 1
        return (1, ep, self.gpus) if self.data_parallel else (self.gpus, ep, 1)

    def __str__(self) -> str:
        kind = f"{'dp' if self.data_parallel else 'tp'} {self.gpus}{', whole experts' if self.whole_experts else ''}"
        return f"{self.workers} engine{'s' * (self.workers > 1)} of {kind}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Pools, what they were launched for, and their limits. batch: requests of a decode rank (None: the engine's own
    limit; 0: the largest power of two that the requests fill). drafts: tokens drafted. prompt_tokens: of a prefill step
    and rank (None: the engine's default)."""

    prefill: Engines
    decode: Engines
    lengths: tuple[int, int]
    flights: tuple[int, ...]
    batch: int | None
    drafts: int
    prompt_tokens: int | None
    of: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return sum(pool.workers * pool.gpus for pool in (self.prefill, self.decode))

    def requests(self, flight: int) -> int | None:
        """Most requests of a decode rank, for so many in flight; a launch for other numbers has room for all."""
        if self.batch is None:
            return None
        ranks = self.decode.workers * (self.decode.gpus if self.decode.data_parallel else 1)
        share = math.log2(max(flight / ranks, 1))
        if self.batch == 0:
            return 1 << int(share)
        return self.batch if flight in self.flights else max(self.batch, 1 << math.ceil(share))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A deployment that is to be matched: its facts, experts of a layer, engine and version ("": none given), mean
    tokens in and out, requests in flight, GPUs as a table gives them (of a decode engine, of all, or 1: not given),
    and whether tokens are drafted."""

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
    of several launches is what did best."""
    ranked = [
        (_distance(one, wanted), -one.prefill.workers, i)
        for i, one in enumerate(_launches())
        if one.of["engine"] == wanted.engine
    ]
    return [_launches()[i] for distance, _, i in sorted(ranked) if distance < FARTHEST]


def _distance(launch: Launch, wanted: Wanted) -> float:
    of, facts = launch.of, wanted.facts
    model = (of["model_type"], of["experts"]) != (facts.model_type, wanted.experts)
    distance = MODEL * model + GPU * (of["gpu"] != facts.gpu) + DTYPE * (of["dtype"] != facts.dtype)
    if model and wanted.experts == 0:
        return math.inf  # dense models are cut otherwise
    distance += LENGTHS * sum(_off(a / b) for a, b in zip(launch.lengths, wanted.lengths, strict=True))
    meant = wanted.flight in launch.flights
    flight = 0.0 if meant else NOT_MEANT + min(abs(math.log(wanted.flight / one)) for one in launch.flights)
    distance += flight + _version(of, wanted.version) + GPUS * _other_gpus(launch, wanted.gpus)
    if bool(launch.drafts) != wanted.drafts:
        distance += DRAFTS_HERE if meant and not wanted.drafts else DRAFTS
    return float(distance)


def _off(ratio: float) -> float:
    """How far nominal tokens are from the mean of those sent, which is a tenth below in public runs."""
    return max(abs(math.log(ratio)) - SHORT, 0.0)


def _version(of: Mapping[str, Any], given: str) -> float:
    """`unnamed` launches are those of runs that kept no version."""
    meant = of.get("version", "")
    if not given and of.get("unnamed"):
        return 0.0
    if not meant:
        return ANY_VERSION
    return UNNAMED_VERSION if not given else OTHER_VERSION * (meant != given)


def _other_gpus(launch: Launch, gpus: int) -> float:
    """How far GPUs as tables give them are from a launch's: of a decode engine or of all; one GPU is what tables say
    that know of tensor ranks alone, or of nothing."""
    if gpus in (launch.decode.gpus, launch.gpus) or (gpus == 1 and launch.decode.data_parallel):
        return 0.0
    return GPUS_UNSAID if gpus == 1 else 1.0


@cache
def _launches() -> tuple[Launch, ...]:
    return tuple(launch for group in packaged.yaml(FILE) for launch in _group(group))


def _group(group: Mapping[str, Any]) -> Iterator[Launch]:
    for lengths, lines in group.items():
        if lengths != "of":
            tokens_in, _, tokens_out = lengths.partition("/")
            for line, flights in lines.items():
                yield _launch(line, (int(tokens_in), int(tokens_out)), flights, group["of"])


def _launch(line: str, lengths: tuple[int, int], flights: list[int], of: Mapping[str, Any]) -> Launch:
    found = LAUNCH.fullmatch(line)
    if found is None:
        raise BadInput(f"{FILE.name}: {line!r} is no launch", field="path")
    parts = found.groups()
    decode = Engines.read(*parts[3:6])
    times = decode.workers if of.get("each") else 1
    batch = None if parts[6] is None else 0 if parts[6] == "fill" else int(parts[6])
    meant = tuple(times * flight for flight in flights)
    prompts = int(parts[8]) if parts[8] else of.get("prompt_tokens")
    return Launch(Engines.read(*parts[:3]), decode, lengths, meant, batch, int(parts[7] or 0), prompts, of)


@cache
def handover_ms(engine: str) -> float:
    """Milliseconds that a request takes from a prefill to a decode engine, beside its cache's way over the link."""
    return float(packaged.yaml(HANDOVER)["ms"][engine])


@cache
def send_ms(engine: str, fabric: str, ranks: str) -> float:
    """Milliseconds that it takes a prefill rank's scheduler to send a prompt's cache over a fabric (`nvlink`,
    `network`) from ranks of a kind (`data_parallel`, `tensor`); 0 where it does not wait for it."""
    return float(packaged.yaml(HANDOVER)["send_ms"].get(engine, {}).get(fabric, {}).get(ranks, 0.0))


@cache
def handoff_delay_share(engine: str, exchange: str = "") -> float:
    """Share of a prefill engine's next step that passes before it sends the caches of the one before."""
    found = packaged.yaml(HANDOVER)["late"].get(engine, {})
    return float(found.get(exchange, found.get("other", 0.0)))


def engine_of_dynamo(version: str) -> str:
    """The TensorRT-LLM of a version of Dynamo, the last before it where it has no line; empty below the first."""
    known = {_order(name): engine for name, engine in packaged.yaml(DYNAMO)["trtllm"].items()}
    older = [order for order in known if order <= _order(version)]
    return known[max(older)] if older else ""


def _order(version: str) -> tuple[int, ...]:
    """Numbers of a version; candidates and development builds count as the release they lead to."""
    base, _, post = version.partition(".post")
    numbers = re.findall(r"\d+", re.split(r"-|rc", base)[0])
    return (*map(int, numbers), int(post) if post.isdigit() else 0)
