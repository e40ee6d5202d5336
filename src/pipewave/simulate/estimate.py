"""`estimate`: B equal requests that arrive together, from first token to last, and the memory they need.

A step passes pipeline stages one after the other. Overlap needs batches of different requests in flight; the static
batches measured under vLLM with two stages took what stages in series take, and a few ms a step more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pipewave.calls.fields import check_whole
from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSource, ModelSpec
from pipewave.models.kernels import Deployment
from pipewave.models.load import load_as
from pipewave.models.lora_and_drafts import notes as draft_notes
from pipewave.physics.power import Board, board_of, limited
from pipewave.results import Shown
from pipewave.simulate.drafting import with_drafter
from pipewave.simulate.interval import interval_ends
from pipewave.simulate.kv_budget import KvBudget, kv_budget, requests_at_once
from pipewave.simulate.policies import SchedulingPolicy, policy_of
from pipewave.simulate.power import energy_figures
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.static_batch import TIMES, Schedule, StaticBatch, Timeline, drafted_tpot_ms, queued_times
from pipewave.software.front import Host, host_of
from pipewave.step import Engine, Runner
from pipewave.step.memory import Budget, budget

LARGEST = 1 << 22
STEP_TOKENS = 8192  # of a step, where nothing says it
HOST_BOUND = 0.2  # share of the time to first tokens from which the host is worth a word
INSIDE_NOTE = "times are inside the engine, on our own host: `serve` has that of published servers, and a front end"
_kv_budget = lru_cache(maxsize=256)(kv_budget)
_budget = lru_cache(maxsize=256)(budget)


@dataclass(frozen=True, slots=True)
class Estimate(Shown):
    """Times in ms with a 90 % interval, memory in GiB, where the time goes by kernel family,
    and on what evidence it rests.

    `prefill_ms`: until every request has its first token, or its embedding where nothing is generated; images are
    encoded before. `tpot_ms`: mean time between later tokens at full batch, 0 where there are none. Joules are those of
    the boards of all GPUs, for the whole batch up to its first tokens and after them; `power_w` is the mean of one GPU.
    """

    model: str
    gpu: str
    engine: str
    gpus: int
    prefill_ms: float
    prefill_ms_low: float
    prefill_ms_high: float
    tpot_ms: float
    tpot_ms_low: float
    tpot_ms_high: float
    e2e_ms: float
    e2e_ms_low: float
    e2e_ms_high: float
    output_tokens_per_s: float
    memory_gib: Mapping[str, float]
    breakdown: Mapping[str, Mapping[str, float]]
    basis: Mapping[str, float]
    notes: tuple[str, ...] = ()
    prefill_energy_j: float = 0.0
    prefill_energy_j_low: float = 0.0
    prefill_energy_j_high: float = 0.0
    decode_energy_j: float = 0.0
    decode_energy_j_low: float = 0.0
    decode_energy_j_high: float = 0.0
    energy_j_per_output_token: float = 0.0
    energy_j_per_output_token_low: float = 0.0
    energy_j_per_output_token_high: float = 0.0
    power_w: float = 0.0
    power_w_low: float = 0.0
    power_w_high: float = 0.0

    @property
    def ttft_ms(self) -> float:
        """`prefill_ms`, as `serve` calls the first token's time."""
        return self.prefill_ms

    def __str__(self) -> str:
        words = []
        for name, key in zip(("first tokens", "token", "end to end"), TIMES, strict=True):
            ms, low, high = (getattr(self, key + side) for side in ("", "_low", "_high"))
            words.append(f"{name} {ms:,.4g} ms ({low:,.4g} to {high:,.4g})")
        return f"{self.model} on {self.gpus} × {self.gpu}, {self.engine}: {', '.join(words)}"


