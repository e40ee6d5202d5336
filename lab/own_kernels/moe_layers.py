"""The fixed list of MoE layers of the loop, drawn from a fixed seed.

Layers of current models, sharded over 1 … 8 cards, with 1 … 16,384 tokens, evenly over the octaves; half of the tokens
are powers of two. Routing: each token draws its experts without replacement, all as likely (`skew` 0) or with
log-normal popularity (`skew` in hundredths of its sigma). Drawn before anything was tuned or measured on it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

SEED, COUNT = 20_261_121, 336
MODELS = {  # experts, chosen a token, hidden size, width of an expert
    "Mixtral-8x7B": (8, 2, 4096, 14336),
    "Mixtral-8x22B": (8, 2, 6144, 16384),
    "Qwen1.5-MoE-A2.7B": (60, 4, 2048, 1408),
    "Qwen2-57B-A14B": (64, 8, 3584, 2560),
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "Qwen3-235B-A22B": (128, 8, 4096, 1536),
    "DeepSeek-V2-Lite": (64, 6, 2048, 1408),
    "DeepSeek-V2": (160, 6, 5120, 1536),
    "DeepSeek-V3": (256, 8, 7168, 2048),
    "gpt-oss-20b": (32, 4, 2880, 2880),
    "gpt-oss-120b": (128, 4, 2880, 2880),
    "GLM-4.5": (160, 8, 5120, 1536),
    "GLM-4.5-Air": (128, 8, 4096, 1408),
    "Llama-4-Scout": (16, 1, 5120, 8192),
    "DBRX": (16, 4, 6144, 10752),
    "OLMoE": (64, 8, 2048, 1024),
    "Phi-3.5-MoE": (16, 2, 4096, 6400),
}
SHARDS, SKEWS = (1, 2, 4, 8), (0, 0, 50, 100)
OCTAVES = 14
WEIGHTS, ROWS, OPS = 1 << 30, 1 << 29, 2.0e12  # elements of w13 on one card; of a layer's longest matrix; per layer
FIELDS = ("model", "tp", "m", "e", "top_k", "hidden", "inter", "skew", "seed")
Row = dict[str, Any]


def fits(m: int, e: int, top_k: int, hidden: int, inter: int) -> bool:
    """Whether one card holds the layer and times it in a few milliseconds; widths must suit 16-value vectors."""
    return (inter % 16 == 0 and inter >= 64 and 2 * e * inter * hidden <= WEIGHTS
            and m * top_k * max(hidden, 2 * inter) <= ROWS and 6 * m * top_k * hidden * inter <= OPS)  # fmt: skip


def draw(seed: int, count: int) -> Iterator[Row]:
    """Draw distinct layers, octave by octave."""
    source, seen, number = random.Random(seed), set[tuple[object, ...]](), 0
    while number < count:
        model, tp, skew = source.choice(sorted(MODELS)), source.choice(SHARDS), source.choice(SKEWS)
        octave = number % OCTAVES
        m = 1 << octave + (octave == OCTAVES - 1 and source.random() < 0.5)
        if source.random() < 0.5:
            m = int(2 ** (octave + source.random()))
        e, top_k, hidden, width = MODELS[model]
        key = (model, tp, m)
        if width % tp or key in seen or not fits(m, e, top_k, hidden, width // tp):
            continue
        seen.add(key)
        number += 1
        values = (model, tp, m, e, top_k, hidden, width // tp, skew, source.randrange(1 << 30))
        yield dict(zip(FIELDS, values, strict=True))


def layers() -> list[Row]:
    """The list."""
    return list(draw(SEED, COUNT))
