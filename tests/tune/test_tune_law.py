"""The laws: counts against counting, fits against known truths, the published form, the smoothed residual."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipewave.tune import published, wave
from pipewave.tune.alternation import places, settled_us
from pipewave.tune.mapping import COUNTED, Work, active_experts, expert_rows, mapper, mean_used, routed
from pipewave.tune.measured import resident_blocks, undisturbed
from pipewave.tune.recording import TEST, Recording, Rows
from pipewave.tune.smooth import alike, smoother

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
    # The last shape has more blocks on an SM than a law's table holds.
    shape = {
        "m": np.array([[7], [3000], [16000]]),
        "n": np.array([[4096], [512], [32768]]),
        "k": np.array([[512], [8192], [64]]),
    }
    config = {"BLOCK_M": np.array([16, 128]), "BLOCK_N": np.array([64, 256]), "BLOCK_K": np.array([64, 64])}
    resident = np.array([3, 1])
    law = RNG.uniform(0, 1, len(wave.TERMS))
    rows = wave.design(mapper("gemm")(shape, config), 132, resident) @ law
    for s in range(3):
        for c in range(2):
            one = mapper("gemm")({k: int(v[s, 0]) for k, v in shape.items()}, {k: int(v[c]) for k, v in config.items()})
            fast = wave.tabulate(law, 132, int(resident[c]))
            assert wave.predict_us(one, 132, fast) == pytest.approx(rows[s, c])
            assert np.dot(wave.terms(one, 132, int(resident[c])), law) == pytest.approx(rows[s, c])


def test_a_known_law_is_found_and_stays_nonnegative() -> None:
    x = RNG.uniform(0.1, 10, (200, 1, len(wave.TERMS)))
    truth = np.zeros((1, len(wave.TERMS)))
    truth[0, [0, 3, 7, 9]] = 3.0, 2.0, 1.0, 0.5
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
    law = wave.tabulate(np.ones(len(wave.TERMS)), 132, 2)
    times = [wave.predict_us(Work(blocks, 10, 10, 0, 0, 0), 132, law) for blocks in (132, 264, 528, 1056, 132 * 200)]
    assert times == sorted(times)


def test_a_wave_is_as_wide_as_the_occupancy() -> None:
    at = dict(zip(wave.TERMS, wave.terms(Work(265, 8, 8, 0, 0, 0), 132, 2), strict=True))
    assert (at["waves"], at["busiest"], at["two"], at["three"]) == (1, 3, 8, 0)
    alone = dict(zip(wave.TERMS, wave.terms(Work(132, 8, 8, 0, 0, 0), 132, 2), strict=True))
    assert (alone["waves"], alone["two"], alone["filled"]) == (0, 0, 4)


def test_blocks_dealt_longest_first_load_the_first_sm_most() -> None:
    sms, blocks, most, mean = 4, 10, 9.0, 5.0
    dealt = [most - 2 * (most - mean) * at / blocks for at in range(0, blocks, sms)]
    work = Work(blocks, mean, most, 0, 0, 0)
    at = dict(zip(wave.TERMS, wave.terms(work, sms, 3), strict=True))
    assert at["uneven"] == pytest.approx(sum(dealt) - len(dealt) * mean)
    assert dict(zip(wave.TERMS, wave.terms(work, sms, 2), strict=True))["uneven"] == 0  # the rest goes to who is free


def test_the_longest_block_shares_its_sm_or_starts_late() -> None:
    one_wave = dict(zip(wave.TERMS, wave.terms(Work(200, 6.0, 10, 0, 0, 0), 132, 4), strict=True))
    assert (one_wave["crowded"], one_wave["late"]) == (4.0 * 2 / 4, 0)
    two_waves = dict(zip(wave.TERMS, wave.terms(Work(600, 6.0, 10, 0, 0, 0), 132, 4), strict=True))
    assert (two_waves["crowded"], two_waves["late"]) == (0, 10)


@pytest.mark.parametrize("blocks", [(100.5, 540.0), (64.0, 132.0 * 200)])  # the last: more than a law's table holds
def test_two_launches_at_once_are_the_mean_of_each(blocks: tuple[float, float]) -> None:
    values = RNG.uniform(0, 1, len(wave.TERMS))
    values[list(wave.ORDERED)] = 0.0
    law, shared = wave.tabulate(values, 132, 3), (4e6, 320, 640)
    one, other = (blocks[0], 4.5, 9), (blocks[1], 5.25, 6)
    each = [wave.predict_us(Work(*launch, *shared), 132, law) for launch in (one, other)]
    assert wave.predict_both_us(one, other, shared, 132, law) == pytest.approx(np.mean(each))


def test_published_buckets_recover_a_bilinear_truth() -> None:
    truth = lambda g, loop: 0.01 * g * loop + 0.05 * g + 0.3 * loop + 4  # noqa: E731
    rows = [(float(g), float(loop), truth(g, loop), 3) for g in (133, 200, 264) for loop in (8, 32, 128)]
    found = published.bucket(rows)
    assert found.r2 > 0.998
    assert found.theta == pytest.approx((0.01, 0.05, 0.3, 4.0), abs=1e-6)
    assert [anchor for anchor, _ in found.anchors] == [8, 32, 128]


def test_the_nearest_wave_is_found_on_both_sides() -> None:
    assert [published.nearest([1, 4, 8], w) for w in (0, 2, 3, 6, 20)] == [1, 1, 4, 4, 8]


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
    smem, registers, warps = np.array([100_000, 1_000, 1_000]), np.array([32, 255, 16]), np.array([4, 4, 8])
    assert resident_blocks(smem, registers, warps).tolist() == [2, 2, 8]


def test_a_disturbed_half_is_dropped() -> None:
    halves = np.array([[[10.0, 10.2], [10.0, 40.0], [np.nan, 7.0]]])
    assert undisturbed(halves).tolist() == [[pytest.approx(10.1), 10.0, 7.0]]


def test_a_decode_block_ends_with_the_longest_sequence() -> None:
    shape = {"batch": 4, "kv_len": 1000, "heads": 8, "kv_heads": 2}
    config = {"BLOCK_N": 64, "SPLITS": 4}
    even, ragged = (mapper("decode_128")(some, config) for some in (shape, shape | {"longest": 1500}))
    assert even.longest == even.trips == 4
    assert ragged.longest == 6
    assert even.blocks == 4 * 2 * 4
    # Blocks times trips is the work of all splits of all sequences.
    assert ragged.blocks * ragged.trips == pytest.approx(4 * 2 * np.mean(-(-np.arange(500, 1501) // 64)))


def working_splits(length: int, step: int, splits: int) -> int:
    """Walk over the splits as the kernel cuts a sequence."""
    span = math.ceil(math.ceil(length / splits) / step) * step
    return sum(split * span < length for split in range(splits))


@pytest.mark.parametrize(("kv", "longest"), [(60, 90), (552, 731), (3081, 4569), (17, 17), (1, 1)])
@pytest.mark.parametrize(("step", "splits"), [(64, 8), (128, 4), (16, 64), (32, 1)])
def test_splits_with_nothing_to_do_are_not_counted(kv: int, longest: int, step: int, splits: int) -> None:
    spread = min(longest - kv, kv - 1)
    walked = [working_splits(length, step, splits) for length in range(kv - spread, kv + spread + 1)]
    assert mean_used(kv, longest, step, splits) == pytest.approx(np.mean(walked))
    across = mean_used(np.array([[kv]]), np.array([[longest]]), np.array([step, 64]), np.array([splits, 8]))
    assert across[0, 0] == pytest.approx(np.mean(walked))


def test_every_split_of_a_very_long_sequence_works() -> None:
    assert mean_used(10**7, 10**7, 16, 64) == 64
    assert mean_used(16 * COUNTED, 16 * COUNTED + 1, 16, 8) == 8


def rhythmic(shift_us: float, order: str | None = None, kernel: str = "gemm") -> Recording:
    """Sixty configurations of 10 µs at four shapes; every other launch takes `shift_us` longer."""
    near = np.arange(60)
    rows = Rows()
    for _ in range(4):
        shape = rows.add_shape([64, 512, 512], TEST, [])
        chosen = np.concatenate([np.tile(near, 2), np.tile(near[:31], 2), np.tile(near[:30], 6)])
        place = np.concatenate([np.arange(120), np.arange(62), np.arange(180)])
        us = 10 + 0.01 * chosen + shift_us * (place % 2)
        rows.add(shape, chosen.tolist(), (np.arange(len(chosen)) % 2).tolist(), us.tolist())
    meta = {"kernel": kernel, "names": ["BLOCK_M"], "fields": ["m", "n", "k"]} | ({"order": order} if order else {})
    return rows.freeze(meta, [(i,) for i in near], [(0, 0, 0)] * 60)


def test_the_timers_rhythm_is_taken_out() -> None:
    recording = rhythmic(0.6)
    truth = 10 + 0.01 * recording.row_config
    before, after = (np.std(us - truth) for us in (recording.row_us, settled_us(recording)))
    assert before > 0.25
    assert after < 0.25 * before


def test_shuffled_recordings_are_left_alone() -> None:
    recording = rhythmic(0.6, order="shuffled")
    assert np.array_equal(settled_us(recording), recording.row_us.astype(float))


def test_places_restart_with_every_batch() -> None:
    place, batch = places(rhythmic(0.0))
    per_shape = 120 + 62 + 180
    assert place[:per_shape].tolist() == [*range(120), *range(62), *range(180)]
    assert batch[:per_shape].tolist() == [0] * 120 + [1] * 62 + [2] * 180
