"""`serve`: a deployment under traffic, with the engine's own defaults for settings that are not given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.fabric import joined, network_gbps
from pipewave.models import ModelSpec, load
from pipewave.models.expert_parallel import report
from pipewave.models.kernels import Deployment
from pipewave.models.lora_and_drafts import notes as draft_notes
from pipewave.models.shard import Parallel
from pipewave.nets.calibration import corrections
from pipewave.physics.power import board_of
from pipewave.simulate.drafting import Drafted, Drafter, pays_until, with_drafter
from pipewave.simulate.interval import Uncertainty, interval_ends, names_version, server_of
from pipewave.simulate.kv_budget import KvBudget, kv_budget, offloaded, traffic_notes, with_adapters
from pipewave.simulate.policies import SchedulingPolicy, policy_of
from pipewave.simulate.power import Boards
from pipewave.simulate.report import ANY, Sla, summary
from pipewave.simulate.run_window import Steadiness, steadiness
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import MOST_KEPT, MOST_STEPS, Pool, Record, Simulation
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.step_grids import Axes
from pipewave.simulate.step_table import StepTable
from pipewave.simulate.traffic import Traffic
from pipewave.step import Runner, find_engine
from pipewave.step.memory import Budget, budget, cache_bytes

TABLES = 64  # kept
# Step times are worked out up to at least so many requests of so many tokens, for deployments to share them.
FEWEST, SHORTEST = 256, 16384
HANDOVER_S = 1e-3  # set-up of a cache transfer: a message each way and the first descriptors


@dataclass(frozen=True, slots=True)
class Served:
    """A simulated run: its summary, memory, traffic and record."""

    answer: Mapping[str, Any]
    memory: Budget
    traffic: Traffic
    record: Record

    def __repr__(self) -> str:
        """One line; `answer` has everything."""
        answer = self.answer
        return f"<{len(self.traffic):,} requests to {answer['model']} on {answer['gpus']} × {answer['gpu']}>"

    @property
    def steadiness(self) -> Steadiness:
        """Whether the deployment kept up with the requests."""
        return steadiness(self.record, self.traffic)

    def to_dict(self) -> dict[str, Any]:
        """The summary, floats rounded."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in self.answer.items()}


