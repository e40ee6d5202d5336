"""Recorded spaces of any kernel: nothing is lost in T4, selectors are ranked as they deserve, cards carry over."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.any_kernel import spaces
from pipewave.errors import BadFile
from pipewave.tune import store as store
from pipewave.tune.law.anchors import Anchors, Floats, Peaks, peaks_of
from pipewave.tune.law.model import Model, fit, moved, ratios
from pipewave.tune.law.wave import TERMS, terms, work
from pipewave.tune.store import KindTable
from pipewave.tune.user_kernels.kernel import KernelDescription
from studies.any_kernel.selectors import SELECTORS, by_model, peaks_of_space, pipewave, score
from tests.sampled import sampled

H200 = peaks_of("NVIDIA H200")
TILES = [(m, n) for m in (16, 64, 128) for n in (32, 128, 256)]


def counted(m: int, n: int, k: int) -> Floats:
    """Counts [c, 6] of a product."""
    rows = []
    for bm, bn in TILES:
        high, wide, trips = -(-m // bm), -(-n // bn), -(-k // 64)
        moved = high * wide * trips * (bm + bn) * 128
        rows.append(
            [high * wide, trips, trips, 2.0 * (m * k + n * k + m * n), moved, 128.0 * high * wide * bm * bn * trips]
        )
    return np.array(rows)


def truth_us(counts: Floats, of: Peaks, resident: Floats, slow: float = 1.0) -> Floats:
    """A made-up card: launch, waves of trips as costly as their tile, memory, L2."""
    each = np.array([0.05 + slow * bm * bn / 40_000 * (1.6 if bm == 16 else 1.0) for bm, bn in TILES])
    t = terms(work(counts), of.sms, resident)
    named = dict(zip(TERMS, t, strict=True))
    return np.asarray(3 + each * (named["waves"] + 1) * counts[..., 1] * resident + counts[..., 3] / of.bytes_us
                      + counts[..., 4] / (of.sm_bytes_us * of.sms) * 0.5)  # fmt: skip


def space(of: Peaks = H200, slow: float = 1.0, seed: int = 0, noise: float = 0.01) -> spaces.Space:
    """Eighty launches of a product, half of them to test on."""
    rng = np.random.default_rng(seed)
    shapes = [{"m": int(m), "n": 64 * int(n), "k": 64 * int(k)}
              for m, n, k in np.exp(rng.uniform(np.log([16, 8, 8]), np.log([4096, 200, 200]), (80, 3)))]  # fmt: skip
    counts = np.stack([counted(**shape) for shape in shapes])
    resident = np.array([2 if bm * bn < 20_000 else 1 for bm, bn in TILES])
    us = truth_us(counts, of, resident, slow)[..., None] * np.exp(rng.normal(0, noise, (80, len(TILES), 6)))
    runs = tuple(tuple(tuple(float(v) for v in values) for values in row) for row in us)
    configs = tuple({"BLOCK_M": m, "BLOCK_N": n, "num_warps": 4} for m, n in TILES)
    meta = {
        "kernel": "product",
        "project": "made up",
        "env": {"gpu": of.gpu, "sm_count": of.sms},
        "recorded": "2026-01-01",
    }
    return spaces.Space(meta, tuple(shapes), configs, runs, counts, resident, np.full(80, 4), (True, False) * 40)


def test_writing_and_reading_loses_nothing(tmp_path: Path) -> None:
    made = space()
    broken = spaces.Space(made.meta, made.shapes, made.configs, (((), *made.runs[0][1:]), *made.runs[1:]), made.counts,
                          made.resident, made.default, made.is_test)  # fmt: skip
    path = spaces.write(broken, tmp_path / f"product{spaces.SUFFIX}")
    again = spaces.read(path)
    assert (again.meta, again.shapes, again.configs, again.is_test) == (
        made.meta,
        made.shapes,
        made.configs,
        made.is_test,
    )
    assert again.runs[0][0] == ()
    np.testing.assert_allclose(
        [r for row in again.runs[1:] for r in row], [r for row in made.runs[1:] for r in row], rtol=1e-12
    )
    np.testing.assert_allclose(again.counts, made.counts, rtol=1e-9)
    assert np.isnan(again.us()[0, 0])


def test_the_file_is_t4(tmp_path: Path) -> None:
    body = json.loads(gzip.decompress(spaces.write(space(), tmp_path / f"p{spaces.SUFFIX}").read_bytes()))
    assert body["schema_version"] == "1.0.0"
    entry = body["results"][0]
    assert set(entry) == {
        "timestamp",
        "configuration",
        "times",
        "invalidity",
        "correctness",
        "measurements",
        "objectives",
    }
    assert entry["configuration"] == {
        "BLOCK_M": 16,
        "BLOCK_N": 32,
        "num_warps": 4,
        **{f"shape.{n}": v for n, v in space().shapes[0].items()},
    }
    assert entry["measurements"][0]["value"] == pytest.approx(np.median(entry["times"]["runtimes"]))
    assert entry["invalidity"] == "correct"


EMPTY = (gzip.compress(text, mtime=0) for text in (b"{}", b'{"metadata": {}}'))  # the clock would be in the test's name


@pytest.mark.parametrize("damage", [b"", b"not gzip", *EMPTY])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / f"x{spaces.SUFFIX}"
    path.write_bytes(damage)
    with pytest.raises(BadFile, match="space"):
        spaces.read(path)
    with pytest.raises(BadFile, match="holds no space"):
        spaces.found(tmp_path / "nowhere")


def test_our_choices_lose_little_and_less_than_the_nearest_key() -> None:
    of = space()
    ours, nearest, author = (score(of, SELECTORS[name]) for name in ("pipewave", "nearest_key", "default"))
    assert ours["mean_regret"] < 0.02
    assert ours["mean_regret"] < nearest["mean_regret"] < author["mean_regret"]
    assert author["speed_up"] == 1.0


def test_a_few_launches_on_a_new_card_do_with_another_cards_model() -> None:
    slower = Peaks("half", 66, H200.sm_flops_us / 2, H200.sm_bytes_us, H200.bytes_us / 3)
    target = space(slower, slow=2.0, seed=1)
    source = space()
    prior = moved(fit(source.anchors(np.arange(1, 80, 2)), H200), slower)
    held = [target.anchors(np.flatnonzero(~np.array(target.is_test)))]
    test = np.flatnonzero(target.is_test)

    def lost(there: Model | None, count: int) -> float:
        model = fit(held[0].take(np.arange(count)), slower, None if count else target.counts[test], there)
        choose, us = by_model(model, target, np.ones(len(TILES), bool)), target.us()[test]
        chosen = [choose(target.at()[i], target.counts[i], 4) for i in test]
        return float(np.mean(us[np.arange(len(us)), chosen] / us.min(axis=1) - 1))

    assert lost(prior, 12) < 0.02
    assert lost(prior, 12) <= lost(None, 12) + 0.002
    assert lost(prior, 0) < 0.15  # nothing measured: an honest start, not a good choice


def test_each_term_is_scaled_by_what_it_stands_for() -> None:
    memory = Peaks("m", H200.sms, H200.sm_flops_us, H200.sm_bytes_us, H200.bytes_us / 2)
    by = dict(zip(TERMS, ratios(H200, memory), strict=True))
    assert by.pop("memory") == 2.0
    assert set(by.values()) == {1.0}


def test_anyone_can_enter_a_selector() -> None:
    assert score(space(), lambda _anchors, _of: lambda _at, counts, _default: len(counts) - 1)["mean_regret"] > 0


def test_a_space_is_of_a_card() -> None:
    assert peaks_of_space(space()).sms == 132


@pytest.mark.slow
def test_a_size_that_acts_by_its_divisors_is_smoothed_over_a_shorter_length() -> None:
    """One configuration likes widths of whole blocks, which no smooth function of the width tells."""
    assert np.mean([_told_by_divisors(seed) for seed in range(8)]) >= 0.95


def _told_by_divisors(seed: int) -> float:
    """Share of launches of one draw for which the right configuration is predicted."""
    rng, widths = np.random.default_rng(seed), np.array([1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144])
    at = np.stack([np.exp(rng.uniform(np.log(64), np.log(30_000), 56)), rng.choice(widths, 56)], axis=1)
    bytes_moved = 4.0 * at[:, 0] * at[:, 1]
    counts = np.stack([at[:, 0], -(-at[:, 1] // 1024), -(-at[:, 1] // 1024), bytes_moved, bytes_moved, 0 * at[:, 0]], 1)
    counts = np.repeat(counts[:, None], 2, axis=1)
    whole = at[:, 1] % 1024 == 0
    base = 4.0 + bytes_moved / 3.5e6
    us = np.stack([base, base * np.where(whole, 0.85, 1.15)], axis=1) * np.exp(rng.normal(0, 0.005, (56, 2)))
    every = Anchors(at, counts, us, {"BLOCK": np.array([512, 1024])}, np.array([8, 8]))
    made = fit(every.take(np.arange(40)), H200)
    test = every.take(np.arange(40, 56))
    right = (made.us(test.counts, test.logs).argmin(axis=1) == 1) == (test.at[:, 1] % 1024 == 0)
    return float(right.mean())


def test_the_margin_protects_the_authors_own_choice_wherever_it_is() -> None:
    of = space(noise=0.03)
    anchors = np.flatnonzero(~np.array(of.is_test))
    best = np.nanargmin(of.us(), axis=1)
    cautious = fit(of.anchors(anchors), H200, default=best[anchors])
    assert cautious.margin >= fit(of.anchors(anchors), H200).margin  # nothing gains over the best


RECORDED = Path(__file__).parents[2] / "data" / "recordings" / "any_kernel"


@pytest.mark.parametrize("name", sampled(["grouped_matmul", "liger_swiglu", "softmax"], 1))
def test_recorded_kernels_of_others_lose_little_at_launches_never_measured(name: str) -> None:
    of = spaces.read(RECORDED / "h200" / f"{name}{spaces.SUFFIX}")
    found = score(of, pipewave)
    assert found["mean_regret"] <= 0.02
    assert found["worst_regret"] <= 0.10
    assert found["slower_share"] <= 0.02


def test_both_predictions_are_kept_in_a_table_and_carried_to_another_card(tmp_path: Path) -> None:
    made = space()
    model = fit(made.anchors(np.arange(40)), H200)
    assert model.beside is not None
    of = KernelDescription(None, "product", made.configs, ("m", "n", "k"), (), (), {}, "0" * 64)
    path = store.write_table(tmp_path / "product", of, {}, {(): KindTable(model, made.shapes[:2], ("m", "n", "k"))})
    read = store.read_table(path, of)[1][()].model
    test = made.anchors(np.arange(40, 80))
    assert read.us(test.counts, test.logs) == pytest.approx(model.us(test.counts, test.logs), rel=3e-3)
    assert 0.0 < model.beside.share < 1.0
    there = moved(model, peaks_of("NVIDIA H100 80GB HBM3"))
    assert there.beside is not None
    assert there.beside.pooled.peaks.gpu == there.peaks.gpu
    few = fit(made.anchors(np.arange(4)), H200)
    assert few.beside is None


@pytest.mark.slow
def test_what_another_card_says_counts_less_the_more_was_measured_and_is_kept_in_a_table(tmp_path: Path) -> None:
    made, h100 = space(), peaks_of("NVIDIA H100 80GB HBM3")
    there = fit(made.anchors(np.arange(40)), H200)
    test = made.anchors(np.arange(40, 80))

    def away(count: int) -> float:
        few = made.anchors(np.arange(count))
        mixed, alone = fit(few, h100, there=moved(there, h100)), fit(few, h100)
        expected = moved(there, h100).us(test.counts, test.logs)
        share = 20.0 / (20.0 + count)
        assert mixed.there is not None
        here = replace(mixed, there=None).us(test.counts, test.logs)
        assert mixed.us(test.counts, test.logs) == pytest.approx(here ** (1 - share) * expected**share, rel=1e-9)
        return float(np.abs(np.log(mixed.us(test.counts, test.logs) / alone.us(test.counts, test.logs))).mean())

    assert away(60) < away(10)
    model = fit(made.anchors(np.arange(12)), h100, there=moved(there, h100))
    of = KernelDescription(None, "product", made.configs, ("m", "n", "k"), (), (), {}, "0" * 64)
    path = store.write_table(tmp_path / "product", of, {}, {(): KindTable(model, made.shapes[:2], ("m", "n", "k"))})
    read = store.read_table(path, of)[1][()].model
    assert read.us(test.counts, test.logs) == pytest.approx(model.us(test.counts, test.logs), rel=3e-3)


def test_stretched_rounds_move_no_time() -> None:
    made = space()
    stretched = tuple(tuple((*values[:-1], 4 * values[-1]) for values in row) for row in made.runs)
    few = replace(made, runs=(*made.runs[:-1], stretched[-1]))
    assert few.us() == pytest.approx(made.us(), rel=0.05)
    assert few.halves() == pytest.approx(made.halves(), rel=0.08)
