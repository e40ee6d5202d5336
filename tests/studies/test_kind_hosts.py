"""A host's pace told by a run's other points."""

from __future__ import annotations

import numpy as np
import pytest

from studies.kind_hosts import FACTORS, told


def test_the_pace_of_a_run_is_found_from_its_other_points() -> None:
    """Steps that a host bounds take `pace` times as long as is predicted: told by the others, each comes out right but
    for the grid of factors. A point alone, and one that no other waits beside, stay as they were."""
    pace = np.array([2.0, 2.0, 2.0, 0.7, 3.0, 3.0])
    owners, waits = ["a", "a", "a", "b", "c", "c"], np.array([True, True, True, True, False, True])
    errors = 100 * (FACTORS[:, None] / pace - 1)
    found = told(errors, owners, waits)
    assert np.abs(found[:3]).max() < 3.0
    usual = 100 * (FACTORS[np.argmin(np.abs(FACTORS - 1))] / pace - 1)
    assert found[3] == pytest.approx(usual[3])
    assert abs(found[4]) < 3.0
    assert found[5] == pytest.approx(usual[5])
