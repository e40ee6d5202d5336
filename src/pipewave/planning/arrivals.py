"""How many prompts a step of a full engine meets, and how long they are, as a few equally likely cases.

A place in the batch falls free when a request is done, which comes about at random; its successor comes through the
front end a while later, and a scheduler looks once a step. What a step costs bends with its tokens (captured graphs
end at a size, hosts cannot keep ahead), so the mean over cases is not the cost of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.physics.demand import Array

CASES = 16
ROUNDS = 40  # of a fixed point that closes in by at least a third each
LEAST = 1e-6  # prompts a look
# Prompts are taken to vary within half of their mean, evenly; these stand for the quarters of that range.
LENGTHS = 0.5 * np.array([-0.75, 0.25, -0.25, 0.75])


@dataclass(frozen=True, slots=True)
class Groups:
    """Prompts that come together. `share`: of the steps that meet any, [settings]; `prompts`: how many come then, and
    `length`: their mean length over that of all prompts, [cases, settings], all cases equally likely."""

    share: Array
    prompts: Array
    length: Array

    @classmethod
    def at(cls, rate: Array, share: Array | None = None) -> Groups:
        """Groups at `rate` prompts a step, [settings], of which `share` meet any (None: as if steps were equally long);
        their mean is kept exactly."""
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

    Of successors on their way, the share `come(T)` = 1 − exp(−T / late_s) arrives during a step of T seconds, so those
    found after it are Poisson with that share of the stationary number on the way. With p the chance to find any after
    a step without prompts, q after one with, p / (p + 1 − q) of steps meet some where prompts ride along, and
    p / (1 − q) steps of prompts alone come on a decode step.
    """
    after_decode, after_prompts = come(decode_s, late_s), come(prompts_s, late_s)
    share = -np.expm1(-rate)
    for _ in range(ROUNDS):
        under_way = rate / ((1.0 - share * mixes) * after_decode + share * after_prompts)
        p, q = (-np.expm1(-under_way * one) for one in (after_decode, after_prompts))
        found = p / (np.maximum(1.0 - q, LEAST) + p * mixes)
        share = 0.5 * (share + np.clip(found, LEAST * rate, np.minimum(rate, 1.0) if mixes else rate))
    return np.asarray(share)


def come(step_s: Array, late_s: float) -> Array:
    """The share of those under way that arrive during steps of so many seconds."""
    return np.asarray(-np.expm1(-step_s / max(late_s, LEAST)))


def rest_s(step_s: Array, late_s: float) -> Array:
    """What is left of a step when they arrive, summed over those that do: ∫ (T − u) exp(−u / late_s) du / late_s."""
    return np.asarray(step_s - late_s * come(step_s, late_s))


def _looked(prompts: Array) -> Array:
    """Prompts a look, of those that find any `prompts` on average: x / (1 − exp(−x)) = prompts."""
    found = np.asarray(prompts)
    for _ in range(ROUNDS):
        found = prompts * -np.expm1(-found)
    return np.maximum(found, LEAST)


def _poisson(probability: Array, rate: Array) -> Array:
    """Quantiles of Poisson counts of mean `rate`, [settings], at each `probability`, [cases, settings]."""
    count = np.arange(int(rate.max() + 6.0 * np.sqrt(rate.max()) + 6.0))[:, None]
    log_factorial = np.cumsum(np.log(np.maximum(count, 1)), axis=0)
    reached = np.cumsum(np.exp(count * np.log(rate) - rate - log_factorial), axis=0)
    return np.array([(reached < row).sum(axis=0) for row in probability], float)
