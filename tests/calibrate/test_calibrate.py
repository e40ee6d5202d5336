"""Calibration: a card that is off is corrected, one that is not is left alone, and files are whole or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipewave as pw
from pipewave.calibrate.fit import Sample, fit, mape
from pipewave.calibrate.run import calibrate
from pipewave.cli import build
from pipewave.errors import BadFile, BadInput
from pipewave.files.store import Store
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.correction import left_out, likeliest
from pipewave.nets.calibration.corrections import load
from pipewave.physics.demand import Array
from pipewave.published.stream import answer_lines
from pipewave.simulate.estimate import estimate
from tests.command_line import CliRunner

GPU = "H200"
CALL = pw.gemm(2048, 4096, 4096)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PIPEWAVE_CALIBRATION", str(tmp_path))
    corrections.forget()
    yield
    corrections.forget()


def sample(rows: int, factor: float, noise: float, seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(rows, 5))
    ratio = np.log(factor) + rng.normal(0, noise, rows)
    return Sample(tuple("abcde"), points, ratio, np.full(rows, 0.2), np.arange(rows), frozenset())


def store_of(path: Path, factor: float, *, rows: int = 30, gpu: str = "NVIDIA H200") -> Path:
    """A store whose rows are `factor` times what is predicted."""
    calls = [pw.gemm(64 + 97 * i, 1024 + 512 * (i % 7), 4096) for i in range(rows)]
    software = {"stack": "torch-2.11", "impl": "cublas"}
    predicted = pw.predict(calls, GPU, **software).latency_us
    with Store(path) as out:
        out.append({"t": "env", "id": "e", "gpu": gpu})
        for i, (call, latency) in enumerate(zip(calls, predicted.tolist(), strict=True)):
            case = {"kernel": "gemm", "m": call.m, "n": call.n, "k": call.k}
            row: dict[str, Any] = {"t": "row", "key": str(i), "case": case, "protocol": "cold", "status": "ok"}
            out.append(row | software | {"latency_us": factor * latency, "env": "e"})
    return path


def test_leaving_groups_out_is_fitting_without_them() -> None:
    rng = np.random.default_rng(1)
    points, values, groups = rng.normal(size=(12, 3)), rng.normal(size=12) / 10, np.repeat(np.arange(4), 3)
    scales = likeliest(points, values)
    quick = left_out(scales.inverse(points), values, groups)
    for group in range(4):
        kept = groups != group
        slow = scales.kernel(points[~kept], points[kept]) @ scales.inverse(points[kept]) @ values[kept]
        np.testing.assert_allclose(quick[~kept], slow, atol=1e-9)


@pytest.mark.parametrize("rows", [10, 30, 100])
def test_a_card_off_by_a_factor_is_corrected(rows: int) -> None:
    found = fit(sample(rows, 1.25, 0.03))
    assert found.before > 15
    assert found.after < 5
    assert found.correction is not None


@pytest.mark.parametrize("rows", [10, 30])
def test_noise_alone_is_hardly_followed(rows: int) -> None:
    worse = []
    for seed in range(10):
        found = fit(sample(rows, 1.0, 0.05, seed)).correction
        fresh = sample(500, 1.0, 0.05, seed + 100)
        moved = found.of_software({}).log_factor(len(fresh), fresh.coordinates) if found else 0.0
        worse.append(mape(moved - fresh.log_ratio) - mape(-fresh.log_ratio))
    assert np.mean(worse) < 0.3
    assert max(worse) < 1.5


def mixed(rows: int, slow: float, seed: int = 0) -> Sample:
    """Rows of two libraries, a tenth of them of one that takes `slow` times what was predicted."""
    rng = np.random.default_rng(seed)
    ran = np.arange(rows) % 10 == 0
    coordinates = np.column_stack([rng.normal(size=(rows, 5)), ran, ~ran])
    ratio = np.where(ran, np.log(slow), 0.0) + rng.normal(0, 0.03, rows)
    names = (*"abcde", "impl=slow", "impl=usual")
    return Sample(names, coordinates, ratio, np.full(rows, 0.2), np.arange(rows), frozenset())


def moved(given: Sample, asked: Sample) -> Array:
    """What a correction fitted to one sample does to rows of another, all of whose coordinates vary in both."""
    found = fit(given).correction
    if found is None:
        return np.zeros(len(asked))
    assert found.frame.names == asked.names
    return found.at(found.frame.scaled(asked.coordinates))


def test_a_library_that_is_far_off_is_no_outlier() -> None:
    given, fresh = mixed(100, 4.0), mixed(200, 4.0, seed=1)
    ran = fresh.coordinates[:, 5] > 0
    remaining = moved(given, fresh) - fresh.log_ratio
    assert mape(remaining[ran]) < 10
    assert mape(remaining[~ran]) < 5


def test_a_spoiled_row_moves_nothing() -> None:
    given, fresh = mixed(100, 1.0), mixed(200, 1.0, seed=1)
    spoiled = replace(given, log_ratio=given.log_ratio + 3.0 * (np.arange(100) == 41))
    assert mape(moved(spoiled, fresh) - fresh.log_ratio) < 4


def test_a_correction_says_the_same_by_name_and_by_row() -> None:
    given = mixed(60, 1.5)
    found = fit(given).correction
    assert found is not None
    assert found.scales.codes == 2
    features, ran = given.coordinates[:, :5], given.coordinates[:, 5] > 0
    by_name = {impl: found.of_software({"impl": impl}).log_factor(60, features) for impl in ("slow", "usual")}
    assert np.where(ran, by_name["slow"], by_name["usual"]) == pytest.approx(moved(given, given))


@pytest.mark.parametrize("path", sorted(corrections.SHIPPED.glob("*.safetensors")), ids=lambda path: path.stem)
def test_rows_of_a_correction_are_answered_one_by_one_as_together(path: Path) -> None:
    """Where a call is one of the rows, rounding may leave a squared distance below 0, of which there is no root."""
    for found in corrections.load(path).corrections.values():
        own = sum("=" not in name for name in found.frame.names)
        ran = [name for name, there in zip(found.frame.names[own:], found.points[0, own:], strict=True) if there > 0.0]
        moved = found.of_software(dict(name.split("=") for name in ran))  # software of the first row
        given = found.points[:, :own] * found.frame.spread[:own] + found.frame.middle[:own]
        raw = np.column_stack([given, np.ones((len(given), 2))])
        together = moved(raw)
        assert np.isfinite(together).all()
        exact = 2e-6 if moved.products.dtype == np.float32 else 1e-9  # twice what single precision may be off by
        assert [float(moved(row)) for row in raw] == pytest.approx(together, rel=1e-9, abs=exact)
        assert [float(moved(row)) for row in raw.astype(np.float32)] == pytest.approx(together, abs=2e-6)


def test_predictions_pick_a_calibration_up_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pw.predict(CALL, GPU)
    report = calibrate(store_of(tmp_path / "rows", 1.2), GPU, out=tmp_path / corrections.file_name(GPU))
    (fitted,) = report.fits.values()
    assert fitted.after < fitted.before / 3
    after = pw.predict(CALL, GPU)
    assert after.latency_us == pytest.approx(1.2 * before.latency_us, rel=0.03)
    assert "calibrated with 30 rows" in after.notes
    assert after.floor_us <= after.low_us <= after.latency_us <= after.high_us
    assert pw.predict([CALL], GPU)[0] == after
    assert pw.predict(CALL, GPU, protocol="graph").notes == ()
    assert pw.predict(CALL, "H100").notes == ()
    with corrections.suspended():
        assert pw.predict(CALL, GPU) == before
    monkeypatch.setenv("PIPEWAVE_CALIBRATION", "off")
    assert pw.predict(CALL, GPU) == before


def test_a_correction_never_goes_below_the_floor(tmp_path: Path) -> None:
    calibrate(store_of(tmp_path / "rows", 0.3), GPU, out=tmp_path / corrections.file_name(GPU))
    after = pw.predict(CALL, GPU)
    assert after.latency_us >= after.low_us >= after.floor_us


def test_rows_of_another_gpu_and_too_few_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not of A100"):
        calibrate(store_of(tmp_path / "rows", 1.2), "A100")
    with pytest.raises(BadInput, match="at least 3"):
        calibrate(store_of(tmp_path / "few", 1.2, rows=2), GPU)


def test_collectives_that_waited_for_a_late_rank_teach_nothing(tmp_path: Path) -> None:
    path = store_of(tmp_path / "rows", 1.2)
    with Store(path) as out:
        for i, fastest_us in enumerate((8.0, 9.0, 30.0, 31.0, 32.0)):
            case = {"kernel": "all_reduce", "bytes": 65536 << i, "world": 4}
            row = {"t": "row", "key": f"c{i}", "case": case, "protocol": "cold", "status": "ok", "env": "e"}
            row |= {"latency_us": 33.0, "fastest_rank_us": fastest_us, "stack": "torch-2.11", "impl": "nccl"}
            out.append(row)
    report = calibrate(path, GPU, out=tmp_path / "saved")
    assert report.late == 2
    assert sum(found.rows for found in report.fits.values()) + sum(report.too_few.values()) == 33


def test_a_damaged_calibration_is_named_and_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / corrections.file_name(GPU)
    calibrate(store_of(tmp_path / "rows", 1.2), GPU, out=path)
    path.write_bytes(path.read_bytes()[:-100])
    corrections.forget()
    with pytest.raises(BadFile, match="PIPEWAVE_CALIBRATION=off"):
        pw.predict(CALL, GPU)
    monkeypatch.setenv("PIPEWAVE_CALIBRATION", "off")
    assert pw.predict(CALL, GPU).notes == ()
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_rows_of_the_fake_device_are_refused(tmp_path: Path) -> None:
    rows = store_of(tmp_path / "rows", 1.5, gpu="fake")
    with pytest.raises(BadInput, match="fake device"):
        calibrate(rows, GPU)


def test_a_calibration_is_written_where_it_is_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPEWAVE_CALIBRATION", str(tmp_path / "elsewhere"))
    assert calibrate(store_of(tmp_path / "rows", 1.5), GPU).path.parent == tmp_path / "elsewhere"
    assert any("calibrated" in note for note in pw.predict(CALL, GPU, stack="torch-2.11", impl="cublas").notes)
    monkeypatch.setenv("PIPEWAVE_CALIBRATION", "off")
    with pytest.raises(BadInput, match="--out"):
        calibrate(tmp_path / "rows", GPU)


def test_calibrations_are_listed_and_removed(tmp_path: Path) -> None:
    calibrate(store_of(tmp_path / "rows", 1.5), GPU)
    before = CliRunner().invoke(build(), ["calibrate", "list", "--format", "json"])
    assert [row["GPU"] for row in json.loads(before.stdout)["calibrations"]] == [GPU]
    assert CliRunner().invoke(build(), ["calibrate", "remove", GPU]).exit_code == 0
    corrections.forget()
    assert not pw.predict(CALL, GPU, stack="torch-2.11", impl="cublas").notes
    again = CliRunner().invoke(build(), ["calibrate", "remove", GPU])
    assert isinstance(again.exception, BadInput)


def test_every_flipped_byte_of_a_calibration_is_noticed(tmp_path: Path) -> None:
    path = calibrate(store_of(tmp_path / "rows", 1.5), GPU).path
    whole = path.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(whole), 300).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(BadFile):
            load(path)


def test_estimates_and_runs_name_the_calibration_that_moved_them(tmp_path: Path) -> None:
    run = {"batch": 4, "input_len": 128, "output_len": 8}
    before = estimate("Llama-3.1-8B", GPU, **run)
    calibrate(store_of(tmp_path / "rows", 1.5), GPU)
    after = estimate("Llama-3.1-8B", GPU, **run)
    assert after.prefill_ms > 1.1 * before.prefill_ms
    assert [note for note in after.notes if "calibrated with 30 rows" in note and note.startswith("gemm")]
    case = {"id": 1, "model": "Llama-3.1-8B", "gpu": GPU, "engine": "vllm", "mode": "estimate", "isl": 64, "osl": 4}
    (served,) = answer_lines([json.dumps(case | {"concurrency": 2})])
    assert any("calibrated" in note for note in served["notes"])


def test_a_gpu_with_a_very_long_name_is_predicted_and_calibrated(tmp_path: Path) -> None:
    long = pw.find(GPU).what_if(name="x" * 400)
    other = pw.find(GPU).what_if(name="x" * 401)
    assert pw.predict(pw.gemm(64, 64, 64), long).latency_us > 0
    assert corrections.target(long.name).name != corrections.target(other.name).name
    made = calibrate(store_of(tmp_path / "rows", 1.5, gpu="x" * 400), long)
    assert made.path.is_file()
