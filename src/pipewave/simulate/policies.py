"""Scheduling policies: what vLLM, SGLang and TensorRT-LLM put into their next step.

`SchedulingPolicy.next_batch` is what they have in common; each engine's class says where it differs:

                        vLLM                       SGLang                          TensorRT-LLM
prompts and decodes     share steps                prompts in steps of their own   share steps
long prompts            cut into chunks            cut into chunks                 whole unless chunking is on
admission wants pages   for the prompt             and a share of outputs to come  and all outputs to come
cache full              newest request recomputed  newest request recomputed       cannot happen
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipewave.simulate.engine_step import BatchPolicy, Step
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.replica import Replica
from pipewave.simulate.setup import Setup
from pipewave.software.engine import Engine

RESERVE_SETTLES = 600  # decode steps over which SGLang's share of reserved outputs falls to its least


@dataclass(frozen=True, slots=True)
class SchedulingPolicy(BatchPolicy):
    """Continuous batching under a token budget: running requests first, then waiting ones in order of arrival."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on servers that compile kernels while they serve."""
        each = f"each number of prompt tokens that a step has for the first time waits {1e3 * self.compile_s:.0f} ms"
        return (f"{each} for a kernel to be compiled, as on a server just started",) if self.compile_s else ()

    def next_batch(self, engine: Replica, step: Step) -> int:
        """Put prompt pieces into `step`; returns how many requests decode in it."""
        if not (engine.waiting or engine.partial) and engine.opening <= engine.free:
            return engine.decoding
        engine.preempt_for_decodes(step)
        room = self.max_batched_tokens - (engine.decoding if self.mixes_phases else 0)
        if not step.preempted and not self._holds_prompts(engine, room):
            self._add_prompts(engine, step, room)
        return engine.decoding if self.mixes_phases or not step.pieces else 0

    def _add_prompts(self, engine: Replica, step: Step, room: int) -> None:
        """Prompt pieces into the tokens left: unfinished prompts first, then waiting requests."""
        for request, done in list(engine.partial.items()):
            room = engine.add_piece(step, request, done, room)
        while engine.waiting and room > 0 and engine.running + len(engine.leaving) < self.max_requests:
            request = engine.waiting[0]
            cached = engine.ready and request not in engine.evicted  # another engine has computed its prompt
            if not (cached or self._may_start(engine, request, room, step)):
                break
            if not engine.admit(request, self._reserved_pages(engine, request), step):
                break
            if cached:
                step.first.append(request)  # decodes from the next step on
            else:
                room = engine.add_piece(step, request, engine.found[request], room)

    def _may_start(self, engine: Replica, request: int, room: int, step: Step) -> bool:
        """Whether a prompt may start with `room` tokens left: whole or alone, where prompts are not cut."""
        if self.chunked_prefill:
            return True
        return engine.tokens[request] - engine.found[request] <= room or not (step.pieces or engine.decoding)

    def _reserved_pages(self, engine: Replica, request: int) -> int:
        """Pages that must stay free for outputs to come when a request is admitted."""
        return 0

    def _holds_prompts(self, engine: Replica, room: int) -> bool:
        """Whether waiting prompts are held back from this step."""
        return False


@dataclass(frozen=True, slots=True)
class VllmPolicy(SchedulingPolicy):
    """vLLM v1 (vllm/v1/core/sched/scheduler.py): every running request decodes in every step, prompt chunks fill the
    rest of the budget; where the cache is full, the newest request is preempted and recomputed later. V0 does not cut
    prompts and runs them in steps of their own.
    """


@dataclass(frozen=True, slots=True)
class SglangPolicy(SchedulingPolicy):
    """SGLang (srt/managers/schedule_policy.py PrefillAdder): prompt chunks in steps of their own, ahead of decodes,
    unless mixed chunks are asked for; admission reserves part of the outputs still to come.
    """

    max_prefill_tokens: int = 0  # prompt tokens of a step (0: no limit); the first prompt always fits
    # Share of outputs to come that must fit the cache: at the start, and once `RESERVE_SETTLES` decode steps were run.
    output_reserve: tuple[float, float] = (0.0, 0.0)

    def _may_start(self, engine: Replica, request: int, room: int, step: Step) -> bool:
        """A prompt that would use up `max_prefill_tokens` waits, it is not cut for them."""
        if self.max_prefill_tokens and step.pieces:
            held = sum(tokens for _, tokens, _ in step.pieces) + (engine.decoding if self.mixes_phases else 0)
            if held + engine.tokens[request] - engine.found[request] >= self.max_prefill_tokens:
                return False
        return SchedulingPolicy._may_start(self, engine, request, room, step)

    def _reserved_pages(self, engine: Replica, request: int) -> int:
        """A share of what running requests and this one will still make."""
        first, least = self.output_reserve
        if not (first and engine.running):
            return 0
        share = first + min(engine.tick / RESERVE_SETTLES, 1.0) * (least - first)
        return engine.kv.pages_for(int(share * engine.outputs_to_come(request)))


@dataclass(frozen=True, slots=True)
class TrtllmPolicy(SchedulingPolicy):
    """TensorRT-LLM (_torch/pyexecutor/scheduler.py, GUARANTEED_NO_EVICT): a request is admitted when all outputs to
    come fit, prompts are whole; with batch waiting, prompts wait while others decode for `wait_steps` steps, or until a
    step holds `wait_share` of its tokens.
    """

    wait_share: float = 0.0

    def _reserved_pages(self, engine: Replica, request: int) -> int:
        """Everything that running requests and this one will still make."""
        return engine.kv.pages_for(engine.outputs_to_come(request)) if engine.running else 0

    def _holds_prompts(self, engine: Replica, room: int) -> bool:
        """Whether prompts wait for company (batch_wait_timeout_iters, batch_wait_max_tokens_ratio)."""
        if not (self.wait_steps and engine.waiting and engine.decoding):
            return False
        tokens = engine.decoding
        for request in engine.waiting:
            if tokens + engine.tokens[request] > room:
                break
            tokens += engine.tokens[request]
        held = engine.held_steps < self.wait_steps and tokens < self.wait_share * self.max_batched_tokens
        engine.held_steps = engine.held_steps + 1 if held else 0
        return held


def policy_of(engine: Engine, setup: Setup, kv: KvBudget, *, max_batched_tokens: int | None = None) -> SchedulingPolicy:
    """The policy of an engine, resolved for the deployment, under a set-up. No more requests run than `kv` holds of the
    shortest kind. max_batched_tokens: of a step, in place of the engine's own limits.
    """
    rule = engine.scheduler
    shared: dict[str, Any] = {
        "max_batched_tokens": max_batched_tokens or rule.max_batched_tokens,
        "max_requests": min(rule.max_requests, kv.max_requests),
        "mixes_phases": rule.mixes_phases,
        "chunked_prefill": rule.chunks,
        "overlaps": rule.overlaps,
        "recv_interval": round(setup.recv_interval * (setup.speculative.mean if setup.speculative else 1.0)),
        "compile_s": 1e-6 * engine.host.compile_us,
    }
    if engine.name == "sglang":
        prompts = 0 if max_batched_tokens else rule.max_prefill_tokens
        reserve = (rule.output_reserve, rule.output_reserve_least)
        return SglangPolicy(**shared, max_prefill_tokens=prompts, output_reserve=reserve)
    if engine.name == "trtllm":
        shared |= {"wait_steps": setup.wait_steps, "prefill_wait_steps": setup.prefill_wait_steps}
        return TrtllmPolicy(**shared, wait_share=setup.wait_share)
    return VllmPolicy(**shared)
