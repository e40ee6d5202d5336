"""Closed forms of visited pairs and KV tiles against counting them one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.kernels.attention.tasks import tile_steps, visible_keys, visible_pairs


def first_key(position: int, window: int) -> int:
    return max(position - window + 1, 0) if window else 0


def counted_pairs(q: int, kv: int, window: int) -> int:
    return sum(p + 1 - first_key(p, window) for p in range(kv - q, kv))


def counted_steps(q: int, kv: int, window: int, rows: int, keys: int) -> list[int]:
    """KV tiles that each query tile of a causal request visits."""
    visits = []
    for top in range(0, q, rows):
        last, first = min(kv - q + top + rows, kv), first_key(kv - q + top, window)
        visits.append(-(-last // keys) - first // keys)
    return visits


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


LENGTHS = st.tuples(st.integers(1, 300), st.integers(0, 300)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(LENGTHS, st.integers(0, 400))
def test_pairs_are_those_counted(lengths: tuple[int, int], window: int) -> None:
    q, kv = lengths
    assert visible_pairs(one(q), one(kv), one(window), True)[0] == counted_pairs(q, kv, window)


@given(LENGTHS, st.integers(1, 400))
def test_a_window_as_long_as_the_keys_hides_nothing(lengths: tuple[int, int], extra: int) -> None:
    q, kv = map(one, lengths)
    wide = kv + extra
    assert visible_pairs(q, kv, wide, True) == visible_pairs(q, kv, None, True)
    assert visible_keys(q, kv, wide) == kv
    assert np.allclose(tile_steps(q, kv, wide, 64.0, 32, True)[:2], tile_steps(q, kv, None, 64.0, 32, True)[:2])


@given(LENGTHS)
def test_without_causality_every_query_sees_every_key(lengths: tuple[int, int]) -> None:
    q, kv = lengths
    assert visible_pairs(one(q), one(kv), None, False)[0] == q * kv
    tiles, steps, longest = tile_steps(one(q), one(kv), None, 64.0, 32, False)
    assert (tiles[0], longest[0]) == (math.ceil(q / 64), math.ceil(kv / 32))
    assert steps == tiles * longest


@given(LENGTHS, st.sampled_from([16, 64, 128]), st.sampled_from([32, 64, 128, 176]))
def test_tiles_and_the_longest_are_exact_and_steps_close(lengths: tuple[int, int], rows: int, keys: int) -> None:
    q, kv = lengths
    expected = counted_steps(q, kv, 0, rows, keys)
    tiles, steps, longest = tile_steps(one(q), one(kv), None, float(rows), keys, True)
    assert tiles[0] == len(expected)
    assert longest[0] == max(expected)
    assert abs(steps[0] - sum(expected)) <= 0.5 * len(expected)


@pytest.mark.parametrize(("rows", "keys"), [(128, 128), (128, 64), (64, 128), (192, 128), (128, 176)])
@pytest.mark.parametrize("history", [0, 40, 1000])
def test_steps_are_exact_over_a_whole_period(rows: int, keys: int, history: int) -> None:
    period = keys // math.gcd(rows, keys)
    q = rows * (2 * period + 1)  # the last tile is counted by itself
    steps = tile_steps(one(q), one(q + history), None, float(rows), keys, True)[1]
    assert steps[0] == pytest.approx(sum(counted_steps(q, q + history, 0, rows, keys)), rel=1e-12)


@given(st.integers(500, 5000), st.integers(0, 2000), st.sampled_from([128, 1024]))
def test_windowed_steps_are_close(q: int, history: int, window: int) -> None:
    expected = counted_steps(q, q + history, window, 128, 64)
    _, steps, longest = tile_steps(one(q), one(q + history), one(window), 128.0, 64, True)
    assert steps[0] == pytest.approx(sum(expected), rel=0.25)
    assert longest[0] >= max(expected)


def test_fractional_rows_serve_packed_groups() -> None:
    """Three heads share a tile of 128 rows: 42.67 queries each, so 128 queries fill three tiles."""
    tiles, _, _ = tile_steps(one(128), one(128), None, one(128 / 3), 128, True)
    assert tiles[0] == 3
