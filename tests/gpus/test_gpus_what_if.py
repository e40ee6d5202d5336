"""Laws of `GPU.what_if`: what changes, what follows, what stays, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import BadInput, UnknownField
from pipewave.gpus import DTYPES, GPU, all_gpus, find
from pipewave.gpus.spec import LIMITS, NUMBER_FIELDS

GPUS = st.sampled_from(all_gpus())
SCALE = st.floats(0.3, 3.0)
FREE = [field for field in LIMITS if field != "compute_capability"]


def _numbers(gpu: GPU) -> dict[str, Any]:
    return {field: getattr(gpu, field) for field in NUMBER_FIELDS}


@given(GPUS)
def test_no_change_is_the_same_gpu(gpu: GPU) -> None:
    assert gpu.what_if() is gpu
    current = {key: value for key, value in _numbers(gpu).items() if key != "compute_capability"}
    assert gpu.what_if(**current) is gpu


@given(GPUS, st.sampled_from(["dram_gbps", "l2_mb", "l2_gbps", "link_gbps", "tdp_w", "smem_kb_per_sm"]), SCALE)
def test_the_given_value_is_taken_and_said(gpu: GPU, field: str, scale: float) -> None:
    value = getattr(gpu, field) * scale * 1.0001
    changed = gpu.what_if(**{field: value})
    assert getattr(changed, field) == value
    assert field in changed.name
    assert "what-if" in changed.name
    assert changed.sources[field].note == "what-if"
    assert changed != gpu
    assert changed.aliases == ()


@given(GPUS, SCALE)
def test_bandwidth_moves_only_what_measures_it(gpu: GPU, scale: float) -> None:
    changed = gpu.what_if(dram_gbps=gpu.dram_gbps * scale * 1.0001)
    touched = {key for key, value in _numbers(changed).items() if value != getattr(gpu, key)}
    assert touched <= {"dram_gbps", "dram_pin_gbps", "dram_measured_gbps"}
    assert changed.dram_peak_gbps / gpu.dram_peak_gbps == pytest.approx(scale, rel=1e-3)


@given(GPUS, st.sampled_from(["sms", "boost_clock_mhz"]), st.sampled_from([0.5, 2.0, 3.0]))
def test_peaks_follow_sms_and_clock(gpu: GPU, field: str, scale: float) -> None:
    changed = gpu.what_if(**{field: math.ceil(getattr(gpu, field) * scale)})
    exact = getattr(changed, field) / getattr(gpu, field)
    for dtype in DTYPES:
        if gpu.supports(dtype):
            for at in ("datasheet", "boost"):
                assert changed.peak_flops(dtype, at) / gpu.peak_flops(dtype, at) == pytest.approx(exact)  # type: ignore[arg-type]
            assert changed.flops_per_clk_per_sm(dtype) == pytest.approx(gpu.flops_per_clk_per_sm(dtype))
    assert changed.l2_gbps / gpu.l2_gbps == pytest.approx(exact)
    assert changed.dram_gbps == gpu.dram_gbps


def test_a_given_follower_is_left_alone() -> None:
    changed = find("H200").what_if(sms=264, bf16_tflops=1000.0)
    assert changed.bf16_tflops == 1000.0
    assert changed.fp8_tflops == pytest.approx(2 * 1978.9)


@given(GPUS, SCALE, SCALE)
def test_steps_equal_one_leap(gpu: GPU, scale: float, other: float) -> None:
    changes = {"dram_gbps": gpu.dram_gbps * scale, "boost_clock_mhz": gpu.boost_clock_mhz * other}
    at_once = gpu.what_if(**changes)
    stepped = gpu
    for key, value in changes.items():
        stepped = stepped.what_if(**{key: value})
    assert stepped.name == at_once.name
    assert _numbers(stepped) == pytest.approx(_numbers(at_once))


@given(GPUS, SCALE)
def test_undoing_restores_every_number(gpu: GPU, scale: float) -> None:
    there = gpu.what_if(boost_clock_mhz=gpu.boost_clock_mhz * scale)
    back = there.what_if(boost_clock_mhz=gpu.boost_clock_mhz)
    assert _numbers(back) == pytest.approx(_numbers(gpu))


def test_types_come_and_go() -> None:
    gpu = find("A100").what_if(fp8_tflops=624.0)
    assert gpu.supports("fp8")
    assert not find("H100").what_if(fp8_tflops=None).supports("fp8")


@given(
    GPUS,
    st.sampled_from(FREE),
    st.one_of(
        st.sampled_from([0, -1, -0.0, 1e12, 10**400, math.nan, math.inf, -math.inf, True, "4800", "", b"1", [1], {}]),
        st.floats(max_value=0),
        st.text(max_size=5),
    ),
)
def test_impossible_values_name_field_and_range(gpu: GPU, field: str, value: object) -> None:
    with pytest.raises(BadInput) as caught:
        gpu.what_if(**{field: value})
    assert caught.value.field == field
    assert str(LIMITS[field]) in str(caught.value)


@pytest.mark.parametrize("field", ["sms", "registers_per_sm", "gpus_per_node"])
def test_counts_are_whole(field: str) -> None:
    with pytest.raises(BadInput, match="a whole number from"):
        find("H200").what_if(**{field: getattr(find("H200"), field) + 0.5})
    assert find("H200").what_if(sms=140.0).sms == 140


def test_unknown_fields_get_a_hint() -> None:
    with pytest.raises(UnknownField, match="unknown GPU field 'dram_gpbs': did you mean dram_gbps"):
        find("H200").what_if(dram_gpbs=6000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sustained_clock_mhz": 2500}, "above boost_clock_mhz = 1980"),
        ({"link": "ethernet"}, "give one of nvlink, xgmi, pcie"),
        ({"compute_capability": 100}, "cannot be a what-if"),
        ({"fp16_tflops": None}, "give a number from"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        find("H200").what_if(**changes)


def test_a_name_of_ones_own() -> None:
    assert find("H200").what_if(dram_gbps=8000, name="H200 with HBM4").name == "H200 with HBM4"
    twice = find("H200").what_if(dram_gbps=8000).what_if(sms=140)
    assert twice.name == "H200 (what-if: dram_gbps=8000, sms=140)"


def test_a_gpu_built_by_hand_is_validated_too() -> None:
    with pytest.raises(BadInput, match="dram_gbps = 0"):
        replace(find("H200"), dram_gbps=0)
