"""Shared by all tests: BLAS on one thread, where the public corpus lies, hypothesis profiles, and what is slow."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

# Before numpy is imported, and inherited by pytest's workers: they are as many as cores, and BLAS threads of each
# would fight over them.
os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import pytest
from hypothesis import HealthCheck, settings

CORPUS = Path(os.environ.get("PIPEWAVE_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))

# The same examples every time, so that a red run means a change; `make test` draws fewer of them.
# For new ones: pytest --hypothesis-profile search
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("default"), max_examples=30)
settings.register_profile("search", deadline=None, max_examples=1_000, suppress_health_check=list(HealthCheck))
settings.load_profile("default")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Folder of the public corpus; tests that need it skip where it is absent."""
    if not CORPUS.is_dir():
        pytest.skip("the public corpus is not here (set PIPEWAVE_DATA)")
    return CORPUS


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """What reads the public corpus is slow: `make test` leaves it out, `make test-all` runs it."""
    for item in items:
        if "corpus" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
