"""A first look at a deployment: the largest rate that it may serve, from a tenth of its step times and no run.

A decode step with B requests lasts d(B) and a prompt adds x to steps, so a data-parallel rank that holds B requests
serves them at

    rate = 1 / (x + O d(B) / B),    TPOT = d(B) + (B − 1) x / O

of O output tokens each; a prompt waits as in M/D/1 for those before it (Poisson arrivals). A prompt of any rank holds
up all ranks, which share a step with those that come while another one runs. Drafts and pipeline lanes are in d(B) as
the simulator has them. Which designs are run, and at which rate first, is all that rests on it: what a
plan says of a design is what `serve` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.files import packaged
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.kernels.collective.fabric import network_gbps
from pipewave.models import ModelSpec
from pipewave.models.load import check_online
from pipewave.physics.demand import Array
from pipewave.planning.launch import check_blocks
from pipewave.planning.manifests import platform_of
from pipewave.planning.run import stated
from pipewave.planning.space import Question, Split
from pipewave.published.answers import check_prompts
from pipewave.published.unstated import fill
from pipewave.simulate.pools import HANDOVER_S
from pipewave.simulate.report import LEAST, Limit
from pipewave.simulate.server import Server
from pipewave.simulate.step_grids import RankBatch
from pipewave.simulate.traffic import synthetic
from pipewave.step import find_engine
from pipewave.step.memory import cache_bytes

POINTS, ROUNDS = 40, 8  # numbers of requests at which a deployment is looked at, and rounds of its fixed point
IDLE = (0.02, 0.1, 0.3, 0.6, 1.0)  # requests of a rank, on average, below those
SHORTEST_S = 1e-6  # of a prompt, where its step is read as no longer than one without
FILLED = 0.9  # of the cache, on average: arrivals come at random
BUSY = 0.93  # of the largest rate, where no limit is nearer
PREFILL_BUSY = 0.8  # of the time of prefill engines
MOST_WORKERS = 16  # engines of a pool
QUICK = 0.7  # of the limit on the first token, up to which a prompt alone leaves time to wait and to be handed over
OVER_MEAN = packaged.shared(Path(__file__).with_name("tables.json"))["over_mean"]  # percentiles over means, roughly


@dataclass(frozen=True, slots=True, eq=False)
class Screened:
    """What is likely of a deployment, or why it is not possible. Rates in requests a second of a replica, at which the
    limits are kept by the likely times and by the upper ends of their intervals; 0 where they are not at any.
    """

    split: Split
    rate: float = 0.0
    sure_rate: float = 0.0
    prompt_share: float = 0.0  # of the engines' time that prompts take
    times_ms: tuple[float, float, float] = (math.inf, math.inf, math.inf)  # TTFT, TPOT, end to end at that rate
    least_ms: tuple[float, float] = (math.inf, math.inf)  # TTFT and TPOT of a request alone
    prompt_s: float = 0.0  # of a prompt on engines that run nothing else, where those are many
    moved_s: float = 0.0  # of a prompt's cache over the network
    decode: Curve | None = None  # of engines whose prompts come with their cache
    spread: Mapping[str, float] = field(default_factory=dict)  # half the interval of each time's logarithm
    refused: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A deployment at rising numbers of requests, [point]: of all its ranks and lanes."""

    rate: Array  # requests a second
    ttft_s: Array
    tpot_s: Array

    def within(self, limits: Sequence[Limit], output: int, spread: Mapping[str, float] | None = None) -> float:
        """The largest rate that keeps the limits by these times, or by the upper ends of their intervals, which steps
        at their slowest must keep up with; 0: none.
        """
        worst = np.full(len(self.rate), math.log(LEAST))
        times = {"ttft_ms": self.ttft_s, "tpot_ms": self.tpot_s, "e2e_ms": self.ttft_s + (output - 1) * self.tpot_s}
        for limit in limits:
            wide = spread[limit.metric] if spread else 0.0
            over = OVER_MEAN[limit.metric][limit.statistic]
            late = np.maximum(1e3 * times[limit.metric] * over / limit.ms, LEAST)  # of one token, no TPOT
            worst = np.maximum(worst, np.log(late) + wide)
        worst = np.maximum.accumulate(worst)
        if worst[0] > 0:
            return 0.0
        slow = math.exp(spread["tpot_ms"]) if spread and limits else 1.0
        return float(min(np.exp(np.interp(0.0, worst, np.log(self.rate))), BUSY * self.rate.max() / slow))

    def at(self, rate: float) -> tuple[float, float]:
        """TTFT and TPOT in seconds at a rate."""
        return float(np.interp(rate, self.rate, self.ttft_s)), float(np.interp(rate, self.rate, self.tpot_s))


