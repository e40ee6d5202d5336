"""The recorder's plan and bookkeeping, with a made-up device: no GPU, torch or triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from lab.own_kernels.profile import plan, profile
from lab.own_kernels.recording import ANCHOR, TEST, Recording
from lab.own_kernels.shapes import FIELDS, draw, lengths
from lab.own_kernels.space import space
from pipewave.errors import BadFile
from pipewave.tune.shipped_kernels import family
from pipewave.tune.tables import KERNELS


class MadeUp:
    """Each configuration's time is its index plus the shape's first field; launches log what ran."""

    def __init__(self, configs: Sequence[tuple[int, ...]]) -> None:
        self.configs = list(configs)
        self.shape: dict[str, int] = {}
        self.clock = 0.0

    def prepare(self, shape: dict[str, int]) -> None:
        self.shape = shape

    def calls(self, config: tuple[int, ...]) -> list[Callable[[], Any]]:
        us = 100.0 + self.configs.index(config) + 0.001 * next(iter(self.shape.values()))
        return [lambda: us]

    def time(self, calls: Sequence[Sequence[Callable[[], Any]]]) -> list[float]:
        self.clock += 1e-4 * len(calls)
        return [sum(launch() for launch in launches) for launches in calls]


def recorded(kernel: str, budget_s: float) -> tuple[Recording, int]:
    of = space(kernel)
    device = MadeUp(of.configs)
    jobs = plan(of, range(len(of.configs)), seed=5, tests=4, anchors=3)
    with TemporaryDirectory() as folder:
        rows = profile(of, jobs, device, device.time, Path(folder) / "p", budget_s, clock=lambda: device.clock)
    built = [(0, 0, 0)] * len(of.configs)
    return rows.freeze({"kernel": kernel}, list(of.configs), built), len(jobs)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_configuration_is_timed_in_both_halves_at_every_test_shape(kernel: str) -> None:
    recording, _ = recorded(kernel, budget_s=1e9)
    for shape in np.flatnonzero(recording.role == TEST):
        for half in (0, 1):
            seen = recording.row_config[(recording.row_shape == shape) & (recording.row_half == half)]
            assert len(np.unique(seen)) == len(space(kernel).configs)


def test_times_belong_to_their_configuration_and_shape() -> None:
    recording, _ = recorded("gemm", budget_s=1e9)
    expected = 100 + recording.row_config + 0.001 * recording.shapes[recording.row_shape, 0]
    assert np.allclose(recording.row_us, expected)


def test_close_configurations_get_more_repeats_and_balanced_halves() -> None:
    recording, _ = recorded("gemm", budget_s=1e9)
    here = recording.row_shape == 0
    repeats = np.bincount(recording.row_config[here])
    assert [repeats[at] for at in (0, 10, 40, -1)] == [20, 12, 4, 2]  # configuration i takes 100 + i here
    assert np.sum(recording.row_half[here] == 0) == np.sum(recording.row_half[here] == 1)
    slow = np.bincount(recording.row_config[recording.row_shape == np.flatnonzero(recording.role == ANCHOR)[0]])
    assert [slow[at] for at in (0, 60, -1)] == [4, 2, 1]


def test_a_spent_budget_stops_between_jobs() -> None:
    recording, planned = recorded("moe_w13", budget_s=0.3)
    assert 0 < len(recording.shapes) < planned
    assert set(np.unique(recording.row_shape)) == set(range(len(recording.shapes)))


def test_a_recording_survives_its_file_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    recording, _ = recorded("decode_64", budget_s=1.0)
    path = tmp_path / "decode_64.npz"
    recording.save(path)
    again = Recording.load(path)
    assert again.meta == recording.meta
    assert np.array_equal(again.row_us, recording.row_us)
    assert np.array_equal(again.shapes, recording.shapes)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BadFile):
        Recording.load(path)


@pytest.mark.parametrize("kernel", KERNELS)
def test_spaces_are_large_distinct_and_hold_the_default(kernel: str) -> None:
    of = space(kernel)
    assert len(of.configs) >= 100
    assert len(set(of.configs)) == len(of.configs)
    assert all(of.default(shape) in of.configs for shape in draw(kernel, 3, 50))


@pytest.mark.parametrize("kernel", KERNELS)
def test_draws_repeat_for_a_seed_and_differ_between_seeds(kernel: str) -> None:
    assert draw(kernel, 1, 20) == draw(kernel, 1, 20)
    assert draw(kernel, 1, 20) != draw(kernel, 2, 20)
    assert all(tuple(shape) == FIELDS[family(kernel)] for shape in draw(kernel, 1, 20))


def test_both_halves_of_a_moe_layer_draw_the_same_layers() -> None:
    assert draw("moe_w13", 9, 30) == draw("moe_w2", 9, 30)


def test_sequence_lengths_keep_their_mean_and_repeat() -> None:
    shape = {"batch": 4000, "kv_len": 1000, "spread": 50, "seed": 3}
    assert abs(lengths(shape).mean() - 1000) < 20
    assert np.array_equal(lengths(shape), lengths(shape))
    assert set(lengths(shape | {"spread": 0})) == {1000}


def test_anchors_and_tests_share_no_shape() -> None:
    of = space("gemm")
    jobs = plan(of, [0], seed=20261121, tests=64, anchors=400)
    tests = {tuple(job.shape.values()) for job in jobs if job.role == TEST}
    others = {tuple(job.shape.values()) for job in jobs if job.role == ANCHOR}
    assert not tests & others
