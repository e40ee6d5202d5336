"""Recorded formulas answer as the formulas themselves, to the last bit, and refuse what they cannot hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.base import Context
from pipewave.physics.arith import RECORDED, SCALAR, Arith, NotStraight, straight

NUMBERS = st.floats(1e-3, 1e6)


def everything(a: Any, b: Any, xp: Arith) -> tuple[Any, ...]:
    """Every operation and function that a formula may use."""
    powers = (a**0.5, 2.0 ** (b * 1e-6), -a % 7.0)
    chosen = xp.where(a > b, "first", "second"), xp.where(a == b, 0.0, xp.where(a <= b, 1.0, math.inf))
    rounded = xp.ceil(a) - xp.floor(b) / (1.0 + a), xp.sqrt(a * b), xp.exp(-a * 1e-6), xp.log2(a)
    return powers, chosen, rounded, xp.minimum(a, 3.0) + xp.maximum(4.0, b), 3.0 - a, 1.0 / b, 5.0


@given(NUMBERS, NUMBERS)
def test_every_operation_answers_as_it_does_on_floats(a: float, b: float) -> None:
    line = straight(lambda *numbers: everything(*numbers, RECORDED), 2)
    assert line(a, b) == everything(a, b, SCALAR)


@given(st.tuples(*[st.integers(1, 1 << 16)] * 3), st.sampled_from(["cold", "serving", "graph"]), st.booleans())
def test_a_product_is_the_same_to_the_last_bit(mnk: tuple[int, ...], protocol: str, quantize: bool) -> None:
    options = (("quantize", quantize), ("tile", None), ("variant", "gemm_fp8"))
    ctx = Context(find("H200"), "fp8", protocol, "vllm-0.24.0", "cutlass", options)
    formula = family_of("gemm").formula
    assert formula is not None

    def answered(m: Any, n: Any, k: Any, xp: Arith) -> tuple[Any, ...]:
        found = formula({"m": m, "n": n, "k": k}, ctx, xp)
        return found.base_s, tuple(found.amounts.values()), tuple(found.features.values()), tuple(found.work)[:3]

    numbers = tuple(map(float, mnk))
    assert straight(lambda *call: answered(*call, RECORDED), 3)(*numbers) == answered(*numbers, SCALAR)


def test_the_same_expression_is_worked_out_once_and_the_unused_never() -> None:
    calls = 0

    def counted(x: Any) -> Any:
        nonlocal calls
        calls += 1
        _ = RECORDED.log2(x - x)  # of zero, an error if it were worked out
        return RECORDED.sqrt(x) + RECORDED.sqrt(x)

    line = straight(counted, 1)
    assert [line(4.0), line(9.0)] == [4.0, 6.0] and calls == 1
    assert line.__code__.co_names.count("sqrt") == 1


@pytest.mark.parametrize("looks", [lambda x: 1.0 if x > 0 else 2.0, float, lambda x: min(x, 1.0), lambda x: x or 1.0])
def test_a_formula_that_looks_at_its_numbers_is_refused(looks: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError) as refused:
        straight(looks, 1)
    assert looks is float or refused.type is NotStraight


def test_values_looked_at_once_stand_where_they_are_looked_at_but_not_without_end() -> None:
    """Python reads two hundred brackets within one another, and formulas over long lists have more steps than that."""

    def summed(x: Any) -> Any:
        total = x
        for step in range(500):
            total = (total + 1.0) * (1.0 + step % 2)
        return total * 1e-150, RECORDED.where(total > 0.0, 1.0 / total, 0.0)

    line = straight(summed, 1)
    total = 3.0
    for step in range(500):
        total = (total + 1.0) * (1.0 + step % 2)
    assert line(3.0) == (total * 1e-150, 1.0 / total)
    assert len(line.__code__.co_varnames) < 50