def screen(
    model: ModelSpec, split: Split, question: Question, gpu: GPU | None = None, at_rate: float = 0.0
) -> Screened:
    """Look at a split; `gpu` stands in for the named one (what-if); times are those at a rate, or at the largest."""
    try:
        return _screen(model, split, question, gpu or split.card, at_rate)
    except PipewaveError as problem:
        return Screened(split, refused=problem.message)


def _screen(model: ModelSpec, split: Split, question: Question, gpu: GPU, at_rate: float) -> Screened:
    split.parallel.check(model)
    platform_of(split.gpu, engine := find_engine(split.engine).name)
    check_blocks(model, split)
    check_online(split.weights, engine)
    outputs = max(question.longest - question.longest_prompt, 1)
    longest = synthetic(1, input_len=question.longest_prompt, output_len=outputs, rate=1.0)
    setup = fill(stated(model, split, question), longest).setup
    server = Server.of(model, gpu, setup, question.input_len + question.output_len, prompt=question.input_len)
    check_prompts(server, question.longest_prompt)
    look = _Look(server, question)
    whole = look.curve(apart=False)
    spread = {metric: server.uncertain.half(metric) for metric in OVER_MEAN}
    rate, sure = (whole.within(question.limits, question.output_len, wide) for wide in (None, spread))
    shown = at_rate or rate or float(whole.rate[0])
    ttft, tpot = whole.at(shown)
    return Screened(
        split,
        rate,
        sure,
        prompt_share=min(look.beside_s * shown / look.lanes, 1.0),
        times_ms=_times_ms(ttft, tpot, question.output_len),
        least_ms=(1e3 * float(whole.ttft_s[0]), 1e3 * float(whole.tpot_s[0])),
        prompt_s=look.prompt_s,
        moved_s=HANDOVER_S + cache_bytes(server.runner.deployment, question.input_len) / (1e9 * network_gbps(gpu)),
        decode=look.curve(apart=True) if split.pp == 1 and question.output_len > 1 else None,
        spread=spread,
    )


class _Look:
    """Step times of a server for one kind of request."""

    def __init__(self, server: Server, question: Question) -> None:
        self.server, self.output, self.input = server, question.output_len, question.input_len
        self.ranks = server.setup.dp
        self.lanes = server.runner.deployment.parallel.pp * self.ranks  # schedulers whose batches are their own
        self.timer = server.pool(1).timer
        found = min(int(question.prefix_share * question.input_len), question.input_len - 1)
        self.before = int(server.kv.usable_prefix(np.array([found]), server.policy.max_batched_tokens)[0])
        self.cache = question.input_len + question.output_len // 2
        fits = FILLED * server.kv.pages / server.kv.held(self.cache)
        self.most = max(min(fits, server.policy.max_requests), 1.0)
        self.prompt_s = self._prompt_s(0.0, self.ranks)
        self.beside_s = self._prompt_s(self.most / 2, self.ranks)

    def _step_s(self, requests: float, piece: tuple[int, int] | None = None, prompts: int = 1) -> float:
        """A step with so many requests of a rank, and a piece of a prompt of so many ranks."""
        whole = round(requests)
        if not (whole or piece):
            return 0.0
        work: list[tuple[int, int]] = [piece] if piece else []
        held = int(whole * self.cache)
        if self.ranks > 1:
            batches: list[RankBatch] = [(whole, held, work)] * prompts + [(whole, held, ())] * (self.ranks - prompts)
            return self.timer.group_seconds(batches)
        return self.timer.seconds(whole, held, work)

    def _prompt_s(self, requests: float, prompts: int) -> float:
        """What prompts of so many ranks add to steps in which so many requests of each decode."""
        policy = self.server.policy
        beside = requests if policy.mixes_phases else 0.0
        room = max(int(policy.max_batched_tokens - beside), 1)
        if not policy.chunked_prefill:
            room = max(room, self.input)
        alone = self._step_s(beside)
        left = range(self.before, self.input, room)
        added = sum(self._step_s(beside, (min(room, self.input - done), done), prompts) - alone for done in left)
        return max(added, SHORTEST_S)

    def curve(self, *, apart: bool) -> Curve:
        """The deployment at rising numbers of requests; `apart`: their prompts run elsewhere."""
        requests = np.unique(np.concatenate((IDLE, np.geomspace(1.0, self.most, POINTS).round())))
        steps = np.array([self._step_s(max(each, 1.0)) for each in requests]) * (self.output > 1)
        step = np.interp(requests, [0.0, max(self.most / 2, 1.0)], [self.prompt_s, self.beside_s]) * (not apart)
        prompt = self._held_up(requests, steps, step)
        decode = self.output * steps if self.output > 1 else np.maximum(prompt, SHORTEST_S)
        rate = 1.0 / (prompt + decode / requests)
        busy = np.minimum(rate * prompt, 0.99)
        front = self.server.setup.front_end
        outside = 1e-6 * ((front.request_us + front.token_us * self.input) / front.workers + front.transit_us)
        tpot = steps + np.maximum(requests - 1.0, 0.0) * prompt / self.output
        first = outside + step * (1.0 + busy / (2.0 * (1.0 - busy))) + steps
        first = first + (self.server.setup.stream_interval - 1) * tpot
        return Curve(rate * self.lanes, first, tpot)

    def _held_up(self, requests: Array, steps: Array, step: Array) -> Array:
        """What a prompt of a rank costs it, those of other ranks that do not share its step among that."""
        if self.ranks == 1:
            return step
        alone = self._prompt_s(self.most / 2, 1) / max(self.beside_s, 1e-12)  # of a step with prompts of all ranks
        together = np.ones_like(step)  # prompts of a step that has any
        for _ in range(ROUNDS):
            part = alone + (1.0 - alone) * (together - 1.0) / (self.ranks - 1.0)
            prompt = step * part * self.ranks / together
            held = np.maximum(self.output * steps, SHORTEST_S) / requests
            came = self.ranks * (steps + step * part) / (prompt + held)
            together = np.clip(came, 1.0, self.ranks)
        return prompt


