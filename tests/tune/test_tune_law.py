"""The laws: counts against counting, fits against known truths, the smoothed residual."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.own_kernels.measured import undisturbed
from lab.own_kernels.shapes import draw
from pipewave.gpus import find
from pipewave.physics.cache import l2_bytes
from pipewave.tune.law import wave
from pipewave.tune.law.anchors import peaks_of
from pipewave.tune.law.smooth import alike, smoother
from pipewave.tune.shipped_kernels import (
    SHAPE_FIELDS,
    LaunchCounts,
    active_experts,
    expert_rows,
    family,
    routed,
    stated,
)
from pipewave.tune.tables import description, formulas, with_derived
from pipewave.tune.user_kernels import measuring
from pipewave.tune.user_kernels.device import Built

RNG = np.random.default_rng(5)


def test_gemm_blocks_and_trips_are_counted() -> None:
    work = stated("gemm")({"m": 130, "n": 257, "k": 65}, {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64})
    assert (work.blocks, work.trips, work.longest) == (3 * 3, 2, 2)
    assert work.dram == 2 * (130 * 65 + 257 * 65 + 130 * 257)


def test_routed_rows_are_counted_expert_by_expert() -> None:
    shape = {"m": 40, "e": 4, "top_k": 1, "hidden": 64, "inter": 64} | routed((1, 17, 0, 22), (16,))
    work = stated("moe_w2")(shape, {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64})
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
    work = stated("prefill_causal_128")(
        {"batch": 1, "q_len": q, "kv_len": kv, "heads": 1, "kv_heads": 1}, {"BLOCK_M": bm, "BLOCK_N": bn}
    )
    ends = [min(kv, (row + 1) * bm + kv - q) for row in range(-(-q // bm))]
    walked = np.mean([-(-end // bn) for end in ends])
    assert work.trips == pytest.approx(walked, rel=0.1, abs=1.0)
    assert work.longest == max(-(-end // bn) for end in ends)


@pytest.mark.parametrize("kernel", ["gemm", "gemm_fp8", "moe_w13", "moe_w2", "prefill_causal_64", "decode_64"])
def test_stated_counts_are_the_same_for_numbers_and_columns(kernel: str) -> None:
    shapes = [{name: shape[name] for name in SHAPE_FIELDS[family(kernel)]} for shape in draw(kernel, 7, 12)]
    made = formulas(kernel, with_derived(kernel, shapes[0]))
    columns = {name: np.array([float(shape[name]) for shape in shapes]) for name in shapes[0]}
    assert np.allclose(made.many(columns), [made.counts(shape) for shape in shapes])
    configs = description(kernel).configs
    assert made.counts(shapes[3])[5, :5] == pytest.approx(stated(kernel)(shapes[3], configs[5])[:5])


def test_a_known_law_is_found_and_stays_nonnegative() -> None:
    x = RNG.uniform(0.1, 10, (200, 1, len(wave.TERMS)))
    truth = np.zeros((1, len(wave.TERMS)))
    truth[0, [0, 3, 4, 6]] = 3.0, 2.0, 1.0, 0.5
    law = wave.fit([(x, np.einsum("scp,cp->sc", x, truth), 1.0)])
    assert np.all(law >= 0)
    assert np.allclose(law, truth, atol=0.02)


def test_missing_times_do_not_enter_the_fit() -> None:
    x = RNG.uniform(0.1, 10, (50, 1, len(wave.TERMS)))
    us = x.sum(axis=2)
    some = us.copy()
    some[::2] = np.nan
    assert np.allclose(wave.fit([(x, some, 1.0)]), wave.fit([(x[1::2], us[1::2], 1.0)]))


def test_the_law_grows_with_waves() -> None:
    times = [sum(wave.terms(LaunchCounts(blocks, 10, 10, 0, 0, 0), 132, 2)) for blocks in (132, 264, 528, 1056, 26400)]
    assert times == sorted(times)


def test_a_wave_is_as_wide_as_the_occupancy() -> None:
    at = dict(zip(wave.TERMS, wave.terms(LaunchCounts(265, 8, 8, 0, 0, 0), 132, 2), strict=True))
    assert (at["waves"], at["busiest"], at["filled"]) == (1, 3, 8)
    alone = dict(zip(wave.TERMS, wave.terms(LaunchCounts(132, 8, 8, 0, 0, 0), 132, 2), strict=True))
    assert (alone["waves"], alone["filled"]) == (0, 4)


def test_blocks_dealt_longest_first_load_the_first_sm_most() -> None:
    sms, blocks, most, mean = 4, 10, 9.0, 5.0
    dealt = [most - 2 * (most - mean) * at / blocks for at in range(0, blocks, sms)]
    work = LaunchCounts(blocks, mean, most, 0, 0, 0)
    at = dict(zip(wave.TERMS, wave.terms(work, sms, 3), strict=True))
    assert at["uneven"] == pytest.approx(sum(dealt) - len(dealt) * mean)
    assert dict(zip(wave.TERMS, wave.terms(work, sms, 2), strict=True))["uneven"] == 0  # the rest goes to who is free


def test_the_longest_block_shares_its_sm_or_starts_late() -> None:
    one_wave = dict(zip(wave.TERMS, wave.terms(LaunchCounts(200, 6.0, 10, 0, 0, 0), 132, 4), strict=True))
    assert (one_wave["crowded"], one_wave["late"]) == (4.0 * 2 / 4, 0)
    two_waves = dict(zip(wave.TERMS, wave.terms(LaunchCounts(600, 6.0, 10, 0, 0, 0), 132, 4), strict=True))
    assert (two_waves["crowded"], two_waves["late"]) == (0, 10)


def test_left_out_residuals_are_those_of_refitting_without_the_shape() -> None:
    at, residual = RNG.normal(size=(12, 2)), RNG.normal(size=(12, 3))
    of = alike({"BLOCK_M": np.array([16, 32, 256])}, reach=1.5, near=0.5, own=0.2)
    whole, left = smoother(at, residual, 1.0, 0.3, of)
    kernel = lambda a, b: np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))  # noqa: E731
    z, others = (at - whole.mean) / whole.spread, np.arange(12) != 7
    covariance = np.kron(kernel(z[others], z[others]), of.matrix) + 0.3 * np.eye(33)
    across = np.kron(kernel(z[7:8], z[others]), of.matrix)
    assert np.allclose(left[7], residual[7] - across @ np.linalg.solve(covariance, residual[others].ravel()))
    everything = np.kron(kernel(z, z), of.matrix)
    direct = everything @ np.linalg.solve(everything + 0.3 * np.eye(36), residual.ravel())
    assert np.allclose(whole.log_factor(at), direct.reshape(12, 3))


def test_occupancy_is_limited_by_each_resource() -> None:
    built = [Built(smem, registers) for smem, registers in ((100_000, 32), (1_000, 255), (1_000, 16))]
    peaks = peaks_of("NVIDIA H200")
    assert measuring.resident(built, np.array([4, 4, 8]), peaks).tolist() == [2, 2, 8]
    assert peaks.l2_bytes == l2_bytes(find("H200"))


def test_a_disturbed_half_is_dropped() -> None:
    halves = np.array([[[10.0, 10.2], [10.0, 40.0], [np.nan, 7.0]]])
    assert undisturbed(halves).tolist() == [[pytest.approx(10.1), 10.0, 7.0]]


def test_a_decode_block_ends_with_the_longest_sequence() -> None:
    shape = {"batch": 4, "kv_len": 1000, "heads": 8, "kv_heads": 2}
    config = {"BLOCK_N": 64, "SPLITS": 4}
    even, ragged = (stated("decode_128")(some, config) for some in (shape, shape | {"longest": 1500}))
    assert even.longest == even.trips == 4
    assert ragged.longest == 6
    assert even.blocks == 4 * 2 * 4
    # Blocks times trips is the work of all splits of all sequences.
    assert ragged.blocks * ragged.trips == pytest.approx(4 * 2 * np.mean(-(-np.arange(500, 1501) // 64)), rel=0.03)


def working_splits(length: int, step: int, splits: int) -> int:
    """Walk over the splits as the kernel cuts a sequence."""
    span = math.ceil(math.ceil(length / splits) / step) * step
    return sum(split * span < length for split in range(splits))


@pytest.mark.parametrize(("kv", "longest"), [(60, 90), (552, 731), (3081, 4569), (17, 17), (1, 1)])
@pytest.mark.parametrize(("step", "splits"), [(64, 8), (128, 4), (16, 64), (32, 1)])
def test_splits_with_nothing_to_do_are_not_counted(kv: int, longest: int, step: int, splits: int) -> None:
    spread = min(longest - kv, kv - 1)
    walked = [working_splits(length, step, splits) for length in range(kv - spread, kv + spread + 1)]
    shape = {"batch": 1, "kv_len": kv, "heads": 1, "kv_heads": 1, "longest": longest}
    counted = stated("decode_64")(shape, {"BLOCK_N": step, "SPLITS": splits})
    assert counted.blocks == pytest.approx(np.mean(walked), rel=0.08)  # at five lengths
