"""Held-out rows with what was predicted of them."""

from __future__ import annotations

from dataclasses import dataclass

from train.predictions import Floats
from train.rows import Ints


@dataclass(frozen=True, slots=True)
class Scored:
    """Held-out rows of one split with their predicted log residual and the half-width of their interval in log time."""

    name: str
    index: Ints
    mean: Floats
    half: Floats
