"""A static batch that drafts: its decode phase in steps that verify drafts and make new ones.

Prompts take what they take without drafts. Then steps of all requests together, each making `mean` tokens a request:
their time is sampled over the growing caches, verification and drafts by the same tables' kernels as in `serve`.
"""

from __future__ import annotations

import numpy as np

from pipewave.models.kernels import Batch
from pipewave.physics.demand import Array
from pipewave.simulate.drafting import Drafted, Drafter
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.table import StepTable
from pipewave.simulate.uniform import Uniform, sample
from pipewave.step import Runner

SAMPLES = 6


def tpot_ms(runner: Runner, how: Speculative, run: Uniform) -> float:
    """Mean time between tokens."""
    return float(np.mean(_steps_ms(runner, how, run))) / how.mean


def _steps_ms(runner: Runner, how: Speculative, run: Uniform) -> Array:
    """Sampled steps, drafts included."""
    caches = [run.input_len + 1 + int(at) for at in sample(0, run.output_len - 1, SAMPLES)]
    verified, count = how.verified, run.batch
    batches = [
        Batch(
            (verified,) * count, (cache + how.tokens,) * count, runner.engine.graphs.padded(count) * verified, verified
        )
        for cache in caches
    ]
    steps = runner.steps(batches)
    drafter = Drafter(runner, how, count, run.input_len + run.output_len + how.tokens)
    drafts = np.array([1e6 * drafter.seconds(count, count * cache) for cache in caches])
    took: Array = 1e-3 * (steps.total_us + drafts)
    return took


def table(runner: Runner, how: Speculative, budget: int, requests: int, longest: int) -> Drafted:
    """Step times of such a deployment, for a batch of which a part waits."""
    verifying = StepTable(runner, budget=budget, requests=requests, longest=longest, verify=how.verified)
    return Drafted(verifying, Drafter(runner, how, requests, longest), how.mean)
