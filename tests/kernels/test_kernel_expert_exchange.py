"""Expert exchange: copies of tokens against a simulation of random choices, and the laws of traffic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.calls.families import from_dict
from pipewave.errors import BadInput
from pipewave.kernels.operators import copies

H100 = pw.find("H100")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("ep", "nodes", "topk"), [(8, 1, 8), (16, 2, 6), (64, 8, 8)])
def test_copies_are_those_of_drawn_experts(ep: int, nodes: int, topk: int) -> None:
    drawn = RNG.integers(0, ep, size=(40_000, topk))  # the token comes from rank 0
    ranks, hosts = (
        (places[:, None] == np.arange(1, most)[:, None]).any(axis=2).sum(axis=1).mean()
        for places, most in ((drawn, ep), (drawn // (ep // nodes), nodes))
    )
    found = copies(H100, *(np.array([float(v)]) for v in (topk, ep, nodes)), "deepep_ht")
    assert found.inside[0] == pytest.approx(ranks, rel=0.02)
    assert found.across[0] == pytest.approx(hosts, rel=0.02, abs=1e-9)
    each = copies(H100, *(np.array([float(v)]) for v in (topk, ep, nodes)), "deepep_ll")
    assert each.inside[0] == pytest.approx((drawn != 0).sum(axis=1).mean(), rel=0.02)


def asked(**changed: object) -> dict[str, object]:
    case = {"kernel": "moe_all_to_all", "tokens": 1024, "hidden": 7168, "topk": 8, "experts": 256, "ep": 8}
    return case | changed


@given(st.integers(1, 65_536), st.sampled_from(["deepep_ht", "deepep_ll", "nvlink_one_sided"]))
def test_wider_payloads_need_no_less(tokens: int, backend: str) -> None:
    narrow, wide = (
        pw.predict(asked(tokens=tokens, backend=backend, dtype=dtype), "H100").floor_us for dtype in ("fp8", "bf16")
    )
    assert narrow <= wide


def test_the_floor_is_the_link_with_one_copy_a_rank() -> None:
    sent = 8 * (1 - (7 / 8) ** 8) * 7 / 8 * 65_536 * 7168 * 2
    floor = pw.predict(asked(tokens=65_536), "H100").floor_us
    assert floor == pytest.approx(sent / (H100.link_gbps * 1e9) * 1e6, rel=1e-6)


def test_counts_of_a_mega_moe_are_of_its_experts() -> None:
    case = {"kernel": "mega_moe", "tokens": 16, "experts": 8, "topk": 2, "hidden": 2048, "inter": 768, "ep": 2}
    balanced = pw.predict(from_dict(case), "B200").latency_us
    for counts in ([8] * 8, [8] * 4):
        assert pw.predict(from_dict(case | {"routing": counts}), "B200").latency_us == pytest.approx(balanced, rel=0.01)
    assert pw.predict(from_dict(case | {"routing": [64, *[0] * 7]}), "B200").latency_us > balanced
    for wrong in ([1, 2, 3], [9] * 8):
        with pytest.raises(BadInput, match="routing"):
            from_dict(case | {"routing": wrong})


def test_a_mega_moe_waits_for_its_busiest_rank() -> None:
    case = {"kernel": "mega_moe", "tokens": 8192, "experts": 384, "topk": 6, "hidden": 7168, "inter": 3072, "ep": 8}
    even, skewed = (pw.predict(case | {"routing": kind}, "B200") for kind in ("balanced", "power_law_1.2"))
    assert skewed.latency_us > even.latency_us
    assert skewed.floor_us == even.floor_us


def test_ranks_divide_over_hosts() -> None:
    with pytest.raises(BadInput) as caught:
        pw.predict(asked(ep=8, nodes=3), "H100")
    assert caught.value.field == "nodes"


def test_both_ends_of_a_hyper_connection_stream_their_bytes() -> None:
    case = {"kernel": "hyper_connection", "tokens": 65_536, "hidden": 7168}
    one = 2 * 65_536 * 7168
    for part, streams in (("pre", 4 + 1), ("post", 4 + 1 + 4)):
        answer = pw.predict(case | {"part": part}, "H100")
        moved_us = streams * one / (H100.l2_peak_gbps * 1e3)
        assert answer.floor_us >= moved_us
        assert answer.latency_us >= answer.floor_us
