"""Plans of one family behind the data set, as cases files: `python -m lab.ragged_plans ragged --out FILE`.

`ragged` and `mixed`: attention over batches as servers form them, unequal requests, pages of many sizes scattered over
a full cache. `experts`: block-scaled fp8 experts of many shapes. `pipewave measure --plan FILE` measures them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.plans import attention
from lab.plans.attention import LARGEST_CACHE, LONGEST_CONTEXT, LONGEST_US, Lens, layouts
from lab.plans.built_in import SEED
from lab.plans.moe import LONGEST_US as LONGEST_EXPERTS_US
from lab.plans.moe import SCALE_BLOCK, TOKENS
from pipewave.measure.plan import PAGE_ORDERS, Job, rough_us

CALLS, MIXED_CALLS = 3600, 12000
PAGES, PAGE_SHARES = (16, 32, 64, 128, 256), (0.6, 0.1, 0.15, 0.1, 0.05)
ORDER_SHARES = (0.7, 0.2, 0.1)  # of PAGE_ORDERS
EVERY_ORDER = 24  # one call in so many is measured with its pages in every order, which shows what the order costs
MOST_REQUESTS = 256
# Expert layers of no model in particular: what published ones are made of, drawn apart.
BLOCK_SHAPES, PER_BLOCK_SHAPE = 160, 10
EXPERTS, TOPKS = (8, 16, 32, 40, 48, 60, 64, 72, 96, 128, 160, 192, 256, 320, 384, 512), (1, 2, 4, 6, 8, 10)
HIDDEN_BLOCKS, INTER_BLOCKS = (8, 64), (1, 64)
LARGEST_WEIGHTS = 3_600_000_000  # elements of a layer, one byte each
FEW_TOKENS, FEW_SHARE = 32, 0.6
# (heads, kv_heads, head_dim) of one rank of published models: Llama, Qwen, Mistral, gpt-oss, and those without groups
SERVED = (
    (32, 8, 128), (16, 4, 128), (8, 2, 128), (4, 1, 128), (64, 8, 128), (8, 1, 128), (16, 2, 128), (32, 4, 128),
    (28, 4, 128), (14, 2, 128), (7, 1, 128), (40, 8, 128), (20, 4, 128), (10, 2, 128), (5, 1, 128), (48, 8, 128),
    (24, 8, 128), (12, 2, 128), (16, 8, 128), (12, 4, 128), (64, 4, 128), (16, 1, 128), (32, 32, 128), (16, 16, 128),
    (8, 8, 128), (64, 8, 64), (32, 4, 64), (16, 2, 64), (32, 8, 64), (14, 2, 64), (8, 1, 64), (16, 16, 64),
)  # fmt: skip

Rng = np.random.Generator
Draw = Callable[[Rng, int, int, int], np.ndarray[tuple[int], np.dtype[np.float64]]]


def _log(rng: Rng, low: float, high: float, size: int | None = None) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.exp(rng.uniform(np.log(low), np.log(high), size=size))


def _straggler(rng: Rng, count: int, low: int, high: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Short requests and a long one."""
    lens = _log(rng, low, min(high, 8 * low), count)
    lens[rng.integers(count)] = high
    return lens


