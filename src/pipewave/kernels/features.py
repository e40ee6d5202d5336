"""Named features as one matrix: what a net takes its inputs from without visiting every name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Features(Mapping[str, Array]):
    """Features by name, [call] each, held as `values` [feature, call]."""

    __slots__ = ("names", "values_")

    def __init__(self, names: tuple[str, ...], values: Array) -> None:
        self.names, self.values_ = names, values

    def __getitem__(self, name: str) -> Array:
        return np.asarray(self.values_[_places(self.names, (name,))[0]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, wanted: tuple[str, ...]) -> Array:
        """The features of these names, [name, call]. KeyError for a name that is not there."""
        return self.values_[_places(self.names, wanted)]


@lru_cache(maxsize=1024)
def _places(names: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[np.intp]:
    at = {name: place for place, name in enumerate(names)}
    return np.array([at[name] for name in wanted])
