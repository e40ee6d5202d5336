"""Pools of a disaggregated deployment that is only known to be one: decode engines, and prefill engines at their rate.

A decode engine has the GPUs that are given (or the fewest that hold the model), split the way that makes a token of the
requests in flight soonest: tensor parallel, or data-parallel attention over shared experts. Between the fewest that
hold all requests in flight (nobody sends more than that) and one for each lies every pool that somebody could run: few
engines make cheap tokens, many make fast ones. Nothing said, the middle is taken: the pool with the most tokens a
second and GPU times tokens a second and user, prefill GPUs counted, from which one per cent of either costs one per
cent of the other. Prefill engines are as many as keep up, and both pools no more GPUs than nearly every public launch
(`pools.yaml`) has. The whole range is in the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from pipewave.errors import BadInput, CannotShard, DoesNotFit
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec
from pipewave.simulate.pools import Pools, Side, routed
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import Traffic

SIZES = (1, 2, 4, 8, 16, 32, 64)
HEADROOM = 1.15  # prefill capacity over the rate of decoding
MOST_WORKERS = 64
MOST_GPUS = 72  # an NVLink rack; 8 of the 501 launches of pools.yaml have more


def matched(model: ModelSpec, gpu: str | GPU, setup: Setup, gpus_given: int, traffic: Traffic) -> tuple[Pools, str]:
    """The pools for some traffic, and a note on them. `gpus_given`: GPUs that a table gives for the deployment.

    Raises DoesNotFit when no size holds the model.
    """
    setup, flight = routed(setup), traffic.concurrency or len(traffic)
    given = 1 << (gpus_given.bit_length() - 1)  # or the fewest beyond them
    able = next(_servers(model, gpu, setup, traffic.longest, given))
    decode, side = min(able, key=lambda one: _token_s(one[0], flight, traffic))
    prefill, first = next(_servers(model, gpu, setup, traffic.longest))[0]
    choices = list(_choices(prefill, decode, flight, traffic))
    choice = min(choices, key=lambda one: one.gpus / flight * one.token_s**2)
    open_ = max(abs(math.log(one.token_s / choice.token_s)) for one in choices)
    return Pools((prefill, decode), (choice.prefill, choice.decode), pools_open=open_), (
        f"disaggregated, pools not given: {choice.prefill} prefill engines of {first.gpus} GPUs match the rate of "
        f"{choice.decode} decode engines of tp {side.tp}, dp {side.dp}; {choices[0].decode} hold all requests, and of "
        f"{choices[0].decode} to {choices[-1].decode} these make most of tokens a GPU × tokens a user"
    )


class Choice(NamedTuple):
    """Numbers of engines of two pools, GPUs of both, and seconds from token to token."""

    prefill: int
    decode: int
    gpus: int
    token_s: float


def _choices(prefill: Server, decode: Server, flight: int, traffic: Traffic) -> Iterator[Choice]:
    """Pools from the fewest decode engines that hold all requests on, while nobody would run more GPUs; prefill engines
    are as many as keep up.
    """
    first, then = (server.runner.deployment.parallel for server in (prefill, decode))
    fewest = min(math.ceil(flight / (_fits(decode, traffic) * then.dp)), MOST_WORKERS)
    for engines in range(fewest, max(min(flight, MOST_WORKERS), fewest) + 1):
        token_s = _token_s(decode, math.ceil(flight / engines), traffic)
        rate = flight / (float(traffic.output_len.mean()) * token_s)
        workers = min(max(math.ceil(HEADROOM * rate * _prompt_s(prefill, traffic)), 1), MOST_WORKERS)
        gpus = workers * first.world + engines * then.world
        if engines > fewest and gpus > MOST_GPUS:
            break
        yield Choice(workers, engines, gpus, token_s)


def _servers(
    model: ModelSpec, gpu: str | GPU, setup: Setup, longest: int, fewest: int = 1
) -> Iterator[list[tuple[Server, Side]]]:
    """Engines of rising numbers of GPUs, tensor parallel or with data-parallel attention, where some can be. Raises
    DoesNotFit at the end.
    """
    for size in (size for size in SIZES if size >= fewest):
        sides = [Side(tp=size, ep=size if model.is_moe else 1)]
        sides += [Side(dp=size, ep=size)] if model.is_moe and size > 1 else []
        found = []
        for side in sides:
            with suppress(CannotShard, DoesNotFit, BadInput):
                found.append((Server.of(model, gpu, side.of(setup), longest), side))
        if found:
            yield found
    raise DoesNotFit(f"{model.name} fits no engine of up to {SIZES[-1]} × {find_gpu(gpu).name}", field="gpu")


def _fits(server: Server, traffic: Traffic) -> int:
    """Requests that a rank decodes at once, by its cache and its limit."""
    return max(min(server.memory.kv_tokens // max(_each(traffic), 1), server.policy.max_requests), 1)


def _each(traffic: Traffic) -> int:
    """Tokens that a request holds on average."""
    return int(traffic.input_len.mean() + traffic.output_len.mean() / 2)


def _token_s(server: Server, flight: int, traffic: Traffic) -> float:
    """Seconds from token to token with so many requests in flight, or with those that the cache holds and the wait."""
    ranks = server.runner.deployment.parallel.dp
    alone = -(-flight // ranks)
    fits = max(min(alone, _fits(server, traffic)), 1)
    table = server.drafted or server.table
    work = (fits, fits * _each(traffic), ())
    step = table.group_seconds([work] * ranks) if ranks > 1 else table.seconds(*work)
    return step * max(alone / fits, 1.0)


def _prompt_s(server: Server, traffic: Traffic) -> float:
    """Seconds of a prefill engine for one prompt, in steps as full as the budget allows; a longer prompt is cut."""
    length, budget = int(traffic.input_len.mean()), server.policy.max_batched_tokens
    if length <= budget:
        together = budget // length
        return server.table.seconds(0, 0, [(length, 0)] * together) / together
    return sum(server.table.seconds(0, 0, [(min(length - done, budget), done)]) for done in range(0, length, budget))
