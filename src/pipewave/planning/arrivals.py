"""How many prompts a step of a full engine meets, and how long they are, as a few equally likely cases.

A place in the batch falls free when a request is done, which comes about at random: prompts per step are Poisson
distributed around their mean rate. What a step costs bends with its tokens (captured graphs end at a size, hosts cannot
keep ahead), so the mean over cases is not the cost of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.physics.demand import Array

CASES = 16
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
    def at(cls, rate: Array) -> Groups:
        """Groups at `rate` prompts a step, [settings]; their mean is kept exactly."""
        share = -np.expm1(-rate)
        quantile = (np.arange(CASES)[:, None] + 0.5) / CASES
        prompts = np.maximum(_poisson(1.0 - share * (1.0 - quantile), rate), 1.0)
        prompts = prompts * (rate / share) / prompts.mean(axis=0)
        length = 1.0 + np.resize(LENGTHS, CASES)[:, None] / np.sqrt(prompts)
        return cls(share, prompts, length)


def _poisson(probability: Array, rate: Array) -> Array:
    """Quantiles of Poisson counts of mean `rate`, [settings], at each `probability`, [cases, settings]."""
    count = np.arange(int(rate.max() + 6.0 * np.sqrt(rate.max()) + 6.0))[:, None]
    log_factorial = np.cumsum(np.log(np.maximum(count, 1)), axis=0)
    reached = np.cumsum(np.exp(count * np.log(rate) - rate - log_factorial), axis=0)
    return np.array([(reached < row).sum(axis=0) for row in probability], float)
