"""How much a built-in plan measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Calls of each kind; the counts of repeats are over all families together, `keep` a share of everything."""

    random_pairs: int
    per_pair: int
    per_layout: int
    per_moe: int
    per_pointwise: int
    graph: int
    noise: int
    read_flush: int
    keep: float = 1.0


SIZES = {
    "quick": Size(20, 6, 6, 5, 4, 40, 40, 20, keep=0.06),
    "standard": Size(60, 12, 24, 12, 10, 500, 200, 50, keep=0.4),
    "full": Size(130, 17, 52, 18, 18, 2000, 500, 100),
}
