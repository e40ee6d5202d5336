"""Prefill and decode engines apart (xPyD): two pools with a split of their own each, and caches handed from one to the
other.

A prompt runs on the least loaded prefill engine, which makes the first token; its cache then moves, each rank sending
or taking its own part over its own link, and the least loaded decode engine sends that token, once it has room for the
request, and makes the rest. Transfers overlap with steps and do not queue for links. Where a prefill engine's scheduler
sends the caches of a step itself, one prompt after the other, its next step waits; where it schedules ahead, it sends
them once the next step is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput, UnknownField, meant_or_known
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.fabric import joined
from pipewave.models import ModelSpec
from pipewave.prediction.notes import merged
from pipewave.simulate.interval import Uncertainty
from pipewave.simulate.kv_budget import traffic_notes
from pipewave.simulate.power import Boards
from pipewave.simulate.report import ANY, Sla, summary
from pipewave.simulate.server import HANDOVER_S, Served, Server, link_gbps
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import MOST_KEPT, MOST_STEPS, Record, Simulation, Timer
from pipewave.simulate.step_grids import Pieces, RankBatch, fresh
from pipewave.simulate.traffic import Traffic
from pipewave.step.memory import cache_bytes

LARGEST = 4096
FRONT_THREADS = 16  # Dynamo's front end, in Rust, runs on all cores; as many requests at once are assumed


@dataclass(frozen=True, slots=True)
class Side:
    """One pool: `workers` equal engines, each split and limited as it says; None as the other settings say."""

    workers: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu: str | GPU | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.workers * self.tp * self.pp * self.dp

    def of(self, setup: Setup) -> Setup:
        """A set-up with this side's split and limits."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("workers", "gpu")}
        return replace(setup, replicas=1, prefill=0, decode=0, **{k: v for k, v in named.items() if v is not None})


def side_of(given: Any, name: str) -> Side:
    """From a mapping or `workers=2,tp=4`. Raises UnknownField or BadInput."""
    if isinstance(given, Side):
        return given
    said = _words(given, name) if isinstance(given, str) else given
    if not isinstance(said, Mapping):
        raise BadInput(f"{name} = {given!r}: give workers, gpu, tp, pp, ep, dp, such as workers=2,tp=4", field=name)
    known = [field.name for field in fields(Side)]
    if unknown := [key for key in said if key not in known]:
        raise UnknownField(f"{name}: unknown field {unknown[0]!r};{meant_or_known(str(unknown[0]), known)}", field=name)
    for key, value in said.items():
        if key == "gpu":
            find_gpu(str(value))
        elif (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 1 <= value <= (1 << 20 if "max" in key else LARGEST)
        ):
            raise BadInput(f"{name}.{key} = {value!r}: must be a positive integer", field=name)
    return Side(**said)


def _words(text: str, name: str) -> dict[str, int | str]:
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    try:
        return {key.strip(): value.strip() if key.strip() == "gpu" else int(value) for key, _, value in parts}
    except ValueError as problem:
        raise BadInput(f"{name} = {text!r}: must look like workers=2,tp=4", field=name) from problem