def pairs(found: Iterable[Screened], question: Question, most: int) -> Iterator[Screened]:
    """Prefill and decode engines apart, from what was seen of each alone: for every engine, cache type and weights, the
    cheapest prompts of each GPU beside the decode engines of all GPUs of the same maker, their rates matched.
    """
    groups: dict[tuple[str, str, str, str], list[Screened]] = {}
    for one in found:
        if one.decode is not None:
            split = one.split
            vendor = find_gpu(split.gpu).vendor
            groups.setdefault((split.engine, split.kv_dtype or "", split.weights, vendor), []).append(one)
    for group in groups.values():
        by_gpu: dict[str, list[Screened]] = {}
        for one in group:
            if not one.split.speculative:
                by_gpu.setdefault(one.split.gpu, []).append(one)
        prompts = [_cheapest(able, question) for able in by_gpu.values()]
        for decode, prefill in product(group, prompts):
            pair = _pair(prefill, decode, question, most)
            if pair is not None:
                yield pair


def _cheapest(able: Sequence[Screened], question: Question) -> Screened:
    """The cheapest prompts of a GPU among those that keep the limit on the first token."""
    limit = question.limit("ttft_ms")
    quick = [one for one in able if limit is None or 1e3 * one.prompt_s < QUICK * limit.ms]
    return min(quick or able, key=lambda one: one.prompt_s * one.split.gpus / one.split.dp)


def _pair(prefill: Screened, decode: Screened, question: Question, most: int) -> Screened | None:
    assert decode.decode is not None
    per_engine = PREFILL_BUSY * prefill.split.dp / prefill.prompt_s  # a step runs a prompt of each rank
    waits = PREFILL_BUSY / (2.0 * prefill.split.dp * (1.0 - PREFILL_BUSY))
    before = prefill.prompt_s * (1.0 + waits) + prefill.moved_s
    curve = replace(decode.decode, ttft_s=decode.decode.ttft_s + before)
    rate, sure = (curve.within(question.limits, question.output_len, wide) for wide in (None, decode.spread))
    if not rate:
        return None
    ratio = rate / per_engine
    x, y = (min(math.ceil(ratio), MOST_WORKERS), 1) if ratio > 1 else (1, max(min(int(1 / ratio), MOST_WORKERS), 1))
    split = replace(decode.split, prefill=prefill.split, workers=(x, y))
    if split.gpus > max(most, prefill.split.gpus + decode.split.gpus):
        return None
    rate, sure = (min(y * each, per_engine * x) for each in (rate, sure))
    ttft, tpot = curve.at(rate / y)
    return Screened(
        split,
        rate,
        sure,
        prompt_share=x * prefill.split.gpus / split.gpus,
        times_ms=_times_ms(ttft, tpot, question.output_len),
        least_ms=(1e3 * float(curve.ttft_s[0]), decode.least_ms[1]),
        spread=decode.spread,
    )


def _times_ms(ttft_s: float, tpot_s: float, output: int) -> tuple[float, float, float]:
    return 1e3 * ttft_s, 1e3 * tpot_s, 1e3 * (ttft_s + (output - 1) * tpot_s)
