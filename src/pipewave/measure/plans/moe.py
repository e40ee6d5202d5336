"""Fused mixture-of-experts layers of published models, with the tuned file of the stack and without."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipewave.measure.job import Job
from pipewave.measure.plans.estimate import rough_us
from pipewave.measure.plans.shapes import MOE, Moe
from pipewave.measure.plans.size import Size

LONGEST_US = 12000.0
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)


SCALE_BLOCK = 128
# Expert layers of no model in particular: what published ones are made of, drawn apart.
BLOCK_SHAPES, PER_BLOCK_SHAPE = 160, 10
EXPERTS, TOPKS = (8, 16, 32, 40, 48, 60, 64, 72, 96, 128, 160, 192, 256, 320, 384, 512), (1, 2, 4, 6, 8, 10)
HIDDEN_BLOCKS, INTER_BLOCKS = (8, 64), (1, 64)
LARGEST_WEIGHTS = 3_600_000_000  # elements of a layer, one byte each
FEW_TOKENS, FEW_SHARE = 32, 0.6


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


def block_jobs(rng: np.random.Generator) -> Iterator[Job]:
    """Block-scaled fp8 experts of many shapes, most of them over few tokens, where shapes differ most."""
    for _ in range(BLOCK_SHAPES):
        shape = _drawn(rng)
        for few in rng.random(PER_BLOCK_SHAPE) < FEW_SHARE:
            tokens = round(float(np.exp(rng.uniform(0, np.log(FEW_TOKENS if few else TOKENS[-1])))))
            case = {"kernel": "fused_moe", "tokens": tokens, **shape, "tp": 1, "dtype": "fp8_block"}
            if rough_us(case) <= LONGEST_US:
                yield Job(case | {"routing": "random"}, "triton")


def _drawn(rng: np.random.Generator) -> dict[str, int]:
    """Experts, top k, hidden and inter of a layer that fits."""
    while True:
        experts, topk = int(rng.choice(EXPERTS)), int(rng.choice(TOPKS))
        hidden, inter = (_blocks(rng, *ends) * SCALE_BLOCK for ends in (HIDDEN_BLOCKS, INTER_BLOCKS))
        if topk <= experts // 4 and 3 * experts * hidden * inter <= LARGEST_WEIGHTS:
            return {"experts": experts, "topk": topk, "hidden": hidden, "inter": inter}


def _blocks(rng: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _shape(rng: np.random.Generator, moe: Moe, tp: int, dtype: str, count: int) -> Iterator[Job]:
    chosen = sorted(rng.choice(TOKENS, size=min(count, len(TOKENS)), replace=False).tolist())
    odd = np.exp(rng.uniform(0, np.log(16384), size=max(1, count // 6))).astype(int).tolist()
    for tokens in dict.fromkeys([*chosen, *odd]):
        case = {"kernel": "fused_moe", "tokens": int(tokens), "experts": moe.experts, "topk": moe.topk}
        case |= {"hidden": moe.hidden, "inter": moe.inter, "tp": tp, "dtype": dtype, "routing": "random"}
        if rough_us(case) <= LONGEST_US:
            yield Job(case, "triton")
            yield Job(case, "triton_default")
