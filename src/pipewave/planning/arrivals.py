"""How many prompts a step of a full engine meets, and how long they are, as a few equally likely cases.

A place in the batch falls free when a request is done, which comes about at random; its successor comes through the
front end a while later, and a scheduler looks once a step. What a step costs bends with its tokens (captured graphs
end at a size, hosts cannot keep ahead), so the mean over cases is not the cost of the mean.

Before the engine stands a front end, where requests queue (`Entrance`). N clients that each wait for their answer, C
seconds of it elsewhere, and one server of S seconds a request: the mean time at that server is
R = S (1 + Q (N − 1) / N), with Q = N R / (C + R) requests there (approximate mean value analysis: Schweitzer 1979); its
solution is a square root.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.physics.demand import Array
from pipewave.software.front import Front


@dataclass(frozen=True, slots=True)
class Entrance:
    """A front end before an engine whose prompts have so many tokens."""

    front: Front
    input_len: int

    def seconds(self, cycle: Array, held: Array) -> Array:
        """From a client's sending to the engine, where `held` requests are in flight and spend `cycle` seconds in the
        engine.
        """
        front = self.front
        work = 1e-6 * (front.request_us + front.token_us * self.input_len) / front.workers
        elsewhere = cycle + 1e-6 * (front.transit_us + front.think_us)
        half = 0.5 * (work * held - elsewhere)
        return np.asarray(half + np.sqrt(half**2 + work * elsewhere) + 1e-6 * front.transit_us)

    @property
    def late_s(self) -> float:
        """How far, in seconds, the times scatter after which requests that end together come again."""
        return 1e-6 * self.front.variation * (self.front.request_us + self.front.transit_us)

    def stream_s(self, held: Array) -> Array:
        """The least time between two tokens of a request while tokens of all go out."""
        return 1e-6 * self.front.stream_us * held / self.front.workers


CASES = 16
ROUNDS, RUN = 4, 24  # of the number under way; steps of a run until that number stands still
LOOKED = 40  # rounds of a fixed point that closes in by at least a third each
LEAST = 1e-6  # prompts a look
# Prompts are taken to vary within half of their mean, evenly; these stand for the quarters of that range.
LENGTHS = 0.5 * np.array([-0.75, 0.25, -0.25, 0.75])


@dataclass(frozen=True, slots=True)
class Groups:
    """Prompts that come together. `share`: of the steps that meet any, [settings]; `prompts`: how many come then, and
    `length`: their mean length over that of all prompts, [cases, settings], all cases equally likely.
    """

    share: Array
    prompts: Array
    length: Array

    @classmethod
    def at(cls, rate: Array, share: Array | None = None) -> Groups:
        """Groups at `rate` prompts a step, [settings], of which `share` meet any (None: as if steps were equally long);
        their mean is kept exactly.
        """
        looked = rate if share is None else _looked(rate / share)
        share = -np.expm1(-rate) if share is None else share
        quantile = (np.arange(CASES)[:, None] + 0.5) / CASES
        met = -np.expm1(-looked)
        prompts = np.maximum(_poisson(1.0 - met * (1.0 - quantile), looked), 1.0)
        prompts = prompts * (rate / share) / prompts.mean(axis=0)
        length = 1.0 + np.resize(LENGTHS, CASES)[:, None] / np.sqrt(prompts)
        return cls(share, prompts, length)


def share_met(rate: Array, decode_s: Array, prompts_s: Array, late_s: float, *, mixes: bool) -> Array:
    """Of decode steps how many meet prompts, where one without lasts `decode_s`, prompts last `prompts_s`, and `rate`
    requests end with a decode step, whose successors come an exponential time of mean `late_s` later.

    Of those under way the share 1 − exp(−T / late_s) arrives during a step of T seconds. Independent and Poisson, those
    that stay under way do not depend on those that came: their mean follows from the steps since. Runs of steps without
    prompts end when any came, runs with prompts when none did; so long are both on average. Where prompts ride along,
    requests end with their steps, too.
    """
    begun = rate
    for _ in range(ROUNDS):
        without, found = _run(begun, rate, decode_s, late_s, ends_when_any=True)
        beside, begun = _run(found, rate * mixes, prompts_s, late_s, ends_when_any=False)
    share = beside / (without + beside * mixes)
    return np.asarray(np.clip(share, LEAST * rate, np.minimum(rate, 1.0) if mixes else rate))


def _run(under_way: Array, rate: Array, step_s: Array, late_s: float, *, ends_when_any: bool) -> tuple[Array, Array]:
    """Mean length of a run of equal steps with so many under way at its start, and how many are at its end."""
    came = come(step_s, late_s)
    on, steps, left = np.ones_like(under_way), np.zeros_like(under_way), np.zeros_like(under_way)
    for _ in range(RUN):
        any_came = -np.expm1(-under_way * came)
        ends = any_came if ends_when_any else 1.0 - any_came
        under_way = under_way * (1.0 - came) + rate
        steps, left, on = steps + on, left + on * ends * under_way, on * (1.0 - ends)
    return steps + on / np.maximum(ends, LEAST), left + on * under_way


def come(step_s: Array, late_s: float) -> Array:
    """The share of those under way that arrive during steps of so many seconds."""
    return np.asarray(-np.expm1(-step_s / max(late_s, LEAST)))


def rest_s(step_s: Array, late_s: float) -> Array:
    """What is left of a step when they arrive, summed over those that do: ∫ (T − u) exp(−u / late_s) du / late_s."""
    return np.asarray(step_s - late_s * come(step_s, late_s))


def _looked(prompts: Array) -> Array:
    """Prompts a look, of those that find any `prompts` on average: x / (1 − exp(−x)) = prompts."""
    found = np.asarray(prompts)
    for _ in range(LOOKED):
        found = prompts * -np.expm1(-found)
    return np.maximum(found, LEAST)


def _poisson(probability: Array, rate: Array) -> Array:
    """Quantiles of Poisson counts of mean `rate`, [settings], at each `probability`, [cases, settings]; counts beyond
    six standard deviations, which come once in a billion, are left out.
    """
    least = np.maximum(rate - 6.0 * np.sqrt(rate) - 6.0, 0.0).astype(np.intp)
    count = least + np.arange(int(12.0 * np.sqrt(rate.max()) + 14.0))[:, None]
    log_factorial = np.cumsum(np.log(np.maximum(np.arange(count.max() + 1), 1)))[count]
    reached = np.cumsum(np.exp(count * np.log(rate) - rate - log_factorial), axis=0)
    return np.array([least + (reached < row).sum(axis=0) for row in probability], float)
