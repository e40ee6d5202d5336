"""Implementations against their ceilings: the public corpus and what ships.

    python -m studies.stack_comparison [--data DIR] [--json FILE] [--page FILE]

Rows are those the shipped weights never saw (fold 0), the newest version of each framework on each GPU. The page is
docs/tools/pages/stack-comparison.md with its tables filled in; its figures need the `plot` extra and lie beside it in
img/stack-comparison.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corpus.cases import held_out_rows
from docs.tools.stack_comparison_page import draw, fill
from pipewave.calls.families import Attention, Call, from_dict
from pipewave.physics.demand import Array
from pipewave.software.stacks import framework
from studies import rounded
from studies.published_rows import corpus
from studies.stack_gaps import Row, compare_stacks, ratios

# What makes rows one shape: what is left is how many tokens, and how they are spread over requests.
SHAPE = {
    "gemm": ("n", "k", "quantize"),
    "attention": ("heads", "kv_heads", "head_dim", "window", "kv_dtype"),
    "fused_moe": ("hidden", "inter", "topk", "experts", "tp", "ep"),
}
Key = tuple[Any, ...]
ENOUGH = 8  # rows of a shape, for it to be listed
LONGEST_LIST = 20


@dataclass(frozen=True, slots=True)
class Served:
    """How one implementation serves one shape. `ratio`: measured over ceiling, median of the rows; `above`: mean share
    of their time above the ceiling; `example`: the row with the median ratio.
    """

    gpu: str
    family: str
    dtype: str
    stack: str
    impl: str
    shape: dict[str, Any]
    rows: int
    ratio: float
    above: float
    example: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stack:
    """A framework on a GPU, all its implementations together."""

    family: str
    gpu: str
    framework: str
    rows: int
    slower_share: float
    median_ratio: float
    p90_ratio: float
    above: float


def above(found: Array) -> float:
    """Mean share of time above the ceiling."""
    return float(np.mean(np.maximum(1.0 - 1.0 / found, 0.0)))


def stacks(rows: Sequence[Row], found: Array) -> list[Stack]:
    """Every framework on every GPU, by family."""

    def key(row: Row) -> Key:
        return _family(row.call), row.gpu, framework(software(row.call)[0])

    return [_stack(place, found[members]) for place, members in sorted(grouped(rows, key).items())]


def _stack(place: Key, found: Array) -> Stack:
    family, gpu, name = place
    half, most = map(float, np.quantile(found, (0.5, 0.9)))
    return Stack(family, gpu, name, len(found), float(np.mean(found > 1.0)), half, most, above(found))


def worst_served(rows: Sequence[Row], found: Array) -> list[Served]:
    """Shapes whose rows lie farthest above the ceiling, at most two of one implementation on one GPU."""

    def key(row: Row) -> Key:
        call = row.call
        shape = tuple(getattr(call, name) for name in SHAPE.get(call.kernel, ()))
        return row.gpu, call.kernel, call.dtype, *software(call), shape

    served = [_served(rows, found, place, members) for place, members in grouped(rows, key).items()
              if len(members) >= ENOUGH and place[1] in SHAPE]  # fmt: skip
    served.sort(key=lambda one: -one.above)
    chosen, seen = [], dict[tuple[str, str], int]()
    for one in served:
        where = one.gpu, one.impl
        seen[where] = seen.get(where, 0) + 1
        if seen[where] <= 2:
            chosen.append(one)
    return chosen[:LONGEST_LIST]


def _served(rows: Sequence[Row], found: Array, place: Key, members: Sequence[int]) -> Served:
    gpu, family, dtype, stack, impl, shape = place
    mine = found[members]
    middle = members[int(np.argsort(mine)[len(mine) // 2])]
    row = rows[middle]
    example = {"tokens": _tokens(row.call), "measured_us": row.latency_us, "ceiling_us": row.latency_us / found[middle]}
    named = {name: value for name, value in zip(SHAPE[family], shape, strict=True) if value not in (None, False)}
    return Served(gpu, family, dtype, stack, impl, named, len(mine), float(np.median(mine)), above(mine), example)


def _tokens(call: Call) -> str:
    """How much work: rows, tokens, or requests × new tokens over cache."""
    if isinstance(call, Attention):
        return f"{len(call.q_lens)} × {call.q_lens[0]} over {call.kv_lens[0]}"
    return str(getattr(call, "m", getattr(call, "tokens", "")))


def software(call: Call) -> tuple[str, str]:
    """Stack and implementation of a call, empty where it names none."""
    return str(getattr(call, "stack", None) or ""), str(getattr(call, "impl", None) or "")


def _family(call: Call) -> str:
    return call.kernel if call.kernel in SHAPE else "collectives"


def grouped(rows: Sequence[Row], key: Callable[[Row], Key]) -> dict[Key, list[int]]:
    """Indices of rows by key."""
    found: dict[Key, list[int]] = {}
    for index, row in enumerate(rows):
        found.setdefault(key(row), []).append(index)
    return found


def main() -> None:
    """Print the standings of the frameworks; write results, page and figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=corpus(), help="folder of the corpus")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--page", type=Path, help="write the page here, its figures beside it")
    given = parser.parse_args()
    held_out = held_out_rows(given.data)
    rows = [Row(from_dict(row["case"]), row["gpu"], row["protocol"], row["latency_us"]) for row in held_out]
    found = ratios(rows)
    frameworks = stacks(rows, found)
    results = {
        "rows": len(rows),
        "stacks": [asdict(one) for one in frameworks],
        "implementations": [asdict(one) for one in compare_stacks(rows, found)],
        "worst_served": [asdict(one) for one in worst_served(rows, found)],
    }
    for one in frameworks:
        where = f"{one.family:12} {one.gpu:20} {one.framework:14} {one.rows:6} rows"
        print(f"{where} {one.slower_share:6.1%} slower, median {one.median_ratio:.2f}, {one.above:5.1%} above")
    if given.json:
        given.json.write_text(json.dumps(rounded(results), indent=1) + "\n", encoding="utf-8")
    if given.page:
        given.page.write_text(fill(results), encoding="utf-8")
        draw(results, given.page.parent / "img" / "stack-comparison")


if __name__ == "__main__":
    main()
