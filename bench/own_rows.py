"""`python -m bench.own_rows [H100 H200]`: errors of shipped weights on our own cold rows of shapes that they never saw.

Cold rows of `data/measured`, groups of shapes that no shipped member was trained on. Attention is told apart by phase,
and plans in folders of their own from the first: `ragged` and `mixed` (unequal lengths), `experts` (layers of any
shape). A call is asked with its stack and implementation, without the SM clock and the Triton configuration, as a user
does who does not know them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import pipewave as pw
from bench.card_blind import DATA, phase, usable
from pipewave.calls.families import from_dict
from pipewave.measure.pack import rows
from train.corpus.frame import DEFAULTS, GROUP_KEYS
from train.splits import HELD_OUT, fold

CARDS = ("H100", "H200")
PARTS = ("", "ragged", "mixed", "experts")
TYPED = ("gemm", "fused_moe")
Row = dict[str, Any]


def group(case: Mapping[str, Any]) -> str:
    """The key by which shapes of a family are held out together (`train.corpus.frame.GROUP_KEYS`)."""
    return ",".join(str(int(case.get(name) or DEFAULTS.get(name) or 0)) for name in GROUP_KEYS[case["kernel"]])


def unseen(card: str) -> Iterator[tuple[str, Row]]:
    """Rows of a card, by evaluation."""
    for part in PARTS:
        for row in usable(rows(DATA / card.lower() / part)):
            case = row["case"]
            if case["kernel"] in GROUP_KEYS and fold(group(case)) == HELD_OUT:
                yield name(case) + f", {part}" * bool(part), row


def name(case: Mapping[str, Any]) -> str:
    """Family, with the type of products and the phase of attention."""
    kernel = str(case["kernel"])
    if kernel == "attention":
        return f"{kernel} {phase(case)}"
    return f"{kernel} {case.get('dtype', 'bf16')}" if kernel in TYPED else kernel


def scores(card: str) -> dict[str, dict[str, float]]:
    """Rows, mean absolute error, bias and share inside the 90 % interval in %, by evaluation."""
    found: dict[str, list[Row]] = defaultdict(list)
    for key, row in unseen(card):
        found[key].append(row)
    return {key: _score(card, some) for key, some in sorted(found.items())}


def _score(card: str, some: list[Row]) -> dict[str, float]:
    answers = pw.predict([from_dict(r["case"] | {"stack": r["stack"], "impl": r["impl"]}) for r in some], card)
    measured = np.array([row["latency_us"] for row in some])
    error = answers.latency_us / measured - 1.0
    inside = (answers.low_us <= measured) & (measured <= answers.high_us)
    means = {"mape": np.abs(error).mean(), "bias": error.mean(), "inside": inside.mean()}
    return {"rows": len(some)} | {key: round(100 * float(value), 2) for key, value in means.items()}


def main(cards: list[str]) -> int:
    """Print a table a card."""
    for card in cards or CARDS:
        print(f"{card:32} rows   MAPE   bias inside")
        for key, one in scores(card).items():
            print(f"{key:32}{one['rows']:5.0f} {one['mape']:6.2f} {one['bias']:6.2f} {one['inside']:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
