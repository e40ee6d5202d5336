"""`serve`: a deployment under traffic, with the engine's own defaults where nothing is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.links import joined, network_gbps
from pipewave.models import ModelSpec, load
from pipewave.models.adapters import Lora
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.residual.calibration import corrections
from pipewave.serving.beside import offloaded, with_adapters
from pipewave.serving.drafting import Drafted, Drafter, pays_until, with_drafter
from pipewave.serving.interval import Uncertainty, hull, tells_version
from pipewave.serving.replica import Limits
from pipewave.serving.report import ANY, Sla, summary
from pipewave.serving.simulate import Pool, Record, Simulation
from pipewave.serving.speculative import Speculative
from pipewave.serving.table import StepTable
from pipewave.serving.traffic import Traffic
from pipewave.software.front import INSIDE, Front
from pipewave.step import Engine, Runner, find_engine
from pipewave.step.memory import GIB, Budget, budget, cache_bytes

TABLES = 64  # kept
# Step times are worked out up to at least so many requests of so many tokens, for deployments to share them.
FEWEST, SHORTEST = 256, 16384
TRANSFER_S = 1e-3  # set-up of a cache transfer between engines


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is served. `replicas` engines side by side; `prefill` and `decode` engines when disaggregated.

    front: what stands between clients and engine; nothing when it is called from its own process.
    recv_interval: decode steps between two looks at new requests. stream_interval: tokens streamed at once, the first
    ones too; message_tokens: tokens of a request that go out in one message after its first. mixes_phases: decode
    tokens ride along with prompts (SGLang's mixed chunks). overlaps, graph_limit, fused_norm_mib: Engine's fields of
    those names. wait_steps, wait_share: prompts wait so many decode steps for company, or until a step holds this share
    of its tokens (TensorRT-LLM's batch waiting). dp: ranks of attention data parallelism in an engine, each with limits
    and cache of its own; patience: steps that they hold prompts back until all have one. speculative: how tokens are
    drafted. lora: adapters. kv_offload_gib: host memory a GPU for idle blocks of prompts.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    engine: str | Engine = "vllm"
    replicas: int = 1
    dp: int = 1
    prefill: int = 0
    decode: int = 0
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    kv_dtype: str | None = None
    moe_backend: str | None = None
    front: Front = INSIDE
    recv_interval: int = 1
    stream_interval: int = 1
    mixes_phases: bool | None = None
    message_tokens: int = 1
    overlaps: bool | None = None
    graph_limit: int | None = None
    fused_norm_mib: float | None = None
    wait_steps: int = 0
    wait_share: float = 0.0
    patience: int = 0
    speculative: Speculative | None = None
    lora: Lora | None = None
    kv_offload_gib: float = 0.0

    def __post_init__(self) -> None:
        for name in ("replicas", "max_num_batched_tokens", "max_num_seqs"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20
            ):
                raise BadInput(f"{name} = {value!r}: must be an integer from 1 to {1 << 20}", field=name)
        if (self.prefill > 0) != (self.decode > 0) or min(self.prefill, self.decode) < 0:
            raise BadInput("disaggregation needs at least one prefill and one decode engine", field="prefill")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise BadInput(
                f"gpu_memory_utilization = {share!r}: must be above 0 and at most 1", field="gpu_memory_utilization"
            )

    @property
    def engines(self) -> int:
        """Engines in all."""
        return self.prefill + self.decode or self.replicas

    def program(self) -> Engine:
        """The engine with this set-up's limits in place of its defaults."""
        engine = find_engine(self.engine)
        chosen = {
            "max_batched_tokens": self.max_num_batched_tokens,
            "max_requests": self.max_num_seqs,
            "memory_share": self.gpu_memory_utilization,
            "mixes_phases": self.mixes_phases,
            "overlaps": self.overlaps,
            "graph_limit": self.graph_limit,
        }
        return engine.what_if(**_said(chosen), **self.kernels())

    def kernels(self) -> dict[str, Any]:
        """Choices that change which kernels run."""
        return _said({"moe_backend": self.moe_backend, "fused_norm_mib": self.fused_norm_mib})


