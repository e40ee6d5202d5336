"""Which numbers of a kernel's launches are sizes of their own, and which follow from them.

A launch gives many numbers (arguments, elements of tensors, what its grid encloses). Most are products of a few, `M·K`
elements of A, and tell nothing new. The few are where launches are placed, and what is drawn to look for short lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.law.anchors import Floats
from pipewave.tune.source.formula import NUMEL
from pipewave.tune.source.traced import power_of_2

Numbers = Mapping[str, Any]
EXACT = 1e-6  # of a logarithm: a product is exact or it is none
MOST_FACTORS = 4
WIDER = 4.0  # times as large, and as small, as the launches seen: where others are expected


@dataclass(frozen=True, slots=True)
class Sizes:
    """`names`: numbers of their own; `follow`: number → (the names it is a product of, times how much); `rounded`:
    number → the name that it is, rounded up to a power of two, as blocks that hold a whole row are.
    """

    names: tuple[str, ...]
    follow: Mapping[str, tuple[tuple[str, ...], float]]
    rounded: Mapping[str, str] = field(default_factory=dict)

    def at(self, launches: Sequence[Numbers]) -> Floats:
        """Sizes [s, d] of launches."""
        return np.array([[float(launch[name]) for name in self.names] for launch in launches]).reshape(
            len(launches), len(self.names)
        )

    def numbers(self, at: Floats) -> dict[str, Floats]:
        """All numbers, as columns, of launches at sizes [s, d]."""
        own = {name: at[:, i] for i, name in enumerate(self.names)}
        own |= {name: 2.0 ** np.ceil(np.log2(np.maximum(own[of], 1.0))) for name, of in self.rounded.items()}
        alone = np.ones(len(at))  # a number that no size moves is a column too
        return own | {name: np.rint(by * np.prod([alone, *(own[one] for one in of)], axis=0))
                      for name, (of, by) in self.follow.items()}  # fmt: skip


def sizes(inputs: Sequence[str], key: Sequence[str], launches: Sequence[Numbers]) -> Sizes:
    """Tell sizes from what follows: the key's own arguments first, then whatever no product of these explains."""
    ordered = [*(name for name in key if name in launches[0]), *(n for n in inputs if not n.startswith(NUMEL)),
               *(n for n in inputs if n.startswith(NUMEL))]  # fmt: skip
    names: list[str] = []
    follow: dict[str, tuple[tuple[str, ...], float]] = {}
    rounded: dict[str, str] = {}
    for name in dict.fromkeys(ordered):
        found, exact = _product(name, names, launches)
        of = None if exact else _rounded_from(name, names, launches)
        if of is not None:
            rounded[name] = of
        elif not names or (not exact and not name.startswith(NUMEL)) or name in key:
            names.append(name)
        else:
            follow[name] = found
    return Sizes(tuple(names), follow, rounded)


def _rounded_from(name: str, names: Sequence[str], launches: Sequence[Numbers]) -> str | None:
    """The size that a number is, rounded up to a power of two, at launches of more than one such size."""
    values = [launch[name] for launch in launches]
    for one in names:
        sizes_there = [launch[one] for launch in launches]
        if len(set(sizes_there)) > 1 and all(power_of_2(size) == value for size, value in zip(sizes_there, values,
                                                                                             strict=True)):  # fmt: skip
            return one
    return None


def _product(
    name: str, names: Sequence[str], launches: Sequence[Numbers]
) -> tuple[tuple[tuple[str, ...], float], bool]:
    """The product of some sizes that a number is nearest to, and whether it is that at every launch."""
    logs = {one: np.log([max(float(launch[one]), 1.0) for launch in launches]) for one in {*names, name}}
    best: tuple[tuple[float, float, int], tuple[str, ...], float] | None = None
    for count in range(min(len(names), MOST_FACTORS) + 1):
        for some in combinations(names, count):
            ratio = logs[name] - sum((logs[one] for one in some), np.zeros(len(launches)))
            score = round(float(ratio.std()), 6), round(abs(float(np.median(ratio))), 6), count
            if best is None or score < best[0]:
                best = score, some, float(np.exp(np.median(ratio)))
    assert best is not None
    return (best[1], best[2]), best[0][0] < EXACT and (len(best[1]) > 0 or len(launches) > 1)


def drawn(at: Floats, count: int, seed: int = 0, wider: float = WIDER) -> Floats:
    """Sizes [count, d] like those of launches [s, d], and `wider` times beyond; half of them round, as most are."""
    rng = np.random.default_rng(seed)
    low, high = np.maximum(at.min(axis=0) / wider, 1.0), np.maximum(at.max(axis=0) * wider, 1.0)
    values = np.exp(rng.uniform(np.log(low), np.log(high), (count, at.shape[1])))
    step = 2.0 ** np.floor(rng.random(values.shape) * np.log2(values))
    rounded: NDArray[np.float64] = np.where(
        rng.random(values.shape) < 0.5, np.rint(values), np.ceil(values / step) * step
    )
    return np.asarray(np.maximum(np.minimum(rounded, high), 1.0))
