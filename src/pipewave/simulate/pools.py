"""A deployment ready to serve: equal engines side by side, or a pool for prompts and one for later tokens (xPyD).

Disaggregated, a prompt runs on the least loaded prefill engine, which makes the first token; its cache then moves, each
rank sending or taking its own part over its own link, and the least loaded decode engine sends that token, once it has
room for the request, and makes the rest. Transfers overlap with steps and do not queue for links. Where a prefill
engine's scheduler sends the caches of a step itself, one prompt after the other, its next step waits; where it
schedules ahead, it sends them once the next step is launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pipewave.calls.fields import words_of
from pipewave.errors import BadInput, UnknownField, meant_or_known
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.fabric import joined, network_gbps
from pipewave.models import ModelSource
from pipewave.models.expert_parallel import report
from pipewave.prediction.notes import merged
from pipewave.simulate.drafting import pays_until
from pipewave.simulate.interval import Uncertainty
from pipewave.simulate.power import Boards
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import MOST_STEPS, Record, Simulation
from pipewave.simulate.traffic import Traffic
from pipewave.step.memory import cache_bytes

LARGEST = 4096
HANDOVER_S = 1e-3  # set-up of a cache transfer: a message each way and the first descriptors
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
        return replace(setup, replicas=1, **{k: v for k, v in named.items() if v is not None})


def side_of(given: Any, name: str) -> Side:
    """From a mapping or `workers=2,tp=4`. Raises UnknownField or BadInput."""
    if isinstance(given, Side):
        return given
    kinds = {one.name: str if one.name == "gpu" else int for one in fields(Side)}
    said = words_of(given, kinds, name, "workers=2,tp=4") if isinstance(given, str) else given
    if not isinstance(said, Mapping):
        raise BadInput(f"{name} = {given!r}: give workers, gpu, tp, pp, ep, dp, such as workers=2,tp=4", field=name)
    if unknown := [key for key in said if key not in kinds]:
        raise UnknownField(f"{name}: unknown field {unknown[0]!r};{meant_or_known(str(unknown[0]), kinds)}", field=name)
    for key, value in said.items():
        if key == "gpu":
            find_gpu(str(value))
        elif type(value) is not int or not 1 <= value <= (1 << 20 if "max" in key else LARGEST):
            raise BadInput(f"{name}.{key} = {value!r}: must be a positive integer", field=name)
    return Side(**said)


@dataclass(frozen=True, slots=True)
class Pools:
    """Equal engines, or those for prompts and those for later tokens, ready to serve."""

    servers: tuple[Server, ...]  # one, or that of prompts and that of later tokens
    workers: tuple[int, ...]  # engines of each
    handover_s: float = HANDOVER_S  # of a request from one to the other, beside its cache's way over the link
    send_s: float = 0.0  # of a prefill rank's scheduler for each prompt, where it sends caches itself
    handoff_delay_share: float = 0.0  # share of the step after it that a prompt's cache waits for
    pools_open: float = 0.0  # what pools that nobody stated leave open: half the 90 % interval of a logarithm

    @classmethod
    def of(
        cls, model: ModelSource, gpu: str | GPU, setup: Setup, longest: int, sides: tuple[Side, Side] | None = None
    ) -> Pools:
        """The engines of a set-up, or those of two pools. Raises what `Server.of` raises, for either."""
        if sides is None:
            alone = Server.of(model, gpu, setup, longest)
            return cls((alone,), (alone.setup.replicas,))
        setups = replace(sides[0].of(setup), speculative=None), sides[1].of(setup)
        pairs = zip(sides, setups, strict=True)
        servers = tuple(Server.of(model, side.gpu or gpu, setup, longest) for side, setup in pairs)
        workers = tuple(side.workers * server.setup.replicas for side, server in zip(sides, servers, strict=True))
        return cls(servers, workers)

    @property
    def disaggregated(self) -> bool:
        """Whether caches move from one pool to the other."""
        return len(self.servers) > 1

    @property
    def decode(self) -> Server:
        """The engine that makes later tokens."""
        return self.servers[-1]

    @property
    def gpus(self) -> int:
        """GPUs of all engines."""
        return sum(boards.gpus for boards in self.powered)

    @property
    def powered(self) -> tuple[Boards, ...]:
        """The GPUs of all engines, those that take prompts first."""
        return tuple(server.boards(workers) for server, workers in zip(self.servers, self.workers, strict=True))

    @property
    def uncertain(self) -> Uncertainty:
        """What widens the intervals of this deployment: of kernels, the wider side."""
        kernels = max(server.uncertain.kernels for server in self.servers)
        return replace(self.decode.uncertain, kernels=kernels, pools=self.pools_open)

    @property
    def pages(self) -> int:
        """Cache pages of all engines together."""
        schedulers = (boards.engines * boards.ranks for boards in self.powered)
        return sum(count * server.kv.pages for count, server in zip(schedulers, self.servers, strict=True))

    @property
    def basis(self) -> Mapping[str, float]:
        """Shares of step time by kind of evidence, mean of both pools."""
        shares = [server.table.basis for server in self.servers]
        names = dict.fromkeys(name for one in shares for name in one)
        return {name: sum(one.get(name, 0.0) for one in shares) / len(shares) for name in names}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model, the drafts, the scheduler and the kernels."""
        noted = [server.notes for server in self.servers]
        return merged(note for notes in noted for note in notes) if self.disaggregated else noted[0]

    def names(self) -> dict[str, Any]:
        """Model, GPU and engine as answers name them; the cache is that of one decode engine."""
        runner, gpus = self.decode.runner, dict.fromkeys(server.runner.gpu.name for server in self.servers)
        return {
            "model": runner.deployment.model.name,
            "gpu": " + ".join(gpus),
            "engine": runner.engine.name,
            "gpus": self.gpus,
            "kv_tokens": self.decode.memory.kv_tokens,
        }

    def about(self, traffic: Traffic) -> dict[str, Any]:
        """What serves; of engines that are not apart also tokens that a step makes for a request where tokens are
        drafted, with how many requests of this traffic that stops paying, and how experts are loaded.
        """
        server, setup = self.decode, self.decode.setup
        found = self.names()
        if self.disaggregated:
            return found
        if server.drafted:
            cache = int(traffic.input_len.mean() + traffic.output_len.mean() / 2)
            pays = pays_until(server.undrafted, server.drafted, cache)
            found |= {"tokens_per_step": server.drafted.mean, "drafts_pay_until": pays}
        if setup.balance:
            moes = (moe for layer in server.runner.deployment.model.layers for moe in layer.moes)
            experts = next((moe.experts - (setup.balance.redundant or 0) for moe in moes), 0)
            found |= report(setup.balance, experts, setup.ep)
        return found

    def record(
        self, traffic: Traffic, *, scale: float = 1.0, keep_steps: bool = False, most_steps: int = MOST_STEPS
    ) -> Record:
        """What happens to each request, and on request in each step; every step takes `scale` times its predicted
        time. Raises BadInput beyond the work of `most_steps`, DoesNotFit for a request no cache holds.
        """
        each = zip(self.servers, self.workers, (self.send_s, 0.0), strict=False)
        pools = [server.pool(workers, scale, send_s) for server, workers, send_s in each]
        pools[0] = replace(pools[0], handoff_delay_share=self.handoff_delay_share)
        front = self.decode.setup.streaming(traffic.sent)
        more: dict[str, Any] = {"decode": pools[1], "transfer_s": self.transfer_s} if self.disaggregated else {}
        return Simulation(traffic, pools[0], keep_steps=keep_steps, most_steps=most_steps, front=front, **more).run()

    def transfer_s(self, tokens: int) -> float:
        """Seconds to move a prompt's cache, each rank its own part over its own link: NVLink while it joins all GPUs,
        else the network. The side whose ranks hold more of it each is the slower one.
        """
        runners = [server.runner for server in self.servers]
        size = max(cache_bytes(runner.deployment, tokens) for runner in runners)
        one, other = runners[0].gpu, runners[-1].gpu
        near = one.name == other.name and self.gpus <= joined(one)
        rate = min(gpu.link_gbps if near else min(network_gbps(gpu), gpu.link_gbps) for gpu in (one, other))
        return self.handover_s + size / (1e9 * rate)


def routed(setup: Setup) -> Setup:
    """The set-up behind a front end that routes requests to pools."""
    return replace(setup, front=replace(setup.front_end, workers=max(setup.front_end.workers, FRONT_THREADS)))
