"""KV pages that a scheduler may fill, recurrent states among them or apart, and host memory for idle ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pipewave.errors import BadInput, DoesNotFit
from pipewave.models.attention_spec import Mixer, Mla, Recurrent
from pipewave.models.kernels import Deployment
from pipewave.models.lora_and_drafts import adapter_bytes
from pipewave.models.shard import element_bytes
from pipewave.simulate.prefix_cache import StateCheckpoint
from pipewave.simulate.traffic import Ints, Traffic
from pipewave.software import engine_parts
from pipewave.software.engine import Engine
from pipewave.step import Runner
from pipewave.step.memory import GIB, Budget, cache_bytes, caches_in, held_bytes, requests_in, states_in

PAGES_OF_A_STATE = 1 << 20  # where no layer has any other cache
ATTENTION_BLOCK, LATENT_BLOCK = 16, 64  # tokens of the smallest block of vLLM's attention, and of latents
PCIE_SHARE = 0.8  # of the PCIe rate in one direction that copies of pages reach
SAMPLE_TOKENS = 4096  # over which the bytes of a cached token are counted
UNLIMITED = 1 << 62
MOST_QUEUED = 100_000  # requests of a batch of which only a part fits at once


@dataclass(frozen=True, slots=True)
class KvBudget:
    """KV cache of one engine in pages, and how prefixes and recurrent states are kept in it."""

    pages: int
    page_size: int  # tokens
    max_requests: int = UNLIMITED  # of the shortest kind that it holds
    prefix_caching: bool = True
    state_pages: int = 0  # pages of a request's recurrent states, beside its tokens
    checkpoint: StateCheckpoint | None = None  # how states are kept for other requests; None: the model has none
    host_pages: int = 0  # pages in the host's memory for idle blocks of prompts
    host_load_s: float = 0.0  # seconds to copy a token's cache back

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` take."""
        return -(-tokens // self.page_size)

    def held(self, tokens: int) -> int:
        """Pages of a request whose cache has so many tokens, its states' among them."""
        return self.pages_for(tokens) + self.state_pages

    def too_small(self, tokens: int) -> DoesNotFit:
        """The error of a request whose cache has so many tokens at its end."""
        size = self.pages * self.page_size
        wrong = f"a request of {tokens} tokens does not fit the KV cache of {size} tokens"
        return DoesNotFit(f"{wrong}; use more GPUs or shorter requests", field="gpu")

    def usable_prefix(self, found: Ints, step_tokens: int) -> Ints:
        """Tokens that can be used of cached prefixes of so many tokens, [request]; `step_tokens`: of a step, where
        prompts part behind these prefixes (0: they do not).
        """
        if not self.prefix_caching:
            return np.zeros_like(found)
        return found if self.checkpoint is None else self.checkpoint.reached(found, step_tokens)


def kv_budget(runner: Runner, memory: Budget, longest: int, tokens: int | None = None) -> KvBudget:
    """The budget of one pipeline lane, with steps of so many `tokens` in place of the engine's.

    Windows and latents are counted through the cache that a request of the longest length takes. Raises BadInput for
    steps shorter than a block of recurrent states.
    """
    engine, deployment = runner.engine, runner.deployment
    lanes, budget = deployment.parallel.pp, tokens or engine.scheduler.max_batched_tokens
    pages, state_pages = _pages(deployment, memory, engine.memory.page_size, longest, budget)
    pages //= lanes
    checkpoint = _checkpoint(deployment, engine, memory, state_pages) if deployment.model.has(Recurrent) else None
    if checkpoint and checkpoint.place == engine_parts.STEP_ENDS_ON_BLOCK and checkpoint.tokens > budget:
        raise BadInput(
            f"max_num_batched_tokens = {budget}: {engine.name} keeps states of whole blocks of {checkpoint.tokens} "
            "tokens; a step must take as many",
            field="max_num_batched_tokens",
        )
    # No more requests can ever run than the cache holds of the shortest kind; a smaller table is a faster one.
    most = pages // (1 + state_pages) if state_pages else pages
    if memory.state_pool:
        most, state_pages = min(most, int(states_in(deployment, memory)) // memory.states // lanes), 0
    # Prefixes of a model with recurrent states are cached only where these are kept.
    kept = engine.memory.states.places != engine_parts.NOT_CACHED
    caches = kept if deployment.model.has(Recurrent) else engine.scheduler.prefix_cache is not False
    return KvBudget(pages, engine.memory.page_size, most, caches, state_pages, checkpoint)


def requests_at_once(deployment: Deployment, memory: Budget, batch: int, length: int, chunk: int) -> int:
    """Requests of `length` tokens that the KV cache holds together, up to `batch`.

    Raises DoesNotFit for not one, and for more waiting ones than can be walked through.
    """
    most = max(requests_in(deployment, memory, length, chunk), 0.0)
    fits = int(min(most, batch))
    if fits and (fits == batch or batch <= MOST_QUEUED):
        return fits
    asked = batch if fits else 1
    needed = held_bytes(deployment, memory, asked, length, chunk)
    raise DoesNotFit(
        f"batch = {asked}: the KV cache of {asked} requests of {length} tokens takes {needed / GIB:.1f} GiB "
        f"a GPU, {memory.kv:.1f} GiB are free; at most {int(most)} such requests fit",
        field="batch",
    )


def with_adapters(memory: Budget, runner: Runner) -> Budget:
    """GPU memory with LoRA adapters beside the weights. Raises DoesNotFit."""
    deployment = runner.deployment
    if deployment.lora is None:
        return memory
    taken = adapter_bytes(deployment.model, deployment.parallel, deployment.lora) / GIB
    return beside(memory, taken, runner.engine.memory.page_size, "adapters", "lora")


def beside(memory: Budget, taken: float, page_size: int, what: str, field: str, own: float = 1.0) -> Budget:
    """GPU memory with so many GiB more of weights, and an `own` share of the cache left. Raises DoesNotFit."""
    if taken >= memory.kv:
        raise DoesNotFit(f"{taken:.1f} GiB of {what} leave no KV cache in {memory.kv:.1f} GiB", field=field)
    kv, drafts = (memory.kv - taken) * own, (memory.kv - taken) * (1.0 - own)
    tokens = int(memory.kv_tokens * kv / memory.kv) // page_size * page_size
    pool = memory.state_pool * kv / memory.kv
    weights = memory.weights + taken
    return replace(memory, weights=weights, kv=kv, kv_tokens=tokens, state_pool=pool, drafts=memory.drafts + drafts)


def offloaded(kv: KvBudget, runner: Runner, host_gib: float) -> KvBudget:
    """The budget with pages in the host's memory, `host_gib` a GPU; copies back hold up the step that needs them."""
    if not 0 <= host_gib <= 1 << 16:
        raise BadInput(f"kv_offload_gib = {host_gib!r}: must be from 0 to {1 << 16} GiB a GPU", field="kv_offload_gib")
    if not host_gib:
        return kv
    each = cache_bytes(runner.deployment, SAMPLE_TOKENS) / SAMPLE_TOKENS
    pages = int(host_gib * GIB / (each * kv.page_size)) // runner.deployment.parallel.pp
    return replace(kv, host_pages=pages, host_load_s=each / (1e9 * PCIE_SHARE * runner.gpu.pcie_gbps))


def traffic_notes(runner: Runner, kv: KvBudget, traffic: Traffic) -> tuple[str, ...]:
    """Notes on requests too long for the model, or with prefixes that a model with recurrent states may not keep."""
    told = (*traffic.notes, *runner.deployment.model.length_notes(traffic.longest))
    known = traffic.shared is not None or traffic.found_len is not None
    if not (known and runner.deployment.model.has(Recurrent)):
        return told
    name = f"{runner.engine.name} {runner.engine.version}"
    if kv.checkpoint is None:
        unless = " unless prefix caching is asked for" if runner.engine.memory.states.opt_in else ""
        return (*told, f"prompts are computed whole: {name} keeps no recurrent states for later ones{unless}")
    places = engine_parts.CHECKPOINT_PLACES[kv.checkpoint.place]
    return (*told, f"prefixes are used up to the last recurrent state that {name} keeps ({places})")


def _pages(deployment: Deployment, memory: Budget, page_size: int, longest: int, chunk: int) -> tuple[int, int]:
    """Pages of the cache, and those that a request's states take of them."""
    one, two = (held_bytes(deployment, memory, count, longest, chunk, 0) for count in (1, 2))
    state = deployment.state_bytes
    if two == one and not state:  # an encoder keeps nothing
        return UNLIMITED, 0
    if two == one:
        return int(memory.kv * GIB / state) * PAGES_OF_A_STATE, memory.states * PAGES_OF_A_STATE
    pages = int(caches_in(deployment, memory, longest, chunk, 0) * longest) // page_size
    return pages, math.ceil(memory.states * state * longest / ((two - one) * page_size))


def _checkpoint(deployment: Deployment, engine: Engine, memory: Budget, state_pages: int) -> StateCheckpoint | None:
    """How states are kept for other requests, where they are."""
    rule, lanes = engine.memory.states, deployment.parallel.pp
    if rule.places == engine_parts.NOT_CACHED:
        return None
    whole_chunks = rule.places == engine_parts.EVERY_BLOCK
    block = 1 if rule.places == engine_parts.STEP_ENDS else _block_tokens(deployment, whole_chunks)
    tokens = rule.every_tokens or block
    tokens = max(tokens, _recurrences(deployment)[0].chunk) if rule.places == engine_parts.BRANCHES else tokens
    if not memory.state_pool:
        return StateCheckpoint(rule.places, tokens, pages=-(-state_pages // memory.states))
    slots = int(states_in(deployment, memory) * rule.free_to_admit / memory.states) // lanes
    return StateCheckpoint(rule.places, tokens, slots=slots, each=rule.per_request)


def _block_tokens(deployment: Deployment, whole_chunks: bool) -> int:
    """Tokens of a block of attention that takes at least as many bytes as a state, in blocks of its kernel; in whole
    chunks of the scan where a state is kept at each (vLLM 0.22.1 platforms/interface.py _align_hybrid_block_size).
    """
    width, tp = element_bytes(deployment.model, deployment.kv_dtype), deployment.parallel.tp
    mixers: list[Mixer] = [mixer for layer, _ in deployment.model.grouped() for mixer in layer.mixers]
    attention = [each for each in mixers if each.token_bytes(width, tp)]
    recurrences = _recurrences(deployment)
    unit = LATENT_BLOCK if any(isinstance(each, Mla) for each in attention) else ATTENTION_BLOCK
    unit = math.lcm(recurrences[0].chunk, unit) if whole_chunks else unit
    if not attention:
        return unit
    state = max(each.state_bytes(tp, deployment.state_width) for each in recurrences)
    return unit * math.ceil(state / (unit * attention[0].token_bytes(width, tp)))


def _recurrences(deployment: Deployment) -> list[Recurrent]:
    layers = (layer for layer, _ in deployment.model.grouped())
    return [mixer for layer in layers for mixer in layer.mixers if isinstance(mixer, Recurrent)]
