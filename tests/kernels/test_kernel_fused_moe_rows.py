"""Which rows of the public corpus teach the fused-MoE net, and which it must not be taught by."""

from __future__ import annotations

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")
from train.nets.fused_moe import SLOWER, TUNED, fallbacks  # noqa: E402


def series(tp: int, slower: float, impl: str = TUNED[0]) -> dict[str, object]:
    names = {"gpu": "H100", "stack": "trtllm-1", "impl": impl, "dtype": "bf16", "group": "4096,1024,10,512"}
    return names | {"tp": tp, "ep": 2, "routing": "balanced", "latency_us": np.array([50.0, 80.0, 300.0]) * slower}


def found(*parts: dict[str, object]) -> list[bool]:
    frame = pandas.concat([pandas.DataFrame(part) for part in parts], ignore_index=True)
    return [bool(slow) for slow in fallbacks(frame, np.tile([50.0, 80.0, 300.0], len(parts)))]


def test_a_series_far_slower_than_its_neighbours_fell_back() -> None:
    assert found(series(1, 1.0), series(2, 1.1), series(4, 2 * SLOWER)) == [False] * 6 + [True] * 3


def test_a_layer_slow_throughout_did_not() -> None:
    assert not any(found(series(1, 4.0), series(2, 4.4), series(4, 4.2)))


def test_only_stacks_that_tune_before_measuring_fall_back() -> None:
    assert not any(found(*(series(tp, slower, impl="vllm_fused_moe") for tp, slower in ((1, 1.0), (2, 1.0), (4, 9.0)))))