def _said(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chosen.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Served:
    """A simulated run: its summary, the memory it had, the traffic and what happened."""

    answer: Mapping[str, Any]
    memory: Budget
    traffic: Traffic
    record: Record

    def to_dict(self) -> dict[str, Any]:
        """The summary, floats rounded."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in self.answer.items()}


@dataclass(frozen=True, slots=True)
class Server:
    """A deployment ready to serve: its step table and limits."""

    runner: Runner
    setup: Setup
    memory: Budget
    table: StepTable
    limits: Limits
    drafted: Drafted | None = None

    @classmethod
    def of(
        cls, model: str | Path | Mapping[str, Any] | ModelSpec, gpu: str | GPU, setup: Setup, longest: int
    ) -> Server:
        """Work out memory and step times for requests of up to `longest` tokens."""
        spec, setup = load(model), _beside(setup, load(model))
        program, parallel = setup.program(), Parallel(setup.tp, setup.pp, setup.ep, setup.dp)
        parallel.check(spec)
        runner = Runner.of(Deployment(spec, parallel, setup.kv_dtype, lora=setup.lora), find_gpu(gpu), program)
        memory = with_drafter(budget(runner.deployment, runner.gpu, runner.engine), runner, setup.speculative)
        memory = with_adapters(memory, runner)
        limits = offloaded(limits_of(runner, memory, longest), runner, setup.kv_offload_gib)
        limits = replace(limits, wait_steps=setup.wait_steps, wait_share=setup.wait_share)
        plain = Runner.of(runner.deployment, runner.gpu, find_engine(setup.engine).what_if(**setup.kernels()))
        sizes = _power(limits.tokens), _power(max(limits.requests, FEWEST)), _power(max(longest, SHORTEST))
        state = corrections.state(runner.gpu.name)
        table = _table(plain, *sizes, 1, state).under(runner.engine.hosted(setup.front.host, setup.front.launch))
        return cls(runner, setup, memory, table, limits, _drafted(plain, table, setup.speculative, sizes, state))

    def record(self, traffic: Traffic, *, scale: float = 1.0, keep_steps: bool = False) -> Record:
        """What happens to each request of `traffic`, and on request in each step; every step takes `scale` times its
        predicted time."""
        setup = self.setup
        pool = self.pool(setup.prefill or setup.replicas, scale)
        decode = self.pool(setup.decode, scale) if setup.decode else None
        together = max(setup.message_tokens, setup.stream_interval)
        front = replace(setup.front, stream_us=setup.front.stream_us / together)
        more: dict[str, Any] = {"decode": decode, "transfer_s": self.transfer_s, "front": front}
        return Simulation(traffic, pool, keep_steps=keep_steps, **more).run()

    def run(self, traffic: Traffic, sla: Sla = ANY, *, scale: float = 1.0) -> Served:
        """Serve `traffic`; every step takes `scale` times its predicted time."""
        record, setup = self.record(traffic, scale=scale, keep_steps=True), self.setup
        gpus = setup.engines * self.runner.deployment.parallel.world
        answer = {
            "model": self.runner.deployment.model.name,
            "gpu": self.runner.gpu.name,
            "engine": self.runner.engine.name,
            "gpus": gpus,
            "kv_tokens": self.memory.kv_tokens,
            **self._speculation(traffic),
            **summary(record, traffic, gpus, sla),
        }
        return Served(answer, self.memory, traffic, record)

    def pool(self, engines: int, scale: float = 1.0) -> Pool:
        """So many engines side by side; every step takes `scale` times its predicted time."""
        table = (self.drafted or self.table).scaled(scale * self._pipeline_factor())
        return Pool(table, self.limits, engines * self.runner.deployment.parallel.pp, **self._looks())

    @property
    def spread(self) -> float:
        """Half the 90 % interval of a step's logarithm."""
        return self.table.spread

    @property
    def uncertain(self) -> Uncertainty:
        """What is open about the deployment."""
        return Uncertainty(self.spread, self.runner.engine.name, tells_version(self.setup.engine))

    def run_with_interval(self, traffic: Traffic, sla: Sla = ANY) -> Served:
        """Serve three times, with steps at the middle and at both ends of their interval."""
        return with_interval(self, traffic, sla)

    def _speculation(self, traffic: Traffic) -> dict[str, float]:
        """Tokens a step makes for a request, and with how many requests of this traffic drafting stops paying."""
        if self.drafted is None:
            return {}
        cache = int(traffic.input_len.mean() + traffic.output_len.mean() / 2)
        return {"tokens_per_step": self.drafted.mean, "drafts_pay_until": pays_until(self.table, self.drafted, cache)}

    def _looks(self) -> dict[str, Any]:
        """When the scheduler looks at new requests, and over how many ranks it spreads them."""
        setup = self.setup
        looks = {"overlaps": self.runner.engine.overlaps, "interval": setup.recv_interval}
        return {**looks, "ranks": setup.dp, "patience": setup.patience}

    def _pipeline_factor(self) -> float:
        """A full pipeline moves at the pace of its slowest stage."""
        return max(self.table.shares) * len(self.table.shares)

    def transfer_s(self, tokens: int) -> float:
        """Seconds to move a prompt's cache between engines, each rank its own part over its own link."""
        size = cache_bytes(self.runner.deployment, tokens)
        gpu = self.runner.gpu
        near = self.setup.engines * self.runner.deployment.parallel.world <= joined(gpu)
        link = gpu.link_gbps if near else network_gbps(gpu)
        return TRANSFER_S + size / (1e9 * min(link, gpu.link_gbps))


class Serves(Protocol):
    """What serves traffic, and what is open about it."""

    @property
    def uncertain(self) -> Uncertainty:
        """What is open about the deployment."""
        ...

    def run(self, traffic: Traffic, sla: Sla = ANY, *, scale: float = 1.0) -> Served:
        """Serve `traffic`; every step takes `scale` times its predicted time."""
        ...


def with_interval(server: Serves, traffic: Traffic, sla: Sla = ANY) -> Served:
    """Serve with an interval for each time, by the law of `pipewave.serving.interval`.

    Requests that come whether or not others are done queue behind slow steps: they are served twice more, with steps at
    both ends of TPOT's interval, and the times' intervals hold what then happens.
    """
    middle, uncertain = server.run(traffic, sla), server.uncertain
    intervals = {
        f"{key}{side}": ms
        for key in middle.answer
        if key.endswith("_ms")
        for side, ms in uncertain.ends(f"{key.partition('_')[0]}_ms", middle.answer[key]).items()
    }
    if not traffic.concurrency:
        ends = [server.run(traffic, sla, scale=scale).answer for scale in uncertain.scales]
        intervals = hull(intervals, *ends)
    return replace(middle, answer={**middle.answer, **intervals, "notes": [uncertain.note()]})


def _beside(setup: Setup, model: ModelSpec) -> Setup:
    """Data-parallel ranks of a model without experts share nothing: they are replicas."""
    return setup if model.is_moe else replace(setup, replicas=setup.replicas * setup.dp, dp=1)


@lru_cache(maxsize=TABLES)
def _table(
    runner: Runner, budget: int, requests: int, longest: int, verify: int, calibrated: tuple[str, int]
) -> StepTable:
    """Step times of a deployment, kept for the next server that differs in its limits only; `calibrated` tells the
    calibration apart that they rest on."""
    return StepTable(runner, budget=budget, requests=requests, longest=longest, verify=verify)


@lru_cache(maxsize=TABLES)
def _drafter(runner: Runner, how: Speculative, requests: int, longest: int, calibrated: tuple[str, int]) -> Drafter:
    """What drafting takes, kept like the tables."""
    return Drafter(runner, how, requests, longest)


def _drafted(
    plain: Runner,
    table: StepTable,
    how: Speculative | None,
    sizes: tuple[int, int, int],
    calibrated: tuple[str, int],
) -> Drafted | None:
    """The step table under speculative decoding."""
    if how is None:
        return None
    verifying = _table(plain, *sizes, how.verified, calibrated).under(table.engine)
    return Drafted(verifying, _drafter(plain, how, *sizes[1:], calibrated), how.mean)


def table_of(runner: Runner, budget: int, requests: int, longest: int) -> StepTable:
    """Step times of a deployment for up to so many tokens a step, requests, and tokens of a request; kept."""
    sizes = _power(budget), _power(max(requests, FEWEST)), _power(max(longest, SHORTEST))
    return _table(runner, *sizes, 1, corrections.state(runner.gpu.name))


def _power(size: int) -> int:
    """The next power of two: tables of like sizes are one."""
    return 1 << (size - 1).bit_length()


def limits_of(runner: Runner, memory: Budget, longest: int, tokens: int | None = None) -> Limits:
    """Scheduler limits, with a budget of so many `tokens` a step in place of the engine's.

    Windows and latents are counted through the cache a request of the longest length takes.
    """
    engine, lanes = runner.engine, runner.deployment.parallel.pp
    budget = tokens or engine.max_batched_tokens
    per_token = cache_bytes(runner.deployment, longest, chunk=budget) / longest
    pages = int(memory.kv * GIB / per_token) // engine.page_size // lanes
    # No more requests can ever run than the cache holds of the shortest kind; a smaller table is a faster one.
    return Limits(
        budget,
        min(engine.max_requests, pages),
        pages,
        engine.page_size,
        engine.mixes_phases,
        chunks=engine.chunks,
        prompt_tokens=0 if tokens else engine.max_prefill_tokens,
        reserve=engine.output_reserve,
        reserve_least=engine.output_reserve_least,
    )
