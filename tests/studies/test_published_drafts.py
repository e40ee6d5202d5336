"""Published gains of drafting: the file, the acceptance that makes stated tokens, and what a prediction of them is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipewave.simulate.speculative import of
from studies.published_drafts import Gain, acceptance, read, table


@pytest.mark.parametrize("drafted", [1, 2, 3, 7])
@pytest.mark.parametrize("rate", [0.2, 0.62, 0.9])
def test_the_acceptance_makes_the_tokens_that_were_stated(drafted: int, rate: float) -> None:
    made = of({"method": "eagle3", "tokens": drafted, "acceptance": rate}).mean
    assert acceptance(drafted, made) == pytest.approx(rate, abs=1e-9)


def test_every_figure_is_of_a_case_that_is_answered() -> None:
    gains = list(read())
    assert len(gains) >= 10
    for one in gains:
        assert 1.0 < one.measured < (one.made or one.drafted + 1) <= one.drafted + 1


def test_a_gain_is_bounded_by_the_tokens_of_a_step_and_grows_with_them() -> None:
    case = {"model": "Llama-3.1-8B", "gpu": "H200", "engine": "vllm", "version": "0.22.1", "isl": 100, "osl": 50}
    case |= {"concurrency": 1, "requests": 2}
    one = Gain(case, "eagle3", 3, 2.4, 1.9)
    few, many = replace(one, made=1.6).predicted(), one.predicted()
    assert few < many < 2.4
    assert many / few == pytest.approx(2.4 / 1.6, rel=0.01)  # a step takes as long, whatever it makes
    assert "| mean | | | | | | 50 |" in table([one], [1.5 * one.measured])
