"""`python -m lab.another_day_cases H100 --out DIR`: calls of shapes that no row has, to predict, then measure.

Writes cases files for `pipewave measure --plan` (DIR/h100.jsonl) and, of a card that two can be had of, for
`python -m lab.collectives --plan` (DIR/h200.collectives.jsonl). Products, experts and norms are of models
that the built-in plans do not hold, and of random shapes; head layouts and lengths are drawn anew. A share of the calls
of the card's own rows comes again (`known`), so that what another card and day are worth is told apart from shapes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lab import collectives
from lab import ragged_plans as ragged
from lab.plans import layers as layer_plans
from lab.plans import moe
from lab.plans.attention import LARGEST_CACHE, LONGEST_US, Lens
from lab.plans.shapes import TENSOR_PARALLEL, Dense, Moe, projections
from pipewave.measure.plan import PAGE_ORDERS, Job, rough_us
from pipewave.measure.row_files import rows
from studies.card_blind import DATA, usable

SEED = 20261123
CARDS = ("H100", "H200")
TWO = ("H200",)  # cards that were measured in pairs
PLANS = ("", "ragged", "mixed", "experts")
Case = dict[str, Any]
Rng = np.random.Generator

# Dimensions of published configs, none of them in `plans.shapes`.
DENSE = (
    Dense("gemma-2-27b", 4608, 36864, 32, 16, 128, 256000),
    Dense("gemma-3-12b", 3840, 15360, 16, 8, 256, 262144),
    Dense("falcon3-10b", 3072, 23040, 12, 4, 256, 131072),
    Dense("starcoder2-15b", 6144, 24576, 48, 4, 128, 49152),
    Dense("internlm2-20b", 6144, 16384, 48, 8, 128, 92544),
    Dense("deepseek-67b", 8192, 22016, 64, 8, 128, 102400),
    Dense("command-a", 12288, 36864, 96, 8, 128, 256000),
    Dense("seed-oss-36b", 5120, 27648, 80, 8, 128, 155136),
    Dense("granite-3-8b", 4096, 12800, 32, 8, 128, 49155),
    Dense("nemotron-4-340b", 18432, 73728, 96, 8, 192, 256000),
    Dense("phi-3-medium", 5120, 17920, 40, 10, 128, 32064),
    Dense("smollm2-360m", 960, 2560, 15, 5, 64, 49152),
    Dense("minicpm3-4b", 2560, 6400, 40, 40, 96, 73448),
    Dense("falcon-7b", 4544, 18176, 71, 1, 64, 65024),
)
SPARSE = (
    Moe("hunyuan-a13b", 64, 8, 4096, 3072, (1, 2, 4)),
    Moe("ernie-4.5-21b", 64, 6, 2560, 1536, (1, 2)),
    Moe("ernie-4.5-300b", 64, 8, 8192, 3584, (4, 8)),
    Moe("qwen3-coder-480b", 160, 8, 6144, 2560, (4, 8)),
    Moe("ling-mini-2", 256, 8, 2048, 512, (1, 2)),
    Moe("dots-llm1", 128, 6, 4096, 1408, (1, 2)),
    Moe("minimax-m2", 256, 8, 3072, 1536, (2, 4)),
    Moe("granite-4-small", 72, 10, 4096, 768, (1, 2)),
    Moe("lfm2-8b-a1b", 32, 4, 2048, 1792, (1, 2)),
    Moe("step3", 48, 3, 7168, 5120, (4, 8)),
    Moe("grok-2", 8, 2, 8192, 16384, (4, 8)),
    Moe("arctic", 128, 2, 7168, 4864, (8,)),
)
# (heads, kv_heads, head_dim) of ranks of such models: more heads, and widths, than rows have
LAYOUTS = (
    (80, 8, 128), (96, 8, 128), (128, 8, 128), (72, 8, 128), (71, 1, 64), (72, 24, 128), (9, 3, 64), (36, 12, 64),
    (66, 6, 128), (21, 7, 128), (45, 9, 128), (33, 11, 64), (28, 14, 128), (36, 36, 64), (18, 18, 128), (96, 96, 128),
    (80, 10, 64), (68, 4, 128), (24, 1, 128), (40, 2, 128),
)  # fmt: skip
WIDE = ((16, 8, 256), (8, 4, 256), (8, 1, 256), (12, 4, 256), (32, 32, 96), (20, 20, 96), (96, 8, 192), (24, 2, 192))
# Products: type, implementation, quantised in the call, calls
PRODUCTS = (
    ("bf16", "cublas", False, 180),
    ("fp16", "cublas", False, 40),
    ("fp8", "cutlass", False, 110),
    ("fp8", "cutlass", True, 50),
    ("fp8", "torch_scaled_mm", False, 40),
    ("fp8_block", "cutlass", False, 80),
    ("int8", "cutlass", False, 40),
)
# Attention: batches, calls on layouts that rows have, on others, and of widths that none has
PHASES: tuple[tuple[Callable[[Rng], Lens], int, int, int], ...] = (
    (ragged.decode, 80, 60, 20),
    (ragged.mixed, 60, 50, 10),
    (ragged.chunked, 30, 20, 10),
    (ragged.prefill, 30, 20, 10),
)
LAYERS, PER_LAYER = {"bf16": 12, "fp8": 10, "fp8_block": 12}, 6
NORMS, ACTIVATIONS, COLLECTIVE_SIZES = 80, 60, 26
KNOWN, KNOWN_LAYERS, GRAPH = 20, 6, 160
ODD_SHARE = 0.4


def seen(card: str) -> set[tuple[Any, ...]]:
    """(n, k), head layouts, experts and row lengths that our rows of a card have."""
    return {_shape(row["case"]) for plan in PLANS for row in rows(DATA / card.lower() / plan)}


def _shape(case: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("n", "k", "heads", "kv_heads", "head_dim", "experts", "topk", "hidden", "dim")
    inter = case["inter"] // case.get("tp", 1) if "inter" in case else None
    return (case["kernel"], *(case.get(name) for name in names), inter)


def products(rng: Rng, known: set[tuple[Any, ...]]) -> Iterator[Job]:
    """Each with an (n, k) of its own: a model's, or a random one."""
    served = {pair for layer in DENSE for tp in TENSOR_PARALLEL for pair in projections(layer, tp)}
    pairs = [pair for pair in sorted(served) if _product(1, pair)["n"] * pair[1] <= layer_plans.LARGEST_OPERAND]
    for dtype, impl, quantize, count in PRODUCTS:
        left = count
        while left:
            step = 128 if dtype == "fp8_block" else 16
            pair = _odd(rng, step) if rng.random() < ODD_SHARE else pairs[rng.integers(len(pairs))]
            case = (
                _product(layer_plans.ms(rng, 1)[0], pair) | {"dtype": dtype} | ({"quantize": True} if quantize else {})
            )
            fits = rough_us(case) <= layer_plans.LONGEST_US and case["m"] * max(pair) <= layer_plans.LARGEST_OPERAND
            if fits and not any(size % step for size in pair) and _shape(case) not in known:
                left -= 1
                yield Job(case, impl)


