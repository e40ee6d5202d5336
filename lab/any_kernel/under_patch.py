"""Tests of other projects with and without `pipewave.tune.patch()`: `pytest -p lab.any_kernel.under_patch FILES`.

`--patched` lets pipewave choose for every `triton.autotune` of the run, and prints its report at the end. `device` and
`fresh_knobs` are the fixtures that Triton's own tests take from a file beside them. Needs a GPU and those projects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switch."""
    parser.addoption("--patched", action="store_true", help="let pipewave choose for every triton.autotune")


def pytest_configure(config: pytest.Config) -> None:
    """Patch before tests are imported; nothing measured is kept or taken over."""
    if config.getoption("--patched"):
        from pipewave.tune import patch

        patch(cache=False)


@pytest.fixture
def device() -> str:
    """Where Triton's tests put their tensors."""
    return "cuda"


@pytest.fixture
def fresh_knobs() -> Iterator[Any]:
    """Triton's settings as they are without an environment, for one test."""
    from triton._internal_testing import _fresh_knobs_impl

    fresh, reset = _fresh_knobs_impl()
    try:
        yield fresh()
    finally:
        reset()
