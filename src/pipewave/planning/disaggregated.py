"""Disaggregated designs in closed form: a decode engine at each batch, and prefill engines at its rate.

A decode engine with B requests in flight, O tokens each, needs B / (O × TPOT) prompts a second. Prefill engines, each a
server with the deterministic service time of one prompt, are kept below `BUSY` of their time; a prompt waits for them
as in M/D/x (Poisson arrivals): T × ρ / (2 x (1 − ρ)). Data-parallel ranks count as servers that start together. The
first token then comes with the prompt's step, and the cache moves as `serve` moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec
from pipewave.physics.demand import Array
from pipewave.planning.parts import Parts
from pipewave.planning.space import Question, Space, Split
from pipewave.planning.steady import Evaluated, Steady
from pipewave.simulate.server import HANDOVER_S, link_gbps
from pipewave.step.memory import cache_bytes

BUSY = 0.85  # most of a prefill engine's time that is planned with
MOST = 16  # engines of a pool


@dataclass(frozen=True, slots=True)
class Prefill:
    """Engines for prompts: seconds of one prompt, and its cache on a rank in bytes."""

    split: Split
    seconds: float
    bytes: float


def pairs(split: Split) -> bool:
    """Whether a split makes tokens of prompts that others took."""
    return split.pp == 1


def designs(
    model: ModelSpec, question: Question, space: Space, tell: Callable[[int], None] = lambda _done: None
) -> list[Evaluated]:
    """Every decode split beside the prefill split of its GPU and engine that does most prompts a second and GPU.
    `tell` hears of the splits that are done.
    """
    found: list[Evaluated] = []
    splits = sorted(filter(pairs, space.splits(model)), key=_kind)
    for _, members in groupby(splits, key=_kind):
        listed = list(members)
        best = _best(model, question, space, [s for s in listed if not s.speculative])
        if best is not None:
            for split in listed:
                found += _paired(model, question, space, split, best)
        tell(len(listed))
    return found


def _kind(split: Split) -> tuple[str, str, str]:
    return split.gpu, split.engine, split.kv_dtype or ""


def _best(model: ModelSpec, question: Question, space: Space, splits: list[Split]) -> Prefill | None:
    """The cheapest prompts among splits that keep the limit on the first token."""
    able = [one for split in splits if (one := _prefill(model, question, space, split)) is not None]
    quick = [one for one in able if question.ttft_ms is None or 1e3 * one.seconds < 0.8 * question.ttft_ms]
    return min(quick or able, key=lambda one: one.seconds * one.split.parallel.world, default=None)


def _prefill(model: ModelSpec, question: Question, space: Space, split: Split) -> Prefill | None:
    """A prompt alone on an engine; of data-parallel ranks each runs one at a time."""
    try:
        steady = Steady(model, split, replace(question, output_len=1), find_gpu(split.gpu))
        room = max(space.budgets)
        if steady.capacity([room])[0] < 1:
            return None
        parts = Parts(steady.runner, question, np.array([float(room)]), np.array([1.0]))
        steps = np.ceil(question.input_len / room)
        took = steps * parts.prompt_s(np.array([question.input_len / steps]), np.zeros(1))
        size = cache_bytes(steady.runner.deployment, question.input_len)
        return Prefill(split, float(took[0]) / split.dp, size)
    except PipewaveError:
        return None


def _paired(model: ModelSpec, question: Question, space: Space, split: Split, prefill: Prefill) -> Iterator[Evaluated]:
    """The batches of a decode split, by how many engines of either kind they take."""
    try:
        steady = Steady(model, split, question, find_gpu(split.gpu))
        room = min(space.budgets)
        fits = float(steady.capacity([room])[0])
    except PipewaveError:
        return
    lanes = np.array([float(b) for b in space.batches if b <= fits])
    if not len(lanes) or question.output_len < 2:
        return
    parts = Parts(steady.runner, question, np.full_like(lanes, room), lanes, steady.drafts)
    tpot = parts.decode_s(lanes)
    rate = lanes * split.dp / (question.output_len * tpot)
    engines = [_engines(each * prefill.seconds) for each in rate.tolist()]
    for workers in sorted(set(engines)):
        chosen = np.array([each == workers for each in engines])
        whole = replace(split, prefill=prefill.split, workers=workers)
        if whole.gpus <= max(space.gpus_most, split.parallel.world + prefill.split.parallel.world):
            columns = _columns(question, whole, prefill, steady, lanes[chosen], tpot[chosen], parts.spread)
            total = lanes[chosen] * split.dp * workers[1]
            yield Evaluated(whole, np.full_like(total, room), total, columns, notes=parts.notes)


def _engines(load: float) -> tuple[int, int]:
    """(prefill, decode) engines at a load of so many prefill engines a decode engine."""
    if load > BUSY:
        return min(int(np.ceil(load / BUSY)), MOST), 1
    return 1, max(min(int(BUSY / load), MOST), 1)


def _columns(
    question: Question, split: Split, prefill: Prefill, steady: Steady, lanes: Array, tpot: Array, spread: float
) -> dict[str, Array]:
    x, y = split.workers
    busy = np.minimum(y * lanes * split.dp / (question.output_len * tpot) * prefill.seconds / x, 0.99)
    own = prefill.seconds * prefill.split.dp  # a rank's prompt takes its own time, whatever the others do
    moved = _moved_s(steady, question, prefill, split.gpus, find_gpu(split.gpu))
    total = y * lanes * split.dp
    outside = steady.entrance.seconds(own + moved + tpot * question.output_len, total)
    first = outside + own * (1.0 + _waits(busy, x, prefill.split.dp))
    whole = first + moved + tpot * (question.output_len - 1)
    per_gpu = total * question.output_len / (whole - first - moved + tpot) / split.gpus
    return {
        "ttft_ms": 1e3 * first,
        "tpot_ms": 1e3 * (tpot + moved / max(question.output_len - 1, 1)),
        "e2e_ms": 1e3 * whole,
        "tokens_per_s_per_gpu": per_gpu,
        "tokens_per_s_per_user": 1.0 / tpot,
        "spread": np.full_like(tpot, spread),
    }


def _waits(busy: Array, engines: int, ranks: int) -> Array:
    """How long a prompt waits for prefill engines, over the time it takes itself: as in M/D/x. Ranks of an engine are
    servers of their own that start together: where every engine runs a step, first for the rest of that.
    """
    free = busy / (2.0 * engines * ranks * (1.0 - busy))
    if ranks == 1:
        return free
    running = 1.0 - (1.0 - busy) ** ranks
    return np.asarray(free + 0.5 * running**engines)


def _moved_s(steady: Steady, question: Question, prefill: Prefill, gpus: int, gpu: GPU) -> float:
    size = max(prefill.bytes, cache_bytes(steady.runner.deployment, question.input_len))
    return HANDOVER_S + size / (1e9 * link_gbps(gpu, gpus))
