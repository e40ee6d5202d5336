"""Laws of vLLM's Triton decode where physics answers alone: how caches are cut, and what that costs under a window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.kernels.attention.decode import NARROW, SEGMENTS, WIDE, walked
from pipewave.kernels.attention.tasks import Heads, requests_of_one, shape_of
from tests.sampled import examples


def walk(kv_lens: list[int], kv_heads: float = 2.0, window: float | None = None, dim: float = 512.0) -> Any:
    heads = Heads(8 * kv_heads, kv_heads, window, dim, dim, 2.0, 2.0)
    return walked(shape_of(requests_of_one([1] * len(kv_lens), kv_lens), heads))


def call(kv_lens: list[int], window: int | None = None) -> dict[str, Any]:
    sizes = {"q_lens": [1] * len(kv_lens), "kv_lens": kv_lens, "heads": 16, "kv_heads": 8, "head_dim": 256}
    return {"kernel": "attention", "impl": "vllm_triton_attn", **sizes} | ({"window": window} if window else {})


def test_few_heads_walk_sixteenths_of_the_cache_and_many_all_of_it() -> None:
    few, many = walk([8192] * 64), walk([8192] * 65)
    assert (few.keys, few.longest) == (NARROW, 8192 / NARROW / SEGMENTS)
    assert (many.keys, many.longest) == (WIDE, 8192 / WIDE)
    assert few.tiles * few.keys / 64 == many.tiles * many.keys / 65 == 2 * 8192


@given(st.integers(64, 60_000), st.integers(16, 4096))
@examples(60)
def test_a_window_leaves_blocks_no_more_than_they_had(kv: int, window: int) -> None:
    whole, seen = walk([kv]), walk([kv], window=float(window))
    assert seen.longest <= whole.longest
    assert seen.tiles <= whole.tiles
    assert seen.tiles * seen.keys >= min(window, kv)


def test_a_long_cache_leaves_a_window_to_fewer_blocks() -> None:
    """Rows of an H100, one request under a window of 1,024: 13.5 us with 1,024 keys and 42.8 with 8,192."""
    short, long = pw.predict([call([1024], 1024), call([8192], 1024)], "H100").latency_us
    assert 2.2 < long / short < 4.0


@pytest.mark.parametrize("kv_lens", [[1], [700, 9000, 16], [4000] * 40])
def test_lists_and_single_calls_agree(kv_lens: list[int]) -> None:
    calls = [call(kv_lens), call(kv_lens, 1024), call([5, 6])]
    one_by_one = [pw.predict([one], "H100").latency_us[0] for one in calls]
    assert np.allclose(pw.predict(calls, "H100").latency_us, one_by_one, rtol=1e-9)