@dataclass(frozen=True, slots=True)
class Server:
    """A deployment ready to serve: its step times, its scheduler and its cache."""

    runner: Runner
    setup: Setup
    memory: Budget
    table: StepTable
    policy: SchedulingPolicy
    kv: KvBudget
    drafted: Drafted | None = None

    def __repr__(self) -> str:
        """One line."""
        runner = self.runner
        return f"<server of {runner.deployment.model.name} on {self.gpus} × {runner.gpu.name}, {runner.engine.name}>"

    @classmethod
    def of(
        cls,
        model: str | Path | Mapping[str, Any] | ModelSpec,
        gpu: str | GPU,
        setup: Setup,
        longest: int,
        prompt: int = 0,
    ) -> Server:
        """Work out memory and step times for requests of up to `longest` tokens, once for each deployment without
        drafts (how sure their acceptance is tells no two apart). `prompt`: for a first look at prompts of so many
        tokens, with a tenth of the step times.
        """
        spec, hardware = load(model), find_gpu(gpu)
        build = worked_out.__wrapped__ if setup.speculative else worked_out
        return build(spec, hardware, setup, longest, corrections.state(hardware.name), prompt)

    def record(
        self, traffic: Traffic, *, scale: float = 1.0, keep_steps: bool = False, most_steps: int = MOST_STEPS
    ) -> Record:
        """What happens to each request of `traffic`, and on request in each step; every step takes `scale` times its
        predicted time. Raises BadInput beyond the work of `most_steps`, DoesNotFit for a request no cache holds.
        """
        setup = self.setup
        pool = self.pool(setup.prefill or setup.replicas, scale)
        decode = self.pool(setup.decode, scale) if setup.decode else None
        more: dict[str, Any] = {"decode": decode, "transfer_s": self.transfer_s, "front": setup.streaming(traffic.sent)}
        return Simulation(traffic, pool, keep_steps=keep_steps, most_steps=most_steps, **more).run()

    def run(self, traffic: Traffic, sla: Sla = ANY, *, scale: float = 1.0) -> Served:
        """Serve `traffic`; every step takes `scale` times its predicted time."""
        record = self.record(traffic, scale=scale, keep_steps=True, most_steps=MOST_KEPT)
        answer = self.about(traffic) | summary(record, traffic, self.gpus, sla)
        answer |= {"notes": [*self.notes, *traffic_notes(self.runner, self.kv, traffic)]}
        return Served(answer, self.memory, traffic, record)

    def names(self) -> dict[str, Any]:
        """Model, GPU and engine as answers name them."""
        return {
            "model": self.runner.deployment.model.name,
            "gpu": self.runner.gpu.name,
            "engine": self.runner.engine.name,
            "gpus": self.gpus,
            "kv_tokens": self.memory.kv_tokens,
        }

    def about(self, traffic: Traffic) -> dict[str, Any]:
        """What serves, tokens that a step makes where tokens are drafted, and how experts are loaded."""
        return {**self.names(), **self._speculation(traffic), **self._skews()}

    @property
    def sides(self) -> tuple[Server, Server]:
        """The prefill and the decode engine."""
        return self, self

    @property
    def decoders(self) -> int:
        """Engines that make later tokens."""
        return self.setup.decode or self.setup.replicas

    @property
    def hands_over(self) -> bool:
        """Whether caches move from one engine to another."""
        return bool(self.setup.decode)

    @property
    def basis(self) -> Mapping[str, float]:
        """Shares of step time by kind of evidence."""
        return self.table.basis

    @property
    def gpus(self) -> int:
        """GPUs of all engines."""
        return self.setup.engines * self.runner.deployment.parallel.world

    @property
    def pages(self) -> int:
        """Cache pages of all engines together."""
        return self.kv.pages * self.setup.dp * self.setup.engines * self.runner.deployment.parallel.pp

    def pool(self, engines: int, scale: float = 1.0) -> Pool:
        """So many engines side by side; every step takes `scale` times its predicted time."""
        table = (self.drafted or self.table).scaled(scale * self._pipeline_factor())
        return Pool(table, self.policy, self.kv, engines * self.runner.deployment.parallel.pp, self.setup.dp)

    def boards(self, engines: int) -> Boards:
        """The GPUs of so many engines."""
        split = self.runner.deployment.parallel
        board, table = board_of(self.runner.gpu), self.drafted or self.table
        return Boards(table, board, engines * split.pp, self.setup.dp, engines * split.world)

    @property
    def powered(self) -> tuple[Boards, ...]:
        """The GPUs of all engines, those that take prompts first."""
        setup = self.setup
        return tuple(self.boards(engines) for engines in (setup.prefill or setup.replicas, setup.decode) if engines)

    @property
    def spread(self) -> float:
        """Half the 90 % interval of a step's logarithm."""
        return self.table.spread

    @property
    def uncertain(self) -> Uncertainty:
        """What widens the intervals of this deployment."""
        named = names_version(self.setup.engine) and not self.setup.version_assumed
        ranks = self.runner.deployment.parallel.dp > 1
        drafts = self.setup.speculative.spread if self.setup.speculative else 0.0
        return Uncertainty(self.spread, server_of(self.runner.engine), named, ranks, drafts=drafts)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model, the drafts, the scheduler and the kernels."""
        model, how = self.runner.deployment.model, self.setup.speculative
        return (*model.notes, *(draft_notes(model, how.method) if how else ()), *self.policy.notes, *self.table.notes)

    def _speculation(self, traffic: Traffic) -> dict[str, float]:
        """Tokens a step makes for a request, and with how many requests of this traffic drafting stops paying."""
        if self.drafted is None:
            return {}
        cache = int(traffic.input_len.mean() + traffic.output_len.mean() / 2)
        return {"tokens_per_step": self.drafted.mean, "drafts_pay_until": pays_until(self.table, self.drafted, cache)}

    def _skews(self) -> dict[str, float]:
        """Tokens of the fullest rank over the mean, where something says how experts are loaded."""
        layers, setup = self.runner.deployment.model.layers, self.setup
        if setup.balance is None:
            return {}
        copies = setup.balance.redundant or 0
        experts = next((moe.experts - copies for layer in layers for moe in layer.moes), 0)
        return report(setup.balance, experts, setup.ep)

    def _pipeline_factor(self) -> float:
        """A full pipeline moves at the pace of its slowest stage."""
        return max(self.table.shares) * len(self.table.shares)

    def transfer_s(self, tokens: int) -> float:
        """Seconds to move a prompt's cache between engines, each rank its own part over its own link."""
        size = cache_bytes(self.runner.deployment, tokens)
        return HANDOVER_S + size / (1e9 * link_gbps(self.runner.gpu, self.gpus))


def link_gbps(gpu: GPU, gpus: int) -> float:
    """GB/s between two GPUs of a deployment: NVLink while it joins them all, else the network."""
    return gpu.link_gbps if gpus <= joined(gpu) else min(network_gbps(gpu), gpu.link_gbps)


class Serves(Protocol):
    """Anything that serves traffic: one deployment or two pools."""

    @property
    def uncertain(self) -> Uncertainty:
        """What widens the intervals of this deployment."""
        ...

    def run(self, traffic: Traffic, sla: Sla = ANY, *, scale: float = 1.0) -> Served:
        """Serve `traffic`; every step takes `scale` times its predicted time."""
        ...


def with_interval(server: Serves, traffic: Traffic, sla: Sla = ANY) -> Served:
    """Serve with an interval for each time, by the law of `pipewave.simulate.interval`.

    Requests that come whether or not others are done queue behind slow steps: they are served twice more, with steps at
    both ends of TPOT's interval, and the times' intervals hold what then happens.
    """
    middle, uncertain = server.run(traffic, sla), server.uncertain
    ends = [server.run(traffic, sla, scale=scale).answer for scale in uncertain.tried(traffic.concurrency)]
    notes = {"notes": [*middle.answer["notes"], uncertain.note()]}
    return replace(middle, answer={**middle.answer, **interval_ends(middle.answer, uncertain, *ends), **notes})