def _two_kinds(rng: Rng, count: int, low: int, high: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Chats and documents: a random share of the requests is long, each kind within a factor of 1.5."""
    return np.where(rng.random(count) < rng.uniform(0.1, 0.9), high, low) * _log(rng, 0.67, 1.0, count)


# How lengths spread between the shortest and the longest of a batch.
SPREADS: tuple[Draw, ...] = (
    lambda rng, count, low, high: rng.uniform(low, high, count),
    lambda rng, count, low, high: _log(rng, low, high, count),
    lambda rng, count, low, high: np.exp(rng.normal(np.log(np.sqrt(low * high)), 1.0, count)),
    _straggler,
    _two_kinds,
)


def lengths(rng: Rng, count: int, low: int, high: int) -> list[int]:
    """`count` unequal lengths; their own shortest and longest are drawn between `low` and `high` first."""
    longest = float(_log(rng, 4 * low, high))
    shortest = float(_log(rng, low, max(low, longest / 4) + 1e-9))
    lens = SPREADS[rng.integers(len(SPREADS))](rng, count, round(shortest), round(longest))
    return [int(n) for n in np.clip(lens.round(), 1, LONGEST_CONTEXT)]


def _requests(rng: Rng, least: int, most: int) -> int:
    return round(float(_log(rng, least, most)))


def decode(rng: Rng) -> Lens:
    """One new token a request."""
    count = _requests(rng, 2, MOST_REQUESTS)
    return [1] * count, lengths(rng, count, 16, LONGEST_CONTEXT)


def prefill(rng: Rng) -> Lens:
    """Whole prompts."""
    lens = lengths(rng, _requests(rng, 2, 32), 16, 16384)
    return lens, lens


def chunked(rng: Rng) -> Lens:
    """Parts of prompts whose earlier parts are cached."""
    count = _requests(rng, 2, 12)
    chunks, cached = lengths(rng, count, 16, 8192), lengths(rng, count, 64, 49152)
    return chunks, [min(q + c, LONGEST_CONTEXT) for q, c in zip(chunks, cached, strict=True)]


def mixed(rng: Rng) -> Lens:
    """Decodes, and a few prompts or parts of prompts behind them."""
    q_lens, kv_lens = decode(rng)
    q_more, kv_more = (chunked if rng.random() < 0.5 else prefill)(rng)
    kept = int(rng.integers(1, 4))
    return q_lens + q_more[:kept], kv_lens + kv_more[:kept]


WIDER_KV, MOST_HEADS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64), 64
MIXED_PHASES, MIXED_SHARES = (mixed, attention.mixed, chunked), (0.5, 0.35, 0.15)
PHASES, PHASE_SHARES = (decode, mixed, chunked, prefill), (0.4, 0.34, 0.13, 0.13)


def mixed_jobs(rng: Rng, calls: int = MIXED_CALLS) -> Iterator[Job]:
    """Batches with prompts behind decodes alone, and a few parts of prompts, on layouts that no other plan has too.

    Layouts decide what is held out, and calls learn from other layouts only: a third of them is drawn wider.
    """
    sources = (SERVED, layouts(), wider())
    for _ in range(calls):
        phase = MIXED_PHASES[rng.choice(len(MIXED_PHASES), p=MIXED_SHARES)]
        source = sources[rng.integers(len(sources))]
        job = _job(phase(rng), source[rng.integers(len(source))], rng)
        if _affordable(job):
            yield job


def wider() -> list[tuple[int, int, int]]:
    """(heads, kv_heads, head_dim) of any group size up to 16 over 1 to 64 heads of keys and values."""
    kept = [(kv * group, kv) for kv in WIDER_KV for group in range(1, 17) if kv * group <= MOST_HEADS]
    return [(heads, kv, dim) for heads, kv in kept for dim in (128, 64)]


def jobs(rng: Rng, calls: int = CALLS) -> Iterator[Job]:
    """FlashAttention-3 over `calls` batches, half of them on layouts of published models, the rest on any."""
    every = layouts()
    for number in range(calls):
        phase = PHASES[rng.choice(len(PHASES), p=PHASE_SHARES)]
        source = SERVED if rng.random() < 0.5 else every
        job = _job(phase(rng), source[rng.integers(len(source))], rng)
        if _affordable(job):
            yield job
            if number % EVERY_ORDER == 0:
                yield from (replace(job, pages=order) for order in PAGE_ORDERS if order != job.pages)


def _job(lens: Lens, layout: tuple[int, int, int], rng: Rng) -> Job:
    heads, kv_heads, head_dim = layout
    case = {"kernel": "attention", "q_lens": lens[0], "kv_lens": lens[1], "heads": heads, "kv_heads": kv_heads}
    case |= {"head_dim": head_dim, "dtype": "bf16", "page_size": int(rng.choice(PAGES, p=PAGE_SHARES))}
    return Job(case, "fa3", pages=str(rng.choice(PAGE_ORDERS, p=ORDER_SHARES)))


def _affordable(job: Job) -> bool:
    case = job.case
    tokens = sum(-(-n // case["page_size"]) * case["page_size"] for n in case["kv_lens"])
    return rough_us(case) <= LONGEST_US and tokens * case["kv_heads"] * case["head_dim"] <= LARGEST_CACHE


def block_jobs(rng: np.random.Generator) -> Iterator[Job]:
    """Block-scaled fp8 experts of many shapes, most of them over few tokens, where shapes differ most."""
    for _ in range(BLOCK_SHAPES):
        shape = _drawn(rng)
        for few in rng.random(PER_BLOCK_SHAPE) < FEW_SHARE:
            tokens = round(float(np.exp(rng.uniform(0, np.log(FEW_TOKENS if few else TOKENS[-1])))))
            case = {"kernel": "fused_moe", "tokens": tokens, **shape, "tp": 1, "dtype": "fp8_block"}
            if rough_us(case) <= LONGEST_EXPERTS_US:
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


# The jobs of each plan, and its own stream of random numbers.
PLANS: dict[str, tuple[Callable[[Rng], Iterable[Job]], int]] = {
    "ragged": (jobs, 7),
    "mixed": (mixed_jobs, 8),
    "experts": (block_jobs, 9),
}


def plan(name: str) -> list[Job]:
    """The jobs of a plan, each call once."""
    source, stream = PLANS[name]
    return list({job.key: job for job in source(np.random.default_rng([SEED, stream]))}.values())


def main() -> None:
    """Write a plan as a cases file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    lines = (json.dumps(dict(job.case) | {"impl": job.impl, "pages": job.pages}) for job in plan(given.name))
    given.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
