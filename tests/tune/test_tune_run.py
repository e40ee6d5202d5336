"""Resumed profile, pairs and evaluation, with made-up kernels and devices: no GPU, torch or triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.own_kernels.profile import plan, profile
from lab.own_kernels.recording import TEST, Rows
from lab.own_kernels.space import space
from pipewave.cli import build
from pipewave.errors import BadInput
from studies.tune_evaluate import compare, evaluate_all, regrets
from tests.command_line import CliRunner

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "h200"
recorded = pytest.mark.skipif(not (RECORDINGS / "gemm.npz").exists(), reason="recordings are not in this checkout")


class Device:
    """Times are a function of shape and configuration; counts what ran."""

    def __init__(self, kernel: str) -> None:
        self.of, self.shape, self.ran = space(kernel), {}, 0

    def prepare(self, shape: dict[str, int]) -> None:
        self.shape = shape

    def calls(self, config: tuple[int, ...]) -> list[Any]:
        us = 10.0 + self.of.configs.index(config) + self.shape["m"] % 7
        return [lambda: us]

    def time(self, calls: Any) -> list[float]:
        self.ran += len(calls)
        return [sum(launch() for launch in launches) for launches in calls]


def test_a_killed_profile_goes_on_where_it_was(tmp_path: Path) -> None:
    of, path = space("gemm"), tmp_path / "gemm.profile"
    jobs = plan(of, range(20), seed=1, tests=0, anchors=6)[:8]
    clock = iter(np.arange(0, 1000, 1.0))
    first, second = Device("gemm"), Device("gemm")
    early = profile(of, jobs, first, first.time, path, seconds=3.0, clock=lambda: float(next(clock)))
    assert len(early.shapes) == 3
    path.write_bytes(path.read_bytes()[:-25])  # killed while it wrote the third
    whole = profile(of, jobs, second, second.time, path, seconds=1e9, clock=lambda: 0.0)
    assert len(whole.shapes) == len(jobs)
    assert whole.roles == [job.role for job in jobs]
    fresh = Device("gemm")
    again = profile(of, jobs, fresh, fresh.time, path, seconds=1e9, clock=lambda: 0.0)
    assert fresh.ran == 0
    assert again.parts == whole.parts


def test_regret_scores_on_the_half_that_did_not_choose() -> None:
    halves = np.array([[[1.0, 3.0], [2.0, 2.0]]])
    # Half 0 names configuration 0 (scored 3 on half 1), half 1 names configuration 1 (scored 2 on half 0).
    assert regrets(halves, np.array([0]))[0] == pytest.approx((3 / 3 - 1 + 1 / 2 - 1) / 2)
    assert regrets(halves, np.array([1]))[0] == pytest.approx((2 / 3 - 1 + 2 / 2 - 1) / 2)


def test_choices_are_compared_with_the_default_where_they_were_timed() -> None:
    of, rows = space("gemm"), Rows()
    default = of.configs.index(of.default({}))
    for _ in range(4):
        at = rows.add_shape([64, 512, 512], TEST, [])
        rows.add(at, [default, 5, 40], [0, 1, 0], [10.0, 8.0, 12.0])
    recording = rows.freeze(
        {"kernel": "gemm", "fields": ["m", "n", "k"]}, list(of.configs), [(0, 0, 0)] * len(of.configs)
    )
    found = compare(recording, [5, 40, default, 99])  # 99 was not timed
    assert (found["shapes"], found["untimed"], found["same"]) == (3, 1, pytest.approx(1 / 3))
    assert found["slower_share"] == pytest.approx(1 / 3)
    assert found["speed_up_max"] == pytest.approx(10 / 8)


@recorded
def test_the_shipped_tables_are_scored_by_what_they_choose() -> None:
    result = evaluate_all(RECORDINGS, ["prefill_full_64"])["kernels"]["prefill_full_64"]
    assert result["shapes"] >= 60
    found = result["selectors"]["pipewave"]
    assert {"mean_regret", "p95_regret", "worst_regret", "share_of_optimum", "decision_us"} <= set(found)
    assert found["mean_regret"] < 0.015 and found["worst_regret"] < 0.1
    assert result["against_default"]["slower_share"] <= 0.02


def test_commands_answer_without_a_gpu(tmp_path: Path) -> None:
    app = build()
    runner = CliRunner()
    assert '"candidates"' in runner.invoke(app, ["tune", "explain", "gemm", "m=300,n=4096,k=4096", "--json"]).output
    assert runner.invoke(app, ["tune", "reachable", "gemm", "m=1:64,n=4096,k=4096"]).exit_code == 0
    spaced = runner.invoke(app, ["tune", "explain", "gemm", "m=300", "n=4096", "k=4096"]).output
    assert spaced == runner.invoke(app, ["tune", "explain", "gemm", "m=300,n=4096,k=4096"]).output
    for empty in ("m=9:1", "m=1:9999999", "m=1:9:0"):
        refused = runner.invoke(app, ["tune", "reachable", "gemm", f"{empty},n=4096,k=4096"])
        assert isinstance(refused.exception, BadInput) and refused.exception.field == "m"
    made = runner.invoke(
        app,
        [
            "tune",
            "export",
            "-e",
            "60",
            "-n",
            "1408",
            "--top-k",
            "4",
            "--hidden",
            "2048",
            "--vllm",
            "--out",
            str(tmp_path),
        ],
    )
    assert made.exit_code == 0
    assert (tmp_path / "E=60,N=1408,device_name=NVIDIA_H200.json").exists()
    assert isinstance(runner.invoke(app, ["tune", "explain", "gemm", "m=three"]).exception, BadInput)
