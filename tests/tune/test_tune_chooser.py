"""What answers for a launch until its short list is worked out, and what a short list holds."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.tune.chooser import Chooser
from pipewave.tune.compiled_chooser import AWAY, factors_at, short
from pipewave.tune.law.anchors import Anchors, columns, peaks_of
from pipewave.tune.law.model import Model, fit, physics_us
from pipewave.tune.source.traced import cdiv
from pipewave.tune.user_kernels.aside import ASIDE
from pipewave.tune.user_kernels.kernel import KernelDescription
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas, Sizes

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


TILES = ({"BM": 16, "BN": 64}, {"BM": 64, "BN": 64}, {"BM": 128, "BN": 128}, {"BM": 64, "BN": 256})
H200 = peaks_of("NVIDIA H200")


def product(numbers: Mapping[str, Any], tile: Mapping[str, Any]) -> tuple[Any, ...]:
    m, n, k = numbers["M"], numbers["N"], numbers["K"]
    blocks, trips = cdiv(m, tile["BM"]) * cdiv(n, tile["BN"]), cdiv(k, 64)
    moved = blocks * (tile["BM"] + tile["BN"]) * k * 2
    return blocks, trips, trips, 2 * (m * k + n * k + m * n), moved, blocks * tile["BM"] * tile["BN"] * 2 * k


def choosing(count: int, seed: int = 2) -> tuple[Chooser, LaunchFormulas, Model]:
    """A chooser among four tiles, after so many made-up launches whose times are those of physics."""
    formulas = LaunchFormulas(KernelDescription(None, "mine", TILES, ("M", "N", "K"), ("M", "N", "K"), (), {}, ""))
    formulas.state(product, {"M": 512, "N": 4096, "K": 1024})
    of, held = Sizes(("M", "N", "K"), {}), np.array([4, 4, 2, 2])
    at = np.rint(np.exp(np.random.default_rng(seed).uniform(np.log(16), np.log(8192), (count, 3))))
    counts = formulas.many(of.numbers(at))
    us = physics_us(counts, held, H200)
    model = fit(Anchors(at, counts, us, columns(TILES), held), H200)
    return Chooser(formulas, of, model, np.arange(4), at, us.argmin(axis=1)), formulas, model


def test_short_lists_choose_as_the_whole_model_does() -> None:
    made, formulas, model = choosing(24)
    made._prepare()
    assert made.is_ready and all(made.lists)
    assert {len(listed) % 8 for lists in made.lists for listed in lists.values()} == {0}
    for m, n, k in np.random.default_rng(3).integers(16, 8192, (40, 3)).tolist():
        key = (m, n, k)
        chosen = made.decide(key)
        columns_of = {name: np.array([value], float) for name, value in zip("MNK", key, strict=True)}
        ranked = model.ranked(formulas.many(columns_of), np.log([key]))[0]
        assert ranked[chosen] <= ranked.min() + 0.05
        assert made.best_of(key, np.arange(4)) == ranked.argmin()
        assert made.best_of(key, np.array([1, 3])) == (1 if ranked[1] <= ranked[3] else 3)
        listed = made.listed(key)
        assert listed is not None and made._evaluated(key, listed) == chosen
        assert made.blocks(key, 2) == -(-m // 128) * -(-n // 128)


def test_a_launch_far_from_all_that_was_seen_is_still_chosen_for() -> None:
    made, formulas, model = choosing(12)
    made._prepare()
    far = (1 << 22, 3, 1 << 20)
    assert made.listed(far) is None
    ranked = model.ranked(formulas.many({name: np.array([float(v)]) for name, v in zip("MNK", far, strict=True)}),
                          np.log([far]))[0]  # fmt: skip
    assert ranked[made.decide(far)] <= ranked.min() + 0.05
    assert made.listed(far) is not None  # the next one in its cell need not be worked out