@dataclass(frozen=True, slots=True)
class Sender:
    """Step times of a prefill engine whose scheduler sends caches: `send_s` for each prompt that a rank begins."""

    timer: Timer
    send_s: float

    def seconds(self, decoding: int, cached: int, pieces: Pieces, /) -> float:
        """Of a step, its prompts sent one after the other."""
        return self.timer.seconds(decoding, cached, pieces) + self.send_s * fresh(pieces)

    def hidden_s(self, decoding: int, pieces: Pieces, /) -> float:
        """As of the engine's own steps."""
        hidden_s: Callable[[int, Pieces], float] | None = getattr(self.timer, "hidden_s", None)
        return hidden_s(decoding, pieces) if hidden_s else 0.0

    def group_seconds(self, ranks: Sequence[RankBatch], /) -> float:
        """The same of data-parallel ranks, which send side by side and wait for the last."""
        return self.timer.group_seconds(ranks) + self.send_s * max(fresh(pieces) for _, _, pieces in ranks)


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """A prefill pool and a decode pool, ready to serve."""

    prefill: Server
    decode: Server
    workers: tuple[int, int]  # engines of either pool
    handover_s: float = HANDOVER_S  # of a request from one to the other, beside its cache's way over the link
    send_s: float = 0.0  # of a prefill rank's scheduler for each prompt, where it sends caches itself
    handoff_delay_share: float = 0.0  # share of the step after it that a prompt's cache waits for
    pools_open: float = 0.0  # what pools that nobody stated leave open: half the 90 % interval of a logarithm
    fabric: tuple[str, str] = ("", "")  # the fabric that caches cross and the ranks that send them, where known

    @classmethod
    def of(
        cls,
        model: str | Path | Mapping[str, Any] | ModelSpec,
        gpu: str | GPU,
        setup: Setup,
        sides: tuple[Side, Side],
        longest: int,
    ) -> Disaggregated:
        """Both pools of a model. Raises what `Server.of` raises, for either."""
        prompts, tokens = sides
        first = Server.of(model, prompts.gpu or gpu, replace(prompts.of(setup), speculative=None), longest)
        second = Server.of(model, tokens.gpu or gpu, tokens.of(setup), longest)
        return cls(first, second, (prompts.workers, tokens.workers))

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return sum(
            n * s.runner.deployment.parallel.world
            for n, s in zip(self.workers, (self.prefill, self.decode), strict=True)
        )

    @property
    def powered(self) -> tuple[Boards, ...]:
        """The GPUs of both pools."""
        return tuple(side.boards(workers) for side, workers in zip(self.sides, self.workers, strict=True))

    @property
    def spread(self) -> float:
        """Half the 90 % interval of a step's logarithm, of the wider side."""
        return max(self.prefill.spread, self.decode.spread)

    @property
    def uncertain(self) -> Uncertainty:
        """What widens the intervals of this deployment."""
        return replace(self.decode.uncertain, kernels=self.spread, pools=self.pools_open)

    @property
    def sides(self) -> tuple[Server, Server]:
        """The prefill and the decode engine."""
        return self.prefill, self.decode

    @property
    def decoders(self) -> int:
        """Engines that make later tokens."""
        return self.workers[1]

    @property
    def hands_over(self) -> bool:
        """Caches move from one pool to the other."""
        return True

    @property
    def pages(self) -> int:
        """Cache pages of all engines together."""
        return sum(n * side.pages for n, side in zip(self.workers, self.sides, strict=True))

    @property
    def basis(self) -> Mapping[str, float]:
        """Shares of step time by kind of evidence, mean of both pools."""
        shares = [side.basis for side in self.sides]
        return {name: sum(one.get(name, 0.0) for one in shares) / 2 for name in {**shares[0], **shares[1]}}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of both pools."""
        return merged((*self.prefill.notes, *self.decode.notes))

    def names(self) -> dict[str, Any]:
        """Model, GPU and engine as answers name them; the cache is that of one decode engine."""
        one, other = (server.runner.gpu.name for server in (self.prefill, self.decode))
        apart = {} if one == other else {"gpu": f"{one} + {other}"}
        return self.decode.names() | apart | {"gpus": self.gpus}

    def about(self, _traffic: Traffic) -> dict[str, Any]:
        """What serves."""
        return self.names()

    def run(self, traffic: Traffic, sla: Sla = ANY, *, scale: float = 1.0) -> Served:
        """Serve `traffic`; every step takes `scale` times its predicted time."""
        record = self.record(traffic, scale=scale, keep_steps=True, most_steps=MOST_KEPT)
        notes = [*self.notes, *traffic_notes(self.prefill.runner, self.prefill.kv, traffic)]
        answer = {**self.names(), **summary(record, traffic, self.gpus, sla), "notes": notes}
        return Served(answer, self.decode.memory, traffic, record)

    def record(
        self, traffic: Traffic, *, scale: float = 1.0, keep_steps: bool = False, most_steps: int = MOST_STEPS
    ) -> Record:
        """Simulate the requests, with every step where asked. BadInput beyond the work of `most_steps`."""
        prompts, tokens = self.prefill.pool(self.workers[0], scale), self.decode.pool(self.workers[1], scale)
        prompts = replace(
            prompts, timer=Sender(prompts.timer, self.send_s), handoff_delay_share=self.handoff_delay_share
        )
        front = self.decode.setup.streaming(traffic.sent)
        more: dict[str, Any] = {"decode": tokens, "transfer_s": self.transfer_s, "front": front}
        return Simulation(traffic, prompts, keep_steps=keep_steps, most_steps=most_steps, **more).run()

    def transfer_s(self, tokens: int) -> float:
        """Seconds to move a prompt's cache: the side whose ranks hold more of it each is the slower one."""
        size = max(cache_bytes(server.runner.deployment, tokens) for server in (self.prefill, self.decode))
        one, other = (server.runner.gpu for server in (self.prefill, self.decode))
        gpus = self.gpus if one.name == other.name else max(self.gpus, joined(one) + 1, joined(other) + 1)
        return self.handover_s + size / (1e9 * min(link_gbps(one, gpus), link_gbps(other, gpus)))


def routed(setup: Setup) -> Setup:
    """The set-up behind a front end that routes requests to pools."""
    return replace(setup, front=replace(setup.front_end, workers=max(setup.front_end.workers, FRONT_THREADS)))
