"""Pairs of calls of which one cannot be faster: `python -m qa.monotone [--count 20000] [--json FILE]`.

One of each pair is larger (a size doubled: rows, columns, depth, lengths, tokens, bytes) or runs on a GPU with less
(bandwidth or clock divided by 1.5). The table counts how often the prediction of the larger one is below that of the
smaller, by family and by what was changed, and by how much at worst. Where the GPU was measured, rows decide: a library
may run a wider product by a faster kernel, and its rows say so; those pairs are counted beside the others. So are those
that rows of a kindred GPU put as far out of order, whose kernels these are.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pipewave as pw
from pipewave.calls.families import from_dict
from pipewave.errors import PipewaveError
from pipewave.gpus import find, names
from pipewave.prediction.api import answer_one
from qa.snapshot import FAMILIES, PROTOCOLS, WEIGHTS

SIZES = ("m", "n", "k", "rows", "dim", "bytes", "bytes_read", "tokens", "heads", "lengths")
LESS = ("dram_gbps", "boost_clock_mhz")
FACTOR = 1.5
TOLERANCE = 0.02  # a kernel may gain as much by a size that divides better
COUNTS = ("pairs", "out_of_order", "beyond_20_percent", "out_of_order_measured", "beyond_20_percent_measured")


def larger(case: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The case with one size doubled, None where it has no such size."""
    if name == "lengths":
        if "kv_lens" not in case or case["q_lens"] != [1] * len(case["q_lens"]):
            return None
        return case | {"kv_lens": [2 * length for length in case["kv_lens"]]}
    if name == "heads" and case.get("kv_heads") == case.get("heads", 0):
        return None  # heads that share no keys take a kernel of their own, which FlashAttention 2 does not even split
    return case | {name: 2 * case[name]} if name in case else None


def pairs(seed: int) -> Iterator[tuple[str, str, dict[str, Any], Any, dict[str, Any], Any]]:
    """(family, change, small case, its GPU, large case, its GPU), seeded, without end."""
    pick, gpus = random.Random(seed), sorted(names())
    while True:
        family = pick.choices(list(FAMILIES), WEIGHTS)[0]
        case, gpu = FAMILIES[family](pick) | {"kernel": family}, find(pick.choice(gpus))
        case |= {"dtype": pick.choice(("bf16", "bf16", "fp8")), "protocol": pick.choice(PROTOCOLS)}
        change = pick.choice((*SIZES, *LESS))
        if change in LESS:
            yield family, change, case, gpu, case, gpu.what_if(**{change: getattr(gpu, change) / FACTOR})
        elif (more := larger(case, change)) is not None:
            yield family, change, case, gpu, more, gpu


class Pair(NamedTuple):
    """Large over small predicted latency, and whether rows decide both: of the GPU, or of a kindred one."""

    ratio: float
    measured: bool


def compared(small: dict[str, Any], gpu: Any, large: dict[str, Any], other: Any) -> Pair | None:
    """A pair; None where either cannot run."""
    try:
        first, second = (
            pw.predict(from_dict(case), on, protocol=case["protocol"]) for case, on in ((small, gpu), (large, other))
        )
    except PipewaveError:
        return None
    ratio, measured = second.latency_us / first.latency_us, first.basis == second.basis == "measured_gpu"
    return Pair(ratio, measured or (ratio < 1 - TOLERANCE and gpu is other and _alike_on_kin(small, large, gpu, ratio)))


def _alike_on_kin(small: dict[str, Any], large: dict[str, Any], gpu: Any, ratio: float) -> bool:
    """Whether the same kernels on the nearest measured GPU of the generation are as far out of order."""
    protocol = small["protocol"]
    try:
        found = answer_one(from_dict(small), gpu, protocol)
        run = {"stack": found.ctx.stack, "impl": found.ctx.impl, "protocol": protocol}
        if not found.source.reference_gpu:
            return False
        first, second = pw.predict([small | run, large | run], found.source.reference_gpu).latency_us
    except PipewaveError:
        return False
    return bool(second / first <= ratio * (1 + TOLERANCE))


def table(count: int, seed: int) -> list[dict[str, Any]]:
    """One row a family and change: pairs, how many are out of order by more than the tolerance, the worst ratio."""
    found: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    answered = ((family, change, compared(*pair)) for family, change, *pair in pairs(seed))
    for family, change, value in islice(((f, c, one) for f, c, one in answered if one is not None), count):
        found[family, change].append(value)
    return [_row(family, change, values) for (family, change), values in sorted(found.items())]


def _row(family: str, change: str, values: list[Pair]) -> dict[str, Any]:
    out, far = ([one for one in values if one.ratio < 1 - by] for by in (TOLERANCE, 0.2))
    numbers = (values, out, far, [one for one in out if one.measured], [one for one in far if one.measured])
    counts = {name: len(some) for name, some in zip(COUNTS, numbers, strict=True)}
    return {"family": family, "change": change, **counts, "worst": min(one.ratio for one in values)}


def main() -> None:
    """Print the table, worst first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = table(options.count, options.seed)
    for row in sorted(rows, key=lambda row: row["worst"]):
        print("{family:15} {change:16} {pairs:6} {out_of_order:6} {beyond_20_percent:4} {worst:7.3f}".format(**row))
    total, out, far, rows_out, rows_far = (sum(row[name] for row in rows) for name in COUNTS)
    print(f"{total} pairs, {out} out of order by more than {TOLERANCE:.0%}, {far} by more than 20 %")
    print(f"of these {rows_out} and {rows_far} on GPUs of which rows decide")
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
