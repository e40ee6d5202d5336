"""Parameters and examples of which `make test` asks a few and `make test-all` every one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

USUAL = 100  # examples of a law under the default profile


def sampled(parameters: Iterable[Any], kept: int) -> list[Any]:
    """All parameters, in their order; all but `kept` of them, evenly spread, are marked slow."""
    every = list(parameters)
    quick = {round(place * (len(every) - 1) / max(kept - 1, 1)) for place in range(kept)}
    return [one if at in quick else _slow(one) for at, one in enumerate(every)]


def drawn(most: int) -> int:
    """How many of `most` draws the profile asks for: all under the default one, in proportion under the others."""
    return max(1, most * settings().max_examples // USUAL)


def examples(most: int, **more: Any) -> settings:
    """`most` examples of a law under the default profile."""
    return settings(max_examples=drawn(most), **more)


def _slow(one: Any) -> Any:
    return pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow)
