"""Which rows of the public corpus teach the fused-MoE net, and which it must not be taught by."""

from __future__ import annotations

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")
from train.nets.fused_moe import BEATEN, NO_FASTER, ROUTINGS, SLOWER, TUNED, fallbacks  # noqa: E402


def series(tp: int, slower: float, impl: str = TUNED[0]) -> dict[str, object]:
    names: dict[str, object] = {
        "gpu": "H100",
        "stack": "trtllm-1",
        "impl": impl,
        "dtype": "bf16",
        "group": "4096,1024,10,512",
    }
    names |= {"ep": 2, "routing": "balanced", "tokens": np.array([1, 64, 4096])}
    return names | {"tp": tp, "latency_us": np.array([50.0, 80.0, 300.0]) * slower}


def found(*parts: dict[str, object]) -> list[bool]:
    frame = pandas.concat([pandas.DataFrame(part) for part in parts], ignore_index=True)
    return [bool(slow) for slow in fallbacks(frame, np.tile([50.0, 80.0, 300.0], len(parts)))]


def test_a_series_far_slower_than_its_neighbours_fell_back() -> None:
    assert found(series(1, 1.0), series(2, 1.1), series(4, 2 * SLOWER)) == [False] * 6 + [True] * 3


def test_a_layer_slow_throughout_did_not() -> None:
    assert not any(found(series(1, 4.0), series(2, 4.4), series(4, 4.2)))


@pytest.mark.parametrize("kind", [TUNED[1], "deepgemm"])
def test_so_did_one_slower_than_a_routing_that_loads_ranks_less_evenly(kind: str) -> None:
    """Nothing says it of the least even one, nor where all are slow alike, nor of kernels that nothing tunes."""
    even, uneven, least = (series(1, 1.0, impl=kind) | {"routing": name} for name in ROUTINGS)
    slow = {"latency_us": even["latency_us"] * 1.1 * BEATEN}
    assert found(even | slow, uneven, least) == [kind in TUNED] * 3 + [False] * 6
    assert found(even | slow, uneven | slow, least) == [kind in TUNED] * 6 + [False] * 3
    assert not any(found(even, uneven, least | slow)) and not any(found(even | slow, uneven | slow, least | slow))


def test_and_one_slower_than_on_a_card_that_is_no_faster() -> None:
    slow = {"latency_us": series(1, 1.1 * BEATEN)["latency_us"]}
    for gpu, other in NO_FASTER.items():
        one, two = (series(1, 1.0) | {"gpu": name} for name in (gpu, other))
        assert found(one | slow, two) == [True] * 3 + [False] * 3
    assert not any(found(series(1, 1.0) | slow, series(1, 1.0) | {"gpu": "H200"}))  # an H200 may be faster than an H100


def test_only_stacks_that_tune_before_measuring_fall_back() -> None:
    assert not any(found(*(series(tp, slower, impl="vllm_fused_moe") for tp, slower in ((1, 1.0), (2, 1.0), (4, 9.0)))))