def estimate(
    model: ModelSource,
    gpu: str | GPU,
    *,
    batch: int,
    input_len: int,
    output_len: int,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    engine: str | Engine = "vllm",
    max_num_batched_tokens: int = STEP_TOKENS,
    kv_dtype: str | None = None,
    moe_backend: str | None = None,
    images: int = 0,
    speculative: Any = None,
    host: str | Host | None = None,
    power_limit_w: float | None = None,
    quantize: str | None = None,
) -> Estimate:
    """Time and memory of a static batch: all prompts, then all output tokens.

    Args:
        model: as in `load_model`.
        gpu: name, spec file or `GPU`.
        batch: requests that run together.
        input_len: prompt tokens of a request.
        output_len: output tokens of a request; 0 asks for an embedding or a score.
        tp: ranks that share each matrix.
        pp: stages that share the layers.
        ep: ranks that share the experts.
        dp: ranks of attention data parallelism, which share the requests of the batch.
        engine: `vllm`, `sglang`, `trtllm`, with or without version.
        max_num_batched_tokens: tokens of a step at most; longer prompts are cut.
        kv_dtype: type of the cache; the model's by default.
        moe_backend: what runs the experts, in the engine's own words, such as `marlin`.
        images: images of a request, each of the size that the model's tower is made for; their tokens come on top of
            `input_len`.
        speculative: how tokens are drafted, such as `method=mtp,tokens=3,acceptance=0.8`.
        host: whose cores run the engine, such as `cores=16,speed=0.8`; by default, those its times were measured on.
        power_limit_w: power limit of each board, W, as `nvidia-smi -pl` sets it; the part's own by default.
        quantize: other weights: `fp8`, made of 16-bit ones while they are loaded, a format (`awq`) or a repository.

    Returns:
        Times in ms with a 90 % interval, joules, memory in GiB, time by kernel family.

    Raises:
        CannotShard: heads, experts or layers do not divide.
        DoesNotFit: weights, cache and workspace exceed the memory.
        UnknownGPU, UnknownModel, BadInput: an argument that cannot be.

    Source: kernels as by `predict` under `serving`, gaps by engine (docs/how-it-works.md).
    """
    sizes = {"batch": batch, "input_len": input_len, "max_num_batched_tokens": max_num_batched_tokens}
    for name, size in (sizes | {"output_len": output_len, "images": images}).items():
        check_whole(name, size, 1 if name in sizes else 0, LARGEST)
    how = speculative_of(speculative) if speculative else None
    setup = Setup(tp, pp, ep, engine, dp=dp, kv_dtype=kv_dtype, moe_backend=moe_backend, speculative=how, images=images)
    run = StaticBatch(batch, input_len, output_len, max_num_batched_tokens)
    board = limited(find_gpu(gpu), power_limit_w)
    spec = load_as(model, quantize, engine if isinstance(engine, str) else engine.name)
    return static_estimate(spec, board, setup, run, host=host_of(host) if host else None)


def static_estimate(
    model: ModelSpec, gpu: GPU, setup: Setup, batch: StaticBatch, *, host: Host | None = None
) -> Estimate:
    """Time and memory of a static batch, for every door: `estimate` and the mode of `serve --cases`. Raises as these.

    Steps take the budget of `batch`, which holds the requests of all data-parallel ranks, not that of `setup`.
    """
    ready = ReadyBatch.of(model, gpu, setup, batch, host)
    timeline, setup, gpus, rank = ready.timeline, ready.setup, ready.setup.parallel.world, ready.rank
    runner, spec = timeline.runner, timeline.runner.deployment.model
    uncertain = setup.uncertainty(runner.engine, runner.usual()[0])
    times, notes = ready.times()
    breakdown = timeline.breakdown()
    if setup.images:  # those of each prompt are encoded before it, one prompt after the other
        each = float(runner.price([runner.deployment.images(setup.images)]).us[0]) * rank.requests * 1e-3
        times |= {name: times[name] + each for name in ("prefill_ms", "e2e_ms")}
        breakdown["prefill_ms"]["vision_tower"] = each
    lengths, tokens = spec.length_notes(rank.input_len + rank.output_len), batch.requests * batch.output_len
    return Estimate(
        model=spec.name,
        gpu=runner.gpu.name,
        engine=runner.engine.name,
        gpus=gpus,
        **times,
        **interval_ends(times, uncertain),
        output_tokens_per_s=0.0 if spec.pooled else 1e3 * batch.requests * rank.output_len / times["e2e_ms"],
        memory_gib=timeline.memory_gib(ready.memory),
        breakdown=breakdown,
        basis=timeline.basis(),
        notes=(*spec.notes, *lengths, *timeline.steps.notes, *_host_notes(setup, breakdown), uncertain.note(), *notes),
        **_energy(times, timeline.watts(), gpus, tokens, board_of(gpu), uncertain.half("e2e_ms")),
    )


