"""Fused mixture-of-experts layers of published models, with the tuned file of the stack and without."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lab.plans import Size
from lab.plans.shapes import MOE, Moe
from pipewave.measure.plan import Job, rough_us

LONGEST_US = 12000.0
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)


SCALE_BLOCK = 128


def jobs(rng: np.random.Generator, size: Size) -> Iterator[Job]:
    """`triton` is what the stack runs (its tuned file where one exists); `triton_default` ignores the file."""
    for moe in MOE:
        for tp in moe.tps:
            yield from _shape(rng, moe, tp, "bf16", size.per_moe)


def quantized(rng: np.random.Generator, size: Size) -> Iterator[Job]:
    """The same layers in fp8, two thirds of the token counts: scales a tensor, and a block where blocks divide them."""
    for moe in MOE:
        for tp in moe.tps:
            yield from _shape(rng, moe, tp, "fp8", -(-2 * size.per_moe // 3))
            if moe.hidden % SCALE_BLOCK == 0 and moe.inter % (tp * SCALE_BLOCK) == 0:
                yield from _shape(rng, moe, tp, "fp8_block", -(-2 * size.per_moe // 3))


def _shape(rng: np.random.Generator, moe: Moe, tp: int, dtype: str, count: int) -> Iterator[Job]:
    chosen = sorted(rng.choice(TOKENS, size=min(count, len(TOKENS)), replace=False).tolist())
    odd = np.exp(rng.uniform(0, np.log(16384), size=max(1, count // 6))).astype(int).tolist()
    for tokens in dict.fromkeys([*chosen, *odd]):
        case = {"kernel": "fused_moe", "tokens": int(tokens), "experts": moe.experts, "topk": moe.topk}
        case |= {"hidden": moe.hidden, "inter": moe.inter, "tp": tp, "dtype": dtype, "routing": "random"}
        if rough_us(case) <= LONGEST_US:
            yield Job(case, "triton")
            yield Job(case, "triton_default")
