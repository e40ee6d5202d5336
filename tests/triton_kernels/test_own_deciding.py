"""A short list written as one function, beside working out each candidate's counts and law alone."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from pipewave.triton_kernels import gemm, prefill  # noqa: E402
from pipewave.tune import wave  # noqa: E402
from pipewave.tune.own.anchors import Floats  # noqa: E402
from pipewave.tune.own.deciding import Candidate, Deciding, Steps, least  # noqa: E402
from pipewave.tune.reading.formula import constants_of, formula, inputs_of, values_of  # noqa: E402
from pipewave.tune.reading.inspect import Shaped  # noqa: E402
from tests.triton_kernels.launches import dense, two_ways  # noqa: E402

SMS = 132


def causal(batch: int, q_len: int, heads: int) -> tuple[Any, Any, dict[str, Any]]:
    q = Shaped(batch * q_len * heads * 64, 2)
    named = {"q": q, "k": q, "v": q, "o": q, "scale": 0.1, "HEAD_DIM": 64, "CAUSAL": True, "q_len": q_len,
             "kv_len": q_len, "heads": heads, "kv_heads": heads}  # fmt: skip
    return prefill.prefill, lambda c: (batch * heads * -(-q_len // c["BLOCK_M"]), 1, 1), named


def drawn_law(pick: random.Random) -> Floats:
    """A law with a few of its terms, as a fit leaves it."""
    return np.array([pick.uniform(0.1, 2.0) if pick.random() < 0.6 else 0.0 for _ in wave.TERMS])


def drawn_dense(pick: random.Random) -> tuple[Any, Any, dict[str, Any]]:
    return gemm.gemm, *dense(*(round(math.exp(pick.uniform(0, 10))) for _ in range(3)))


def drawn_causal(pick: random.Random) -> tuple[Any, Any, dict[str, Any]]:
    return causal(pick.randint(1, 64), round(math.exp(pick.uniform(0, 9))), pick.choice((1, 8, 32)))


@pytest.mark.parametrize(("draw", "blocks"), [(drawn_dense, ("M", "N", "K")), (drawn_causal, ("M", "N"))])
@pytest.mark.parametrize("seed", range(4))
def test_a_written_short_list_chooses_as_its_laws_do_one_by_one(draw: Any, blocks: tuple[str, ...], seed: int) -> None:
    pick = random.Random(seed)
    kernel, grid, named = draw(pick)
    every = []
    for index in range(4):
        config = {f"BLOCK_{name}": pick.choice((16, 32, 64, 128)) for name in blocks}
        made = formula(kernel, grid, named, config, constants_of(kernel))
        every.append(Candidate(index, made, drawn_law(pick), pick.choice((1, 2, 3, 8))))
    by = [pick.uniform(0.8, 1.2) for _ in every]
    inputs = tuple(dict.fromkeys(name for one in every for name in one.counted.inputs))
    short = Deciding(every, inputs, SMS).short((0, 1, 2, 3), by)
    for _ in range(40):
        _, grid, named = draw(pick)
        numbers = inputs_of(grid, named, constants_of(kernel))
        works = [one.counted.one(*values_of(one.counted.inputs, numbers)) for one in every]
        found = least(short, values_of(inputs, numbers))
        if any(work is None for work in works):
            assert found is None
            continue
        us = [factor * wave.predict_us((*work[:5], 0), SMS, wave.tabulate(one.law, SMS, one.resident))
              for factor, work, one in zip(by, works, every, strict=True)]  # fmt: skip
        assert us[found] == pytest.approx(min(us), rel=1e-9)


def test_a_launch_that_takes_another_turn_has_no_answer() -> None:
    named = {"x": Shaped(4096, 2), "n": 4096}
    every = [Candidate(i, formula(two_ways, lambda c: (1,), named, {"BLOCK": block}, ()), np.ones(len(wave.TERMS)), 1)
             for i, block in enumerate((64, 128))]  # fmt: skip
    inputs = tuple(dict.fromkeys(name for one in every for name in one.counted.inputs))
    short = Deciding(every, inputs, SMS).short((0, 1), (1.0, 1.0))
    assert least(short, values_of(inputs, {"n": 200, "numel:x": 4096})) == 1
    assert least(short, values_of(inputs, {"n": 50, "numel:x": 4096})) is None


@pytest.mark.parametrize("resident", [1, 3, 8])
def test_steps_beyond_those_worked_out_ahead_go_on_as_the_law_does(resident: int) -> None:
    law = np.linspace(0.1, 1.9, len(wave.TERMS))
    steps = Steps(law, SMS, resident, is_even=True)
    for busiest in (1, wave.MOST, wave.MOST + 1, 10 * wave.MOST):
        at, trip, each = steps[busiest]
        blocks, trips = busiest * SMS, 7
        work = blocks, trips, trips, 0, 0, 0
        wanted = sum(a * b for a, b in zip(wave.terms(work, SMS, resident), law, strict=True))
        assert at + trips * (trip + blocks * each) + blocks * law[11] / SMS == pytest.approx(wanted, rel=1e-9)
