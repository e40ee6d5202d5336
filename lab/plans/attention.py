"""Paged attention: prefill, decode, chunked prefill and mixed batches over many head layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from lab.plans import Size
from pipewave.measure.plan import Job, rough_us

LONGEST_US = 8000.0
LARGEST_CACHE = 1_000_000_000
PAGE = 16
LONGEST_CONTEXT = 65536
HEADS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
Lens = tuple[list[int], list[int]]


def layouts() -> list[tuple[int, int, int]]:
    """(heads, kv_heads, head_dim): all kv_heads of 1, 2, 4, 8 that divide heads, groups of at most 16."""
    kept = [(h, kv) for h in HEADS for kv in (1, 2, 4, 8) if h % kv == 0 and h // kv <= 16]
    return [(h, kv, 128) for h, kv in kept] + [(h, kv, 64) for h, kv in kept if h % 4 == 0 or h < 4]


def _log_int(rng: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _ragged(rng: np.random.Generator, count: int, low: int, high: int) -> list[int]:
    """`count` lengths: half of the time all equal, else spread by up to four times around a centre."""
    centre = _log_int(rng, low, high)
    if rng.random() < 0.5:
        return [centre] * count
    spread = np.exp(rng.uniform(-0.7, 0.7, size=count))
    return [int(n) for n in np.clip((centre * spread).round(), 1, LONGEST_CONTEXT)]


def prefill(rng: np.random.Generator) -> Lens:
    """Whole prompts, no cached context."""
    lens = _ragged(rng, int(rng.choice([1, 1, 1, 2, 3, 4, 8, 16, 32])), 16, 16384)
    return lens, lens


def decode(rng: np.random.Generator) -> Lens:
    """One new token a request."""
    batch = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]))
    return [1] * batch, _ragged(rng, batch, 16, LONGEST_CONTEXT)


def chunked(rng: np.random.Generator) -> Lens:
    """A chunk of a prompt whose earlier part is cached already."""
    batch = int(rng.choice([1, 1, 1, 2, 4]))
    chunks = _ragged(rng, batch, 16, 8192)
    cached = _ragged(rng, batch, 128, 49152)
    return chunks, [min(q + c, LONGEST_CONTEXT) for q, c in zip(chunks, cached, strict=True)]


def mixed(rng: np.random.Generator) -> Lens:
    """Decodes and one or two prompt chunks in one batch, as a chunked-prefill scheduler makes them."""
    q_decode, kv_decode = decode(rng)
    q_chunk, kv_chunk = chunked(rng) if rng.random() < 0.5 else prefill(rng)
    kept = slice(0, 64)
    return q_decode[kept] + q_chunk[:2], kv_decode[kept] + kv_chunk[:2]


PHASES: tuple[tuple[Callable[[np.random.Generator], Lens], float], ...] = (
    (prefill, 0.25),
    (decode, 0.35),
    (chunked, 0.2),
    (mixed, 0.2),
)


def jobs(rng: np.random.Generator, size: Size) -> Iterator[Job]:
    """FlashAttention-3 paged over every layout; one case in twelve also through SDPA where it can express it."""
    for heads, kv_heads, head_dim in layouts():
        layout = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": "bf16"}
        for phase, share in PHASES:
            for _ in range(max(1, round(share * size.per_layout))):
                yield from _case_jobs(rng, layout, phase(rng))


def _case_jobs(rng: np.random.Generator, layout: dict[str, object], lens: Lens) -> Iterator[Job]:
    q_lens, kv_lens = lens
    case = {"kernel": "attention", "q_lens": q_lens, "kv_lens": kv_lens, **layout, "page_size": PAGE}
    cache = sum(-(-n // PAGE) * PAGE for n in kv_lens) * int(str(layout["kv_heads"])) * int(str(layout["head_dim"]))
    if rough_us(case) > LONGEST_US or cache > LARGEST_CACHE:
        return
    yield Job(case, "fa3")
    if q_lens == kv_lens and len(set(q_lens)) == 1 and rng.random() < 0.3:
        contiguous = {name: value for name, value in case.items() if name != "page_size"}
        yield Job(contiguous, "sdpa_flash")
        yield Job(contiguous, "sdpa_cudnn")