def _host_notes(setup: Setup, breakdown: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Whose host it is, and how much of the time to first tokens is its own where that is much."""
    prompts, pace = breakdown["prefill_ms"], 1.0 / setup.front_end.launch
    share = prompts.get("launch", 0.0) / sum(prompts.values())
    if share < HOST_BOUND or pace == 1.0:
        return [INSIDE_NOTE]
    waits = f"{100 * share:.0f} % of the time to first tokens waits for that host to launch kernels one by one"
    return [INSIDE_NOTE, f"{waits}; published servers' hosts do so at {pace:g} times its pace (host: speed={pace:g})"]


@dataclass(frozen=True, slots=True, eq=False)
class ReadyBatch:
    """A static batch on its engine: how many of its requests run at once, and in which steps."""

    setup: Setup
    rank: StaticBatch  # of the fullest rank: the others have as many requests or one less
    memory: Budget
    kv: KvBudget
    policy: SchedulingPolicy
    timeline: Timeline  # of those that run at once

    @classmethod
    def of(cls, model: ModelSpec, gpu: GPU, setup: Setup, batch: StaticBatch, host: Host | None) -> ReadyBatch:
        """Arguments as those of `static_estimate`."""
        spec, drafting = for_output(model, batch.output_len), setup.speculative
        if drafting or setup.max_num_batched_tokens:
            setup = replace(setup, max_num_batched_tokens=None, speculative=drafting.by(spec) if drafting else None)
        runner = _served(Deployment(spec, setup.parallel, setup.kv_dtype), gpu, setup, host)
        prompt, step_tokens = batch.input_len + image_tokens(spec, setup.images), batch.budget
        memory = _budget(runner.deployment, runner.gpu, runner.engine, max_batched_tokens=step_tokens)
        memory = with_drafter(memory, runner, setup.speculative) if setup.speculative else memory
        requests, longest = -(-batch.requests // setup.dp), prompt + batch.output_len
        kv = _kv_budget(runner, memory, longest, step_tokens)
        policy = policy_of(runner.engine, setup, kv, max_batched_tokens=step_tokens)
        held = requests_at_once(runner.deployment, memory, requests, longest, step_tokens)
        output = max(batch.output_len, 1)  # an embedding takes the step of a first token
        rank = StaticBatch(requests, prompt, output, step_tokens)
        run = replace(rank, requests=min(held, policy.max_requests))
        return cls(setup, rank, memory, kv, policy, Timeline(runner, Schedule.of(policy, kv, run)))

    def times(self) -> tuple[dict[str, float], list[str]]:
        """Times in ms of all requests of a rank, with what drafts, and notes. A single token is not drafted for."""
        timeline, how, rank = self.timeline, self.setup.speculative, self.rank
        runner, run, times, notes = timeline.runner, timeline.plan.batch, timeline.times(), list[str]()
        spec = runner.deployment.model
        if how and run.output_len > 1 and not spec.pooled:
            tpot = drafted_tpot_ms(runner, how, run)
            times |= {"tpot_ms": tpot, "e2e_ms": times["prefill_ms"] + (run.output_len - 1) * tpot}
            notes += draft_notes(spec, how.method)
            drafted = f"drafts by {how.method}: {how.mean:.2f} tokens a step"
            notes.append(f"{drafted}; the breakdown is of a step without them")
        if run.requests < rank.requests:
            times = dict(queued_times(runner, self.policy, self.kv, rank, how))
            notes.append(
                f"{run.requests} requests a rank run at once (KV cache, limit of requests): the others wait their "
                "turn; breakdown and memory are those of a full batch"
            )
        return times, notes


def _energy(
    times: Mapping[str, float], watts: tuple[float, float], gpus: int, tokens: int, board: Board, half_s: float
) -> dict[str, Any]:
    """Joules and watts of all GPUs; `watts`: mean of one before the first tokens and after them."""
    prefill_s, decode_s = 1e-3 * times["prefill_ms"], 1e-3 * max(times["e2e_ms"] - times["prefill_ms"], 0.0)
    spent = [gpus * mean * seconds for mean, seconds in zip(watts, (prefill_s, decode_s), strict=True)]
    power_w, rate = sum(spent) / (gpus * (prefill_s + decode_s)), tokens / (prefill_s + decode_s)
    found = dict(energy_figures(power_w, gpus, rate, board, half_s))
    each = found.get("energy_j_per_output_token")
    for side in ("", "_low", "_high"):
        factor = found[f"energy_j_per_output_token{side}"] / each if each else 1.0
        found |= {f"prefill_energy_j{side}": spent[0] * factor, f"decode_energy_j{side}": spent[1] * factor}
    return found


@lru_cache(maxsize=256)
def _served(deployment: Deployment, gpu: GPU, setup: Setup, host: Host | None) -> Runner:
    """The deployment of a set-up. Raises CannotShard, BadInput."""
    runner = Runner.of(deployment, gpu, setup.program())
    return runner.hosted(host) if host else runner


def for_output(model: ModelSpec, output_len: int) -> ModelSpec:
    """The model as it runs for so many output tokens: without its head for none. Encoders generate nothing."""
    if model.encoder and output_len:
        raise BadInput(f"output_len = {output_len}: {model.name} is an encoder; it must be 0", field="output_len")
    return model if model.pooled == (output_len == 0) else replace(model, pooled=output_len == 0)


def image_tokens(model: ModelSpec, images: int) -> int:
    """Tokens that the images of one prompt take in the language model. Raises BadInput where it has no tower."""
    if images and model.tower is None:
        raise BadInput(f"images = {images}: {model.name} has no vision tower", field="images")
    return images * model.tower.tokens if model.tower else 0