def _product(m: int, pair: tuple[int, int]) -> Case:
    return {"kernel": "gemm", "m": m, "n": pair[0], "k": pair[1]}


def _odd(rng: Rng, step: int) -> tuple[int, int]:
    n, k = (round(float(np.exp(rng.uniform(np.log(256), np.log(32768)))) / step) * step for _ in range(2))
    return n, k


def batches(rng: Rng, known: set[tuple[Any, ...]]) -> Iterator[Job]:
    """Ragged batches over pages of a full cache, on head layouts that rows have and on others."""
    for phase, *counts in PHASES:
        for layouts, count in zip((ragged.SERVED, LAYOUTS, WIDE), counts, strict=True):
            new = layouts is not ragged.SERVED
            for _ in range(count):
                job = _batch(rng, phase, layouts)
                while not _fits(job.case) or (new and _shape(job.case) in known):
                    job = _batch(rng, phase, layouts)
                yield job


def _batch(rng: Rng, phase: Callable[[Rng], Lens], layouts: tuple[tuple[int, int, int], ...]) -> Job:
    heads, kv_heads, head_dim = layouts[rng.integers(len(layouts))]
    q_lens, kv_lens = phase(rng)
    case = {"kernel": "attention", "q_lens": q_lens, "kv_lens": kv_lens, "heads": heads, "kv_heads": kv_heads}
    case |= {"head_dim": head_dim, "dtype": "bf16", "page_size": int(rng.choice(ragged.PAGES, p=ragged.PAGE_SHARES))}
    return Job(case, "fa3", pages=str(rng.choice(PAGE_ORDERS, p=ragged.ORDER_SHARES)))


