"""Pools of a disaggregated deployment that is only known to be one: decode engines, and prefill engines at their rate.

A decode engine has the GPUs that are given (or the fewest that hold the model), split the way that makes a token of the
requests in flight soonest: tensor parallel, or data-parallel attention over shared experts. There are as many as hold
all requests in flight: nobody sends more than that. Prefill engines are as many as keep up with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pipewave.errors import BadInput, CannotShard, DoesNotFit
from pipewave.models import ModelSpec, load
from pipewave.serving.disaggregated import Disaggregated, Side
from pipewave.serving.run import Server
from pipewave.serving.setup import Setup
from pipewave.serving.traffic import Traffic

SIZES = (1, 2, 4, 8, 16, 32, 64)
HEADROOM = 1.15  # prefill capacity over the rate of decoding
MOST_WORKERS = 64


def matched(model: str, gpu: str, setup: Setup, gpus_given: int, traffic: Traffic) -> tuple[Disaggregated, str]:
    """The pools for some traffic, and a note on them. `gpus_given`: GPUs that a table gives for the deployment.

    Raises DoesNotFit when no size holds the model.
    """
    spec, flight = load(model), traffic.concurrency or len(traffic)
    decode, side = _decode(spec, gpu, setup, gpus_given, flight, traffic)
    engines = min(math.ceil(flight / _room(decode, traffic)), MOST_WORKERS)
    prefill, first = _prefill(spec, gpu, setup, traffic)
    rate = flight / (float(traffic.output_len.mean()) * _token_s(decode, math.ceil(flight / engines), traffic))
    workers = min(max(math.ceil(HEADROOM * rate * _prompt_s(prefill, traffic)), 1), MOST_WORKERS)
    pools = Disaggregated(prefill, decode, (workers, engines))
    return pools, (
        f"disaggregated, pools not given: {workers} prefill engines of {first.gpus} GPUs match the rate of the decode "
        f"engines that hold all requests, {engines} of tp {side.tp}, dp {side.dp}"
    )


def _splits(model: ModelSpec, size: int) -> Iterator[Side]:
    """Ways to cut a model over so many GPUs."""
    yield Side(tp=size, ep=size if model.is_moe and size > 1 else 1)
    if model.is_moe and size > 1:
        yield Side(dp=size, ep=size)


def _servers(model: ModelSpec, gpu: str, setup: Setup, size: int, longest: int) -> Iterator[tuple[Server, Side]]:
    """Those that can be."""
    for side in _splits(model, size):
        try:
            yield Server.of(model, gpu, side.of(setup), longest), side
        except (CannotShard, DoesNotFit, BadInput):
            continue


def _decode(
    model: ModelSpec, gpu: str, setup: Setup, gpus_given: int, flight: int, traffic: Traffic
) -> tuple[Server, Side]:
    """The engine that makes a token soonest, on the GPUs given or the fewest beyond them."""
    start = 1 << (gpus_given.bit_length() - 1)
    for size in (size for size in SIZES if size >= start):
        found = list(_servers(model, gpu, setup, size, traffic.longest))
        if found:
            return min(found, key=lambda one: _token_s(one[0], flight, traffic))
    raise DoesNotFit(f"{model.name} fits no engine of up to {SIZES[-1]} × {gpu}", field="gpu")


def _prefill(model: ModelSpec, gpu: str, setup: Setup, traffic: Traffic) -> tuple[Server, Side]:
    """The fewest GPUs that hold the model, tensor parallel."""
    for size in SIZES:
        for server, side in _servers(model, gpu, setup, size, traffic.longest):
            return server, side
    raise DoesNotFit(f"{model.name} fits no engine of up to {SIZES[-1]} × {gpu}", field="gpu")


def _room(server: Server, traffic: Traffic) -> int:
    """Requests that an engine decodes at once, by its cache and its limit."""
    return _fits(server, traffic) * server.runner.deployment.parallel.dp


def _fits(server: Server, traffic: Traffic) -> int:
    """The same of a rank."""
    return max(min(server.memory.kv_tokens // max(_each(traffic), 1), server.limits.requests), 1)


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
    step = table.together([work] * ranks) if ranks > 1 else table.seconds(*work)
    return step * max(alone / fits, 1.0)


def _prompt_s(server: Server, traffic: Traffic) -> float:
    """Seconds of a prefill engine for one prompt, in steps as full as the budget allows."""
    length = int(traffic.input_len.mean())
    together = max(server.limits.tokens // length, 1)
    pieces = [(min(length, server.limits.tokens), 0)] * together
    steps = max(length / server.limits.tokens, 1.0)
    return server.table.seconds(0, 0, pieces) * steps / together
