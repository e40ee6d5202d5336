"""How the plans `quick`, `standard` and `full` of `pipewave measure` were drawn: shapes of published models, and random
ones.
"""

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