def _images_us(runner: Runner, images: int) -> float:
    """µs to encode the images of one prompt. Raises BadInput where the model has no vision tower."""
    return float(runner.price([runner.deployment.images(images)]).us[0])


def _placed(model: ModelSpec, setup: Setup) -> ModelSpec:
    """The model with its experts loaded and copied as the set-up says."""
    return setup.balance.placed(model, setup.ep) if setup.balance else model


def _without_idle_ranks(setup: Setup, model: ModelSpec) -> Setup:
    """Data-parallel ranks of a model without experts share nothing: they are replicas."""
    return setup if model.is_moe else replace(setup, replicas=setup.replicas * setup.dp, dp=1)


def _with_acceptance(setup: Setup, model: ModelSpec) -> Setup:
    """The set-up with the model's usual acceptance of drafts where none is given."""
    return replace(setup, speculative=setup.speculative.by(model)) if setup.speculative else setup


@lru_cache(maxsize=TABLES)
def worked_out(
    spec: ModelSpec, gpu: GPU, setup: Setup, longest: int, calibrated: tuple[str, int], prompt: int = 0
) -> Server:
    """A server of a model; `calibrated` tells the calibration apart that step times rest on."""
    spec, setup = _placed(spec, setup), _with_acceptance(_without_idle_ranks(setup, spec), spec)
    program, parallel = setup.program(), Parallel(setup.tp, setup.pp, setup.ep, setup.dp)
    parallel.check(spec)
    runner = Runner.of(Deployment(spec, parallel, setup.kv_dtype, lora=setup.lora), gpu, program)
    memory = with_drafter(budget(runner.deployment, runner.gpu, runner.engine), runner, setup.speculative)
    memory = with_adapters(memory, runner)
    kv = offloaded(kv_budget(runner, memory, longest), runner, setup.kv_offload_gib)
    policy = policy_of(runner.engine, setup, kv)
    plain = Runner.of(runner.deployment, runner.gpu, find_engine(setup.engine).what_if(**setup.kernels()))
    sizes = _power(policy.max_batched_tokens), _power(max(policy.max_requests, FEWEST)), _power(max(longest, SHORTEST))
    sizes = (*sizes[:2], longest) if prompt else sizes
    table = _table(plain, *sizes, 1, calibrated, prompt).under(setup.hosted(runner.engine), setup.pace)
    table = table.encoding(_images_us(plain, setup.images)) if setup.images else table
    drafted = _drafted(plain, table, setup.speculative, sizes, calibrated, prompt)
    return Server(runner, setup, memory, table, policy, kv, drafted)


@lru_cache(maxsize=TABLES)
def _table(
    runner: Runner, budget: int, requests: int, longest: int, verify: int, _calibrated: tuple[str, int], prompt: int = 0
) -> StepTable:
    """Step times of a deployment, kept for the next server that differs in its limits only; `calibrated` tells the
    calibration apart that they rest on.
    """
    return StepTable(runner, budget=budget, requests=requests, longest=longest, verify=verify, prompt=prompt)


@lru_cache(maxsize=TABLES)
def _drafter(
    runner: Runner, how: Speculative, requests: int, longest: int, _calibrated: tuple[str, int], prompt: int = 0
) -> Drafter:
    """Latencies of drafting, kept like the tables."""
    sizes: dict[str, Any] = {"budget": 1, "requests": requests, "longest": longest, "verify": 1, "mixed": False}
    return Drafter(runner, how, requests, longest, Axes.coarse(**sizes, prompt=prompt) if prompt else None)


def _drafted(
    plain: Runner,
    table: StepTable,
    how: Speculative | None,
    sizes: tuple[int, int, int],
    calibrated: tuple[str, int],
    prompt: int = 0,
) -> Drafted | None:
    """The step table under speculative decoding."""
    if how is None:
        return None
    verifying = _table(plain, *sizes, how.verified, calibrated, prompt)
    verifying = verifying.under(table.engine, table.pace).encoding(table.prompt_us)
    return Drafted(verifying, _drafter(plain, how, *sizes[1:], calibrated, prompt), how.mean)


def timer_of(
    runner: Runner, budget: int, requests: int, longest: int, how: Speculative | None = None
) -> StepTable | Drafted:
    """Step times of a deployment for up to so many tokens a step, requests, and tokens of a request; kept."""
    sizes = _power(budget), _power(max(requests, FEWEST)), _power(max(longest, SHORTEST))
    state = corrections.state(runner.gpu.name)
    table = _table(runner, *sizes, 1, state)
    return _drafted(runner, table, how, sizes, state) or table


def _power(size: int) -> int:
    """The next power of two: tables of like sizes are one."""
    return 1 << (size - 1).bit_length()
