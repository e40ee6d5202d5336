"""What answers for a launch until its short list is worked out, and what a short list holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.tune.chooser import Chooser
from pipewave.tune.compiled_chooser import AWAY, factors_at, short
from pipewave.tune.user_kernels.aside import ASIDE

SEEN, BEST = np.array([[16.0, 4096.0], [1024.0, 4096.0], [4096.0, 64.0]]), np.array([5, 7, 2])


def chooser(seen: Any = SEEN, best: Any = BEST) -> Chooser:
    some: Any = SimpleNamespace(names=("M", "N"), inputs=("M", "N", "K"))
    usable, default = np.arange(8), lambda numbers: np.full(len(numbers["M"]), 3)
    made = Chooser(some, some, some, usable, np.array(seen), best, default)
    made._asked = ASIDE.generation  # nothing is worked out aside
    return made


@pytest.mark.parametrize(
    ("key", "answer"),
    [((16, 4096, 1), 5), ((100, 4096, 1), 5), ((200, 4096, 9), 7), ((4096, 128, 1), 2), ((1, 1, 1), 5)],
)
def test_the_best_of_the_nearest_launch_in_logarithms_answers_meanwhile(key: tuple[int, ...], answer: int) -> None:
    assert chooser().meanwhile(key) == answer


def test_the_default_answers_where_no_launch_was_measured() -> None:
    assert chooser(best=None).meanwhile((16, 4096, 1)) == 3
    assert chooser(seen=np.empty((0, 2)), best=BEST).meanwhile((16, 4096, 1)) == 3


def test_factors_of_a_short_list_are_those_of_the_nearest_launches_by_their_distance() -> None:
    """Three configurations at two launches, of log sizes (0, 0) and (3, 1), read at (1, 0): one away and three."""
    factors = np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 9.0]])
    listed = short(np.array([4, 0, 6]), factors, np.array([[0.0, 0.0], [3.0, 1.0]]))
    configs, found = factors_at(listed, np.array([1.0, 0.0]))
    near, far = 1.0 / (AWAY + 1.0), 1.0 / (AWAY + 3.0)
    assert configs.tolist() == [4, 0, 6]
    assert found == pytest.approx((near * factors[0] + far * factors[1]) / (near + far))
    configs, found = factors_at(short(np.array([4, 0, 6]), factors[:1]), np.array([1.0, 0.0]))
    assert (configs.tolist(), found.tolist()) == ([4, 0, 6], [1.0, 2.0, 3.0])
