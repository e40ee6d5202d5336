"""What the memory beside the weights holds: pages of keys and values, and recurrent states among them or apart."""

from __future__ import annotations

import math

from pipewave.errors import BadInput
from pipewave.models.attention_spec import Mixer, Mla, Recurrent
from pipewave.models.kernels import Deployment
from pipewave.models.shard import element_bytes
from pipewave.simulate.limits import Limits
from pipewave.simulate.states import Kept
from pipewave.simulate.traffic import Traffic
from pipewave.software.engine import Engine
from pipewave.software.engine_parts import (
    BRANCHES,
    CHECKPOINT_PLACES,
    EVERY_BLOCK,
    NOT_CACHED,
    STEP_ENDS,
    STEP_ENDS_ON_BLOCK,
)
from pipewave.step import Runner
from pipewave.step.memory import GIB, Budget, caches_in, held_bytes, states_in

STATELY = 1 << 20  # pages of a state where no layer has any other cache
ATTENTION_BLOCK, LATENT_BLOCK = 16, 64  # tokens of the smallest block of vLLM's attention, and of latents


def limits_of(runner: Runner, memory: Budget, longest: int, tokens: int | None = None) -> Limits:
    """Scheduler limits, with a budget of so many `tokens` a step in place of the engine's.

    Windows and latents are counted through the cache a request of the longest length takes.
    """
    engine, deployment = runner.engine, runner.deployment
    lanes, budget = deployment.parallel.pp, tokens or engine.scheduler.max_batched_tokens
    pages, state_pages = _pages(deployment, memory, engine.memory.page_size, longest, budget)
    pages //= lanes
    kept = _kept(deployment, engine, memory, state_pages) if deployment.model.has(Recurrent) else None
    if kept and kept.keeps == STEP_ENDS_ON_BLOCK and kept.tokens > budget:
        raise BadInput(
            f"max_num_batched_tokens = {budget}: {engine.name} keeps states of whole blocks of {kept.tokens} tokens; a "
            "step must take as many",
            field="max_num_batched_tokens",
        )
    # No more requests can ever run than the cache holds of the shortest kind; a smaller table is a faster one.
    most = pages // (1 + state_pages) if state_pages else pages
    if memory.state_pool:
        most, state_pages = min(most, int(states_in(deployment, memory)) // memory.states // lanes), 0
    return Limits(
        budget,
        min(engine.scheduler.max_requests, most),
        pages,
        engine.memory.page_size,
        engine.scheduler.mixes_phases,
        chunks=engine.scheduler.chunks,
        prompt_tokens=0 if tokens else engine.scheduler.max_prefill_tokens,
        reserve=engine.scheduler.output_reserve,
        reserve_least=engine.scheduler.output_reserve_least,
        caches=_caches(engine, deployment),
        state_pages=state_pages,
        kept=kept,
        compile_s=1e-6 * engine.host.compile_us,
    )


def _caches(engine: Engine, deployment: Deployment) -> bool:
    """Whether prefixes of prompts are found again: those of a model with states, only where these are kept."""
    return (
        engine.memory.states.places != NOT_CACHED
        if deployment.model.has(Recurrent)
        else engine.scheduler.prefix_cache is not False
    )


def traffic_notes(runner: Runner, limits: Limits, traffic: Traffic) -> tuple[str, ...]:
    """What is said of requests: too long for the model, or with prefixes that a model with states may not keep."""
    return (*runner.deployment.model.length_notes(traffic.longest), *_prefix_notes(runner, limits, traffic))


def _prefix_notes(runner: Runner, limits: Limits, traffic: Traffic) -> tuple[str, ...]:
    """What is said of prompts whose prefixes are known, where a model has recurrent states."""
    known = traffic.blocks is not None or traffic.found_len is not None
    if not (known and runner.deployment.model.has(Recurrent)):
        return ()
    name = f"{runner.engine.name} {runner.engine.version}"
    if limits.kept is None:
        unless = " unless prefix caching is asked for" if runner.engine.memory.states.opt_in else ""
        return (f"prompts are computed whole: {name} keeps no recurrent states for later ones{unless}",)
    return (
        f"prefixes are used up to the last recurrent state that {name} keeps ({CHECKPOINT_PLACES[limits.kept.keeps]})",
    )


def _pages(deployment: Deployment, memory: Budget, page_size: int, longest: int, chunk: int) -> tuple[int, int]:
    """Pages of the cache, and those that a request's states take of them."""
    one, two = (held_bytes(deployment, memory, count, longest, chunk, 0) for count in (1, 2))
    state = deployment.state_bytes
    if two == one:
        return int(memory.kv * GIB / state) * STATELY if state else 0, memory.states * STATELY
    pages = int(caches_in(deployment, memory, longest, chunk, 0) * longest) // page_size
    return pages, math.ceil(memory.states * state * longest / ((two - one) * page_size))


def _kept(deployment: Deployment, engine: Engine, memory: Budget, state_pages: int) -> Kept | None:
    """How states are kept for other requests, where they are."""
    rule, lanes = engine.memory.states, deployment.parallel.pp
    if rule.places == NOT_CACHED:
        return None
    tokens = rule.every_tokens or (
        1 if rule.places == STEP_ENDS else _block_tokens(deployment, rule.places == EVERY_BLOCK)
    )
    tokens = max(tokens, _recurrences(deployment)[0].chunk) if rule.places == BRANCHES else tokens
    if not memory.state_pool:
        return Kept(rule.places, tokens, pages=-(-state_pages // memory.states))
    slots = int(states_in(deployment, memory) * rule.free_to_admit / memory.states) // lanes
    return Kept(rule.places, tokens, slots=slots, each=rule.per_request)


def _block_tokens(deployment: Deployment, whole_chunks: bool) -> int:
    """Tokens of a block of attention that takes at least as many bytes as a state, in blocks of its kernel; in whole
    chunks of the scan where a state is kept at each (vLLM 0.22.1 platforms/interface.py _align_hybrid_block_size)."""
    width, tp = element_bytes(deployment.model, deployment.kv_dtype), deployment.parallel.tp
    attention: list[Mixer] = [each for each in _mixers(deployment) if each.token_bytes(width, tp)]
    recurrences = _recurrences(deployment)
    unit = LATENT_BLOCK if any(isinstance(each, Mla) for each in attention) else ATTENTION_BLOCK
    unit = math.lcm(recurrences[0].chunk, unit) if whole_chunks else unit
    if not attention:
        return unit
    state = max(each.state_bytes(tp, deployment.state_width) for each in recurrences)
    return unit * math.ceil(state / (unit * attention[0].token_bytes(width, tp)))


def _mixers(deployment: Deployment) -> list[Mixer]:
    return [mixer for layer, _ in deployment.model.grouped() for mixer in layer.mixers]


def _recurrences(deployment: Deployment) -> list[Recurrent]:
    return [mixer for mixer in _mixers(deployment) if isinstance(mixer, Recurrent)]
