"""Which load of a published curve the largest rate is asked at, on made-up curves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from qa import find_rates


def curve(*points: tuple[int, float]) -> list[Any]:
    """Rows of a series: requests in flight, and the ms of each of a request's 99 later tokens; its first takes none."""
    return [
        SimpleNamespace(case={"concurrency": flight, "osl": 100}, measured={"ttft_ms": 0.0, "tpot_ms": ms})
        for flight, ms in points
    ]


def test_the_knee_is_where_throughput_over_time_is_most() -> None:
    """A queue in front of one server: 10 ms alone, then as long as there are requests, with a knee where they meet."""
    rows = curve(*((n, max(10.0, n / 0.8)) for n in (1, 2, 4, 8, 16, 32)))
    found = find_rates.knee(rows)
    assert found is rows[3]
    power = [row.case["concurrency"] / find_rates.busy_ms(row) / find_rates.busy_ms(row) for row in rows]
    assert power[3] == max(power)
    assert find_rates.middle(rows) is rows[3] and find_rates.middle(rows[2:]) is rows[4]


@pytest.mark.parametrize("exponent", [0.3, 0.8])
def test_a_curve_that_only_rises_or_only_falls_has_no_knee(exponent: float) -> None:
    """Where time grows as a power of the requests, power does so, too: up to the last load, or down from the first."""
    assert find_rates.knee(curve(*((n, 10.0 * n**exponent) for n in (1, 2, 4, 8)))) is None


def test_groups_without_a_knee_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bent, straight = (
        curve((1, 10.0), (2, 10.0), (4, 40.0), (8, 99.0)),
        curve((1, 10.0), (2, 10.0), (4, 10.0), (8, 10.0)),
    )
    monkeypatch.setattr(find_rates, "corpus", lambda: None)
    monkeypatch.setattr(find_rates, "read", lambda folder: [])
    monkeypatch.setattr(find_rates, "series", lambda rows: {"bent": [straight, bent], "straight": [straight]})
    monkeypatch.setattr(find_rates, "off", lambda row, client: row.case["concurrency"] / 100)
    assert list(find_rates.scored(3, find_rates.knee)) == [("bent", [0.02])]
    assert list(find_rates.scored(3, find_rates.middle)) == [("bent", [0.04, 0.04]), ("straight", [0.04])]


def test_a_closed_loop_meets_a_limit_between_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that take 2 ms times the root of the requests in flight: 4 of them meet 4 ms, 99 tokens at a time."""
    row = curve((9, 4.0))[0]
    row.case |= {"model": "m", "gpu": "g", "isl": 1}
    answers = lambda concurrency, **_: SimpleNamespace(tpot_ms=2 * concurrency**0.5, ttft_ms=0.0)  # noqa: E731
    monkeypatch.setattr(find_rates, "serve", answers)
    assert find_rates.closed_per_s(row) == pytest.approx(1e3 * 4 / (4.0 * 99), rel=1e-9)
    assert find_rates.off(row, "closed") == pytest.approx(4 / 9 - 1)
