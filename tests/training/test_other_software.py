"""Intervals where other software than the one asked for answers: cells count alike, operations of a library together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import pipewave as pw
from pipewave.nets.weights_metadata import TrainingRow, TrainingRows
from train.outcomes import Outcome
from train.software import CELLS, asked_as_others, inside_on_others, of_one_framework, one_width, together


def outcome(net: str, stack: str, off: float, software: str = "nearest_version") -> Outcome:
    return Outcome(net, net, "bf16", "H100", stack, software, "measured_gpu", off, 0.05)


def test_a_version_with_many_rows_counts_no_more_than_one_with_few() -> None:
    error = np.concatenate([np.full(900, 0.1), np.full(100, 0.5)])
    cells = ["many"] * 900 + ["few"] * 100
    assert np.quantile(error, 0.89) == 0.1
    assert one_width(error, cells)(np.array([0.01, 1.0])).tolist() == [0.5, 0.5]


def test_all_operations_of_a_library_settle_one_half_width() -> None:
    """What a version changes shows in one operation or another."""
    nets, stacks = ("all_gather", "all_to_all"), [f"nccl-2.{minor}" for minor in range(CELLS)]
    calm = [outcome(net, stack, -0.02) for net in nets for stack in stacks for _ in range(20)]
    changed = [outcome("all_to_all", "nccl-2.40", 0.3) for _ in range(5)] * 4
    assert together(calm)["nearest_version"].multiple == 0.02
    found = together([*calm, *changed, *(outcome("all_to_all", "nccl-2.41", 0.3) for _ in range(20))])
    assert found["nearest_version"].multiple == 0.3 and found["nearest_version"].power == 0.0


def test_levels_share_it_and_few_versions_settle_none() -> None:
    few = [outcome("all_gather", f"nccl-2.{minor}", 0.1, "other_gpu") for minor in range(CELLS - 1)]
    assert together(few) == {}
    both = together([*few, outcome("all_gather", "nccl-2.40", 0.2)])
    assert both["other_gpu"] == both["nearest_version"]


def test_rows_are_asked_as_the_newest_version_of_each_other_framework_there() -> None:
    stacks = ["vllm-0.19.0", "vllm-0.24.0", "sglang-0.5.14", "trtllm-1.0.0"]
    frame = pd.DataFrame({"stack": stacks, "gpu": ["H100", "H100", "H100", "A100"], "row": range(4)})
    found = asked_as_others(frame)
    pairs = set(zip(found["row"], found["stack"], strict=True))
    assert pairs == {(1, "sglang-0.5.14"), (2, "vllm-0.24.0")}


def test_a_gpu_is_held_by_what_the_others_say() -> None:
    calm = [outcome("gemm", stack, 0.1) for stack in ("vllm-0.24.0", "sglang-0.5.14") for _ in range(10)]
    far = [Outcome("gemm", "gemm", "bf16", "L40S", "vllm-0.24.0", "measured", "measured_gpu", 0.9, 0.05)] * 10
    assert round(inside_on_others([*calm, *far]), 1) == 66.7


def test_types_of_one_framework_are_told_from_those_of_several() -> None:
    rows = [
        ("vllm-0.24.0", "bf16"),
        ("trtllm-1.0.0", "bf16"),
        ("trtllm-1.0.0", "int4"),
        ("trtllm-1.2.0rc5", "int4,fp8"),
    ]
    known = TrainingRows(frozenset(TrainingRow("graph", stack, kind, "H200", "default") for stack, kind in rows))
    assert of_one_framework(known) == ("int4",)


@pytest.mark.parametrize("gpu", ["H200", "A100", "B200"])
def test_another_frameworks_four_bit_weights_are_as_uncertain_as_its_other_kernels(gpu: str) -> None:
    """One framework's kernels of INT4 weights are known; those of another are not theirs, as cuBLAS is everyone's."""
    asked = {"kernel": "gemm", "m": [1, 16, 64, 1024], "n": 4096, "k": 4096}
    other = pw.predict(asked | {"dtype": "int4"}, gpu, protocol="graph", stack="vllm-0.24.0")
    (used,) = {one.stack for one in other}
    known = pw.predict(asked | {"dtype": "int4"}, gpu, protocol="graph", stack=used)
    assert used.startswith("trtllm")
    assert known.latency_us == pytest.approx(other.latency_us)
    assert np.all(other.high_us / other.latency_us >= 2.0)
    bf16 = pw.predict(asked, "B200", protocol="graph", stack="vllm-0.24.0")
    assert np.all(bf16.high_us / bf16.latency_us < 1.5)
