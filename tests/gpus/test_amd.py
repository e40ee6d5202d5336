"""AMD's Instinct: the mesh between them, one answer for every stack, and the corrections that come with the package."""

from __future__ import annotations

import numpy as np
import pytest

import pipewave as pw
from pipewave.gpus import find
from pipewave.kernels.collective.fabric import link
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.corrections import load

CARDS = ("MI300X", "MI325X", "MI350X", "MI355X")
LARGE = 1 << 30


@pytest.mark.parametrize("name", CARDS)
def test_peaks_agree_with_units_and_clock(name: str) -> None:
    gpu = find(name)
    per_unit = gpu.flops_per_clk_per_sm("bf16")
    assert per_unit == pytest.approx({"cdna3": 2048, "cdna4": 4096}[gpu.architecture], rel=2e-3)
    assert gpu.peak_flops("fp8") == pytest.approx(2 * gpu.peak_flops("bf16"), rel=1e-3)
    assert gpu.supports("mxfp4")  # weights of 4 bits are unpacked where no tensor core takes them
    assert find(f"AMD Instinct {name}") is gpu


def test_two_cards_of_a_mesh_share_one_link_and_eight_use_all() -> None:
    gpu, one = find("MI300X"), np.ones(1)
    rates = {world: float(link(gpu, one * world, one).rate[0]) / 1e9 for world in (2, 4, 8)}
    assert rates == pytest.approx({2: 448 / 7, 4: 3 * 448 / 7, 8: 448})
    times = [pw.predict(pw.all_reduce(LARGE, world), gpu).latency_us for world in (2, 8)]
    assert times[0] > 2 * times[1]  # NVLink's switch would make two the faster


def test_every_stack_gets_the_same_answer_and_says_so() -> None:
    calls = [pw.gemm(64, 7168, 2048, dtype="fp8_block", stack=stack) for stack in ("vllm-0.22.1", "sglang-0.5.14")]
    found = pw.predict(calls, "MI355X")
    assert found[0].latency_us == found[1].latency_us
    for answer in found:
        assert any("AITER" in note for note in answer.notes)
        assert any("no rows of" in note for note in answer.notes)
        assert answer.basis == "new_architecture" and answer.software != "measured"


@pytest.mark.parametrize("architecture", ["cdna3", "cdna4"])
def test_shipped_corrections_are_of_the_weights_that_ship(architecture: str) -> None:
    saved = load(corrections.SHIPPED / f"{architecture}{corrections.SUFFIX}")  # raises for other weights
    nets = {net for net, _ in saved.corrections}
    assert {"gemm", "gemm_fp8", "gemm_block", "fused_moe"} <= nets
    assert saved.gpu == architecture and all(one.origin for one in saved.corrections.values())


def test_a_correction_stays_above_the_floor_and_follows_memory() -> None:
    gpu = find("MI300X")
    calls = [pw.gemm(m, 8192, 8192, dtype="fp8") for m in (16, 256, 4096, 65536)]
    answers = pw.predict(calls, gpu)
    assert all(answer.latency_us >= answer.floor_us for answer in answers)
    assert [a.latency_us for a in answers] == sorted(a.latency_us for a in answers)
    faster = pw.predict(calls[0], "MI325X").latency_us
    assert faster <= answers[0].latency_us * 1.02


def test_off_leaves_the_shipped_corrections(monkeypatch: pytest.MonkeyPatch) -> None:
    call = pw.gemm(64, 7168, 2048, dtype="fp8_block")
    usual = pw.predict(call, "MI300X").latency_us
    monkeypatch.setenv(corrections.VARIABLE, corrections.OFF)
    assert pw.predict(call, "MI300X").latency_us == usual
    with corrections.suspended():
        assert pw.predict(call, "MI300X").latency_us != usual


def test_a_step_saves_no_write_back_that_tuned_rows_never_paid() -> None:
    """AITER's rows were timed without a flush, so weights take as long to come from memory inside a step."""
    calls = [pw.gemm(m, 13312, 16384, dtype="fp8", quantize=False) for m in (1, 32)]
    cold, step = (pw.predict(calls, "MI300X", protocol=protocol).latency_us for protocol in ("cold", "serving"))
    assert np.all(step <= 1.002 * cold) and np.all(step > 0.95 * cold)  # the correction sees features of a step


def test_no_cache_carries_what_a_kernel_wrote_to_a_kernel_on_another_die() -> None:
    """A norm reads its rows from memory inside a step as well; an H200's L2 still holds them."""
    call = pw.rmsnorm(512, 8192, fused_add=True)
    for name, carries in (("MI300X", False), ("MI355X", False), ("H200", True)):
        cold, step = (pw.predict(call, name, protocol=protocol).latency_us for protocol in ("cold", "serving"))
        assert (step < cold) == carries
        assert carries or step == cold
    several = pw.predict([call, call], "MI300X", protocol="serving")
    assert several[0].latency_us == pytest.approx(pw.predict(call, "MI300X", protocol="serving").latency_us, rel=1e-6)
