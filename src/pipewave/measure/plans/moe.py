"""Fused mixture-of-experts layers of published models, with the tuned file of the stack and without."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipewave.measure.job import Job
from pipewave.measure.plans.estimate import rough_us
from pipewave.measure.plans.shapes import MOE

LONGEST_US = 12000.0
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)


def jobs(rng: np.random.Generator, *, per_shape: int) -> Iterator[Job]:
    """`triton` is what the stack runs (its tuned file where one exists); `triton_default` ignores the file."""
    for moe in MOE:
        for tp in moe.tps:
            chosen = sorted(rng.choice(TOKENS, size=min(per_shape, len(TOKENS)), replace=False).tolist())
            odd = np.exp(rng.uniform(0, np.log(16384), size=max(1, per_shape // 6))).astype(int).tolist()
            for tokens in dict.fromkeys([*chosen, *odd]):
                case = {"kernel": "fused_moe", "tokens": int(tokens), "experts": moe.experts, "topk": moe.topk}
                case |= {"hidden": moe.hidden, "inter": moe.inter, "tp": tp, "dtype": "bf16", "routing": "random"}
                if rough_us(case) <= LONGEST_US:
                    yield Job(case, "triton")
                    yield Job(case, "triton_default")