def _fits(case: Mapping[str, Any]) -> bool:
    tokens = sum(-(-n // case["page_size"]) * case["page_size"] for n in case["kv_lens"])
    held = tokens * case["kv_heads"] * case["head_dim"] <= LARGEST_CACHE
    return held and rough_us(case) <= LONGEST_US


def layers(rng: Rng, known: set[tuple[Any, ...]]) -> Iterator[Job]:
    """Experts of models that no row has, a few token counts each."""
    for dtype, count in LAYERS.items():
        shapes = [(one, tp) for one in SPARSE for tp in one.tps if _blocks(dtype, one.inter // tp)]
        for number in rng.permutation(len(shapes))[:count]:
            model, tp = shapes[number]
            for tokens in [_tokens(rng), *rng.choice(moe.TOKENS, PER_LAYER - 1, replace=False).tolist()]:
                case = {"kernel": "fused_moe", "tokens": tokens, "experts": model.experts, "topk": model.topk}
                case |= {"hidden": model.hidden, "inter": model.inter, "tp": tp, "dtype": dtype, "routing": "random"}
                if rough_us(case) <= moe.LONGEST_US and _shape(case) not in known:
                    yield Job(case, "triton")


def _blocks(dtype: str, width: int) -> bool:
    return dtype != "fp8_block" or width % moe.SCALE_BLOCK == 0


def _tokens(rng: Rng) -> int:
    return int(np.exp(rng.uniform(0, np.log(moe.TOKENS[-1]))))


def streams(rng: Rng, known: set[tuple[Any, ...]]) -> Iterator[Job]:
    """Norms and activations of row lengths that no row has."""
    widths = {layer.hidden for layer in DENSE} | _multiples(rng, NORMS, 1250)
    inner = {layer.inter // tp for layer in DENSE for tp in (1, 2, 4)} | _multiples(rng, ACTIVATIONS, 1900)
    for kernel, dims, count in (("rmsnorm", widths, NORMS), ("silu_and_mul", inner, ACTIVATIONS)):
        left = count
        while left:
            case: Case = {
                "kernel": kernel,
                "rows": layer_plans.ms(rng, 1)[0],
                "dim": int(rng.choice(sorted(dims))),
                "dtype": "bf16",
            }
            case |= {"fused_add": bool(rng.random() < 0.5)} if kernel == "rmsnorm" else {}
            if case["rows"] * case["dim"] <= layer_plans.LARGEST and _shape(case) not in known:
                left -= 1
                yield Job(case, "vllm")


def _multiples(rng: Rng, count: int, most: int) -> set[int]:
    """`count` random multiples of 16, from 1,024 up to `most` times that."""
    return {16 * int(n) for n in rng.integers(64, most, count)}


def again(rng: Rng, card: str) -> Iterator[Job]:
    """Calls of the card's own cold rows, some of each family, type and plan."""
    for plan in PLANS:
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in usable(rows(DATA / card.lower() / plan)):
            kind = row["case"]["kernel"]
            if kind not in collectives.FAMILIES:
                groups.setdefault((kind, row["case"].get("dtype", "bf16")), []).append(row)
        for (kind, _), members in sorted(groups.items()):
            for number in rng.permutation(len(members))[: KNOWN_LAYERS if kind == "fused_moe" else KNOWN]:
                row = members[number]
                yield Job(row["case"], row["impl"], pages=row.get("pages", "random"))


def jobs(card: str) -> list[Job]:
    """All calls of one card, each once; of the products, norms and batches some by graph replay too."""
    rng = np.random.default_rng([SEED, CARDS.index(card)])
    known = seen(card)
    new = list(chain.from_iterable(part(rng, known) for part in (products, batches, layers, streams)))
    replayed = [job for job in new if job.family != "fused_moe"]
    graph = [replace(replayed[i], protocol="graph") for i in rng.permutation(len(replayed))[:GRAPH]]
    return list({job.key: job for job in (*new, *graph, *again(rng, card))}.values())


def messages(card: str, world: int = 2) -> list[Job]:
    """Collectives of any size that is a multiple of 512 bytes, and of sizes that rows have: one in four."""
    rng = np.random.default_rng([SEED, CARDS.index(card), world])
    ends = np.log(collectives.SMALLEST), np.log(collectives.LARGEST)
    drawn = (np.exp(rng.uniform(*ends, COLLECTIVE_SIZES)) / 512).round().astype(int) * 512
    sizes = [*map(int, drawn), *collectives.sizes()[::4]]
    draw = partial(_message, world=world)
    return [job for size in sizes for family in collectives.FAMILIES for job in draw(family, size)]


def _message(family: str, size: int, world: int) -> Iterator[Job]:
    case = {"kernel": family, "bytes": size, "world": world, "dtype": "bf16"}
    yield Job(case, "nccl")
    if family == "all_reduce" and size <= collectives.CUSTOM_LARGEST:
        yield Job(case, "custom")


def line(job: Job) -> str:
    """A job as a line of a cases file."""
    return json.dumps({**job.case, "impl": job.impl, "protocol": job.protocol, "pages": job.pages})


def write(path: Path, found: Iterable[Job]) -> int:
    """Write a cases file; how many lines it has."""
    lines = [line(job) for job in found]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.another_day_cases", description=__doc__)
    parser.add_argument("cards", nargs="*", default=list(CARDS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    for card in options.cards:
        print(card, write(options.out / f"{card.lower()}.jsonl", jobs(card)))
        if card in TWO:
            print(card, write(options.out / f"{card.lower()}.collectives.jsonl", messages(card)), "collectives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
