"""Cold intervals hold rows of another day, GPU models counting alike."""

from __future__ import annotations

import numpy as np
import pytest

from train import another_day

NEEDED = another_day.needed()


def test_models_count_alike_and_nothing_is_narrowed() -> None:
    many, few = np.full(900, 0.5), np.linspace(0.1, 3.0, 30)
    assert another_day.factor({"H100": many, "H200": many}) == 1.0
    both = another_day.factor({"H100": many, "H200": few})
    assert both == pytest.approx(np.quantile(few, 0.8), abs=0.11)


@pytest.mark.parametrize("net", NEEDED)
def test_cards_that_ship_hold_nine_rows_in_ten_of_another_day(net: str) -> None:
    of = NEEDED[net]
    assert np.mean([float((one <= 1.005).mean()) for one in of.values()]) >= another_day.LEVEL - 0.005
    assert min(float((one <= 1.005).mean()) for one in of.values()) >= 0.85
