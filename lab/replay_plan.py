"""`python -m lab.replay_plan H200 --out FILE`: calls of a card's cold rows that have no replay yet, under `graph`.

Cold rows are many and of all shapes; of replays there are few, and none of unequal requests. The same calls are drawn,
so that nets learn what a filled L2 and a warm clock change, and nothing else differs.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.another_day_cases import PLANS, write
from pipewave.measure.plan import Job
from pipewave.measure.row_files import rows
from studies.another_day import family
from studies.card_blind import DATA, usable

SEED = 20261129
# Calls of each family and type, or phase.
COUNTS = {
    "attention decode": 2400, "attention mixed": 1500, "attention chunked": 700, "attention prefill": 700,
    "gemm bf16": 1800, "gemm fp16": 300, "gemm fp8": 1800, "gemm fp8_block": 900, "rmsnorm": 300, "silu_and_mul": 240,
}  # fmt: skip


def jobs(card: str) -> Iterator[Job]:
    """Draw of each family; every plan's rows alike."""
    found: dict[tuple[str, str], list[Job]] = defaultdict(list)
    replayed = {row["key"] for row in rows(DATA / card.lower()) if row["protocol"] == "graph"}
    for plan in PLANS:
        for row in usable(rows(DATA / card.lower() / plan)):
            job = Job(row["case"], row["impl"], protocol="graph", pages=row.get("pages", "random"))
            if job.key not in replayed:
                found[family(row["case"]), plan].append(job)
    rng = np.random.default_rng(SEED)
    for name, count in COUNTS.items():
        plans = [some for (of, _), some in sorted(found.items()) if of == name]
        for some in plans:
            yield from (some[i] for i in rng.permutation(len(some))[: round(count / len(plans))])


def main(argv: list[str] | None = None) -> int:
    """Write the plan as a cases file."""
    parser = argparse.ArgumentParser(prog="python -m lab.replay_plan", description=__doc__)
    parser.add_argument("card")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    print(options.card, write(options.out, jobs(options.card)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
