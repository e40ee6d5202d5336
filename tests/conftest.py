"""Shared by all tests: where the public corpus lies, and hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

CORPUS = Path(os.environ.get("PIPEWAVE_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))

# The same examples every time, so that a red run means a change. For new ones: pytest --hypothesis-profile search
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, max_examples=1_000, suppress_health_check=list(HealthCheck))
settings.load_profile("default")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Folder of the public corpus; tests that need it skip where it is absent."""
    if not CORPUS.is_dir():
        pytest.skip("the public corpus is not here (set PIPEWAVE_DATA)")
    return CORPUS
