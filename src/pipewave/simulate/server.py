"""An engine ready to serve: memory, step times, scheduler and cache, with its own defaults for what is not given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSource, ModelSpec, load
from pipewave.models.kernels import Deployment
from pipewave.models.lora_and_drafts import notes as draft_notes
from pipewave.nets.calibration import corrections
from pipewave.physics.power import board_of
from pipewave.simulate.drafting import Drafted, Drafter, with_drafter
from pipewave.simulate.interval import Uncertainty
from pipewave.simulate.kv_budget import KvBudget, kv_budget, offloaded, with_adapters
from pipewave.simulate.policies import SchedulingPolicy, policy_of
from pipewave.simulate.power import Boards
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import Pool
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.step_grids import Sizes
from pipewave.simulate.step_table import StepTable
from pipewave.step import Runner, find_engine
from pipewave.step.memory import Budget, budget

TABLES = 64  # kept
# Step times are worked out up to at least so many requests of so many tokens, for deployments to share them.
FEWEST, SHORTEST = 256, 16384


@dataclass(frozen=True, slots=True)
class Server:
    """An engine ready to serve: its step times, its scheduler and its cache."""

    runner: Runner
    setup: Setup
    memory: Budget
    table: StepTable  # where tokens are drafted, of steps that verify them
    policy: SchedulingPolicy
    kv: KvBudget
    uncertain: Uncertainty  # what widens its intervals
    drafted: Drafted | None = None

    def __repr__(self) -> str:
        """One line."""
        runner = self.runner
        return f"<server of {runner.deployment.model.name} on {runner.deployment.parallel.world} × {runner.gpu.name}>"

    @classmethod
    def of(cls, model: ModelSource, gpu: str | GPU, setup: Setup, longest: int, prompt: int = 0) -> Server:
        """Work out memory and step times for requests of up to `longest` tokens, once for each deployment without
        drafts (how sure their acceptance is tells no two apart). `prompt`: for a first look at prompts of so many
        tokens, with a tenth of the step times.
        """
        spec, hardware = load(model), find_gpu(gpu)
        build = worked_out.__wrapped__ if setup.speculative else worked_out
        return build(spec, hardware, setup, longest, corrections.state(hardware.name), prompt)

    def pool(self, engines: int, scale: float = 1.0, send_s: float = 0.0) -> Pool:
        """So many engines side by side; every step takes `scale` times its predicted time, and where its scheduler
        sends caches, `send_s` for each prompt that a rank begins. A full pipeline moves at the pace of its slowest
        stage.
        """
        stages = len(self.table.shares)
        factor = scale * max(self.table.shares) * stages
        timer = (self.drafted or self.table.encoding(1e6 * send_s / factor)).scaled(factor)
        return Pool(timer, self.policy, self.kv, engines * stages, self.setup.dp)

    def boards(self, engines: int) -> Boards:
        """The GPUs of so many engines."""
        split, board = self.runner.deployment.parallel, board_of(self.runner.gpu)
        return Boards(self.drafted or self.table, board, engines * split.pp, self.setup.dp, engines * split.world)

    @property
    def undrafted(self) -> StepTable:
        """Its step times without drafts."""
        state = corrections.state(self.runner.gpu.name)
        return _table(self.table.runner, self.table.sizes, state).under(self.table.engine, self.table.pace)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model, the drafts, the scheduler and the kernels."""
        model, how = self.runner.deployment.model, self.setup.speculative
        return (*model.notes, *(draft_notes(model, how.method) if how else ()), *self.policy.notes, *self.table.notes)


@lru_cache(maxsize=TABLES)
def worked_out(
    spec: ModelSpec, gpu: GPU, setup: Setup, longest: int, calibrated: tuple[str, int], prompt: int = 0
) -> Server:
    """A server of a model; `calibrated` tells the calibration apart that step times rest on."""
    spec = setup.balance.placed(spec, setup.ep) if setup.balance else spec
    if not spec.is_moe:  # data-parallel ranks share nothing: they are replicas
        setup = replace(setup, replicas=setup.replicas * setup.dp, dp=1)
    drafts = setup.speculative.by(spec) if setup.speculative else None
    setup = replace(setup, speculative=drafts, front=setup.front_end)
    runner = Runner.of(Deployment(spec, setup.parallel, setup.kv_dtype, lora=setup.lora), gpu, setup.program())
    memory = with_drafter(budget(runner.deployment, runner.gpu, runner.engine), runner, setup.speculative)
    memory = with_adapters(memory, runner)
    kv = offloaded(kv_budget(runner, memory, longest), runner, setup.kv_offload_gib)
    policy = policy_of(runner.engine, setup, kv)
    plain = Runner.of(runner.deployment, runner.gpu, find_engine(setup.engine).what_if(**setup.kernels()))
    sizes = _shared(policy.max_batched_tokens, policy.max_requests, longest, prompt)._replace(spread=setup.spread)
    table = _table(plain, sizes, calibrated, drafts.verified if drafts else 1)
    table = table.under(setup.hosted(runner.engine), setup.pace)
    if setup.images:
        table = table.encoding(float(plain.price([plain.deployment.images(setup.images)]).us[0]))
    drafted = Drafted(table, _drafter(plain, drafts, sizes, calibrated), drafts.mean) if drafts else None
    return Server(runner, setup, memory, table, policy, kv, setup.uncertainty(runner.engine, table.spread), drafted)


def _shared(budget: int, requests: int, longest: int, prompt: int = 0) -> Sizes:
    """The next powers of two, so that like servers share step times; of a first look, requests just as long."""
    sizes = (budget, max(requests, FEWEST), max(longest, SHORTEST))
    tokens, most, ends = (1 << (size - 1).bit_length() for size in sizes)
    return Sizes(tokens, most, longest if prompt else ends, prompt)


@lru_cache(maxsize=TABLES)
def _table(runner: Runner, sizes: Sizes, _calibrated: tuple[str, int], verify: int = 1) -> StepTable:
    return StepTable(runner, sizes, verify)


@lru_cache(maxsize=TABLES)
def _drafter(runner: Runner, how: Speculative, sizes: Sizes, _calibrated: tuple[str, int]) -> Drafter:
    return Drafter(runner, how, sizes._replace(budget=1))


def timer_of(
    runner: Runner, budget: int, requests: int, longest: int, how: Speculative | None = None
) -> StepTable | Drafted:
    """Step times of a deployment for up to so many tokens a step, requests, and tokens of a request; kept."""
    sizes, calibrated = _shared(budget, requests, longest), corrections.state(runner.gpu.name)
    table = _table(runner, sizes, calibrated, how.verified if how else 1)
    return Drafted(table, _drafter(runner, how, sizes, calibrated), how.mean) if how else table
