"""The laws: counts against counting, fits against known truths, the published form, the smoothed residual."""

from __future__ import annotations

import numpy as np
import pytest

from pipewave.tune import published, wave
from pipewave.tune.mapping import Work, active_experts, expert_rows, mapper, routed
from pipewave.tune.measured import resident_blocks, undisturbed
from pipewave.tune.smooth import smoother

RNG = np.random.default_rng(5)


def test_gemm_blocks_and_trips_are_counted() -> None:
    work = mapper("gemm")({"m": 130, "n": 257, "k": 65}, {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64})
    assert (work.blocks, work.trips, work.longest) == (3 * 3, 2, 2)
    assert work.dram == 2 * (130 * 65 + 257 * 65 + 130 * 257)


def test_routed_rows_are_counted_expert_by_expert() -> None:
    shape = {"m": 40, "e": 4, "top_k": 1, "hidden": 64, "inter": 64} | routed((1, 17, 0, 22), (16,))
    work = mapper("moe_w2")(shape, {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64})
    assert work.blocks == 1 + 2 + 0 + 2


@pytest.mark.parametrize(("m", "e", "top_k"), [(3, 64, 6), (200, 64, 6), (4000, 16, 2)])
def test_expected_routing_is_near_the_mean_of_drawn_routing(m: int, e: int, top_k: int) -> None:
    draws = np.stack(
        [
            np.bincount(np.concatenate([RNG.choice(e, top_k, replace=False) for _ in range(m)]), minlength=e)
            for _ in range(5)
        ]
    )
    active = active_experts(m, e, top_k)
    assert active == pytest.approx((draws > 0).sum(axis=1).mean(), rel=0.15)
    assert expert_rows(m * top_k, active, 32) == pytest.approx((-(-draws // 32)).sum(axis=1).mean(), rel=0.2)


@pytest.mark.parametrize(("q", "kv", "bm", "bn"), [(512, 512, 64, 64), (1000, 3000, 128, 32), (16, 700, 64, 64)])
def test_causal_trips_agree_with_a_walk_over_the_blocks(q: int, kv: int, bm: int, bn: int) -> None:
    work = mapper("prefill_causal_128")(
        {"batch": 1, "q_len": q, "kv_len": kv, "heads": 1, "kv_heads": 1}, {"BLOCK_M": bm, "BLOCK_N": bn}
    )
    ends = [min(kv, (row + 1) * bm + kv - q) for row in range(-(-q // bm))]
    walked = np.mean([-(-end // bn) for end in ends])
    assert work.trips == pytest.approx(walked, rel=0.1, abs=1.0)
    assert work.longest == max(-(-end // bn) for end in ends)


def test_numbers_and_arrays_give_the_same_terms_and_the_same_sum() -> None:
    shape = {"m": np.array([[7], [3000]]), "n": np.array([[4096], [512]]), "k": np.array([[512], [8192]])}
    config = {"BLOCK_M": np.array([16, 128]), "BLOCK_N": np.array([64, 256]), "BLOCK_K": np.array([64, 64])}
    resident = np.array([3, 1])
    law = RNG.uniform(0, 1, len(wave.TERMS))
    rows = wave.design(mapper("gemm")(shape, config), 132, resident) @ law
    for s in range(2):
        for c in range(2):
            one = mapper("gemm")({k: int(v[s, 0]) for k, v in shape.items()}, {k: int(v[c]) for k, v in config.items()})
            assert wave.predict_us(one, 132, int(resident[c]), law.tolist()) == pytest.approx(rows[s, c])
            assert np.dot(wave.terms(one, 132, int(resident[c])), law) == pytest.approx(rows[s, c])


def test_a_known_law_is_found_and_stays_nonnegative() -> None:
    x = RNG.uniform(0.1, 10, (200, 1, len(wave.TERMS)))
    truth = np.array([[3.0, 0, 0, 2.0, 0, 0, 0, 1.0, 0, 0.5, 0, 0, 0]])
    law = wave.fit([(x, np.einsum("scp,cp->sc", x, truth), 1.0)])
    assert np.all(law >= 0)
    assert np.allclose(law, truth, atol=0.02)


def test_missing_times_do_not_enter_the_fit() -> None:
    x = RNG.uniform(0.1, 10, (50, 1, len(wave.TERMS)))
    us = x.sum(axis=2)
    some = us.copy()
    some[::2] = np.nan
    assert np.allclose(wave.fit([(x, some, 1.0)]), wave.fit([(x[1::2], us[1::2], 1.0)]))


def test_the_law_grows_with_waves_and_never_jumps_down_at_a_wave() -> None:
    law = [1.0] * len(wave.TERMS)
    times = [wave.predict_us(Work(blocks, 10, 10, 0, 0, 0), 132, 2, law) for blocks in (132, 264, 528, 1056)]
    assert times == sorted(times)


def test_published_buckets_recover_a_bilinear_truth() -> None:
    truth = lambda g, loop: 0.01 * g * loop + 0.05 * g + 0.3 * loop + 4  # noqa: E731
    rows = [(float(g), float(loop), truth(g, loop), 3) for g in (133, 200, 264) for loop in (8, 32, 128)]
    found = published.bucket(rows)
    assert found.r2 > 0.998
    assert found.theta == pytest.approx((0.01, 0.05, 0.3, 4.0), abs=1e-6)
    assert [anchor for anchor, _ in found.anchors] == [8, 32, 128]


def test_the_nearest_wave_is_found_on_both_sides() -> None:
    assert [published.nearest([1, 4, 8], w) for w in (0, 2, 3, 6, 20)] == [1, 1, 4, 4, 8]


def test_leave_one_out_residuals_are_those_of_refitting_without_the_point() -> None:
    at, residual = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))
    whole, left = smoother(at, residual, 1.0, 0.3)
    kernel = lambda a, b: np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))  # noqa: E731
    z, others = (at - whole.mean) / whole.spread, np.arange(20) != 7
    weights = np.linalg.solve(kernel(z[others], z[others]) + 0.3 * np.eye(19), residual[others])
    assert np.allclose(left[7], residual[7] - kernel(z[7:8], z[others]) @ weights)


def test_occupancy_is_limited_by_each_resource() -> None:
    smem, registers, warps = np.array([100_000, 1_000, 1_000]), np.array([32, 255, 16]), np.array([4, 4, 8])
    assert resident_blocks(smem, registers, warps).tolist() == [2, 2, 8]


def test_a_disturbed_half_is_dropped() -> None:
    halves = np.array([[[10.0, 10.2], [10.0, 40.0], [np.nan, 7.0]]])
    assert undisturbed(halves).tolist() == [[pytest.approx(10.1), 10.0, 7.0]]
