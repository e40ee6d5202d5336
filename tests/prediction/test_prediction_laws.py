"""The last step of an answer, beside its formula written out: interval, floor, ceiling, what a step saves."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.calls.families import Gemm
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.nets.nets import Residual
from pipewave.nets.weights_metadata import Interval
from pipewave.physics.arith import ARRAY, SCALAR
from pipewave.physics.demand import demand
from pipewave.prediction.jsonl import answer_stream
from pipewave.prediction.kernel_latency import combined, not_beyond, replayed, write_back_s
from tests.registered import withdraw

TIMES = st.floats(1e-6, 1e-2)


class Unknown(Gemm):
    """A product that no net was trained on."""

    kernel = "unknown_product"


@pytest.fixture
def unknown() -> Iterator[Family]:
    def analyse(cols: Columns, ctx: Context) -> Analysis:
        calls = len(cols["m"])
        return Analysis(
            demand(calls, tensor=2.0 * cols["m"] * cols["n"] * cols["k"]), 1e-3 + 0.0 * cols["m"], {}, "none"
        )

    yield register(Family("unknown_product", Unknown, analyse, nets=("none",)))
    withdraw("unknown_product")


def test_without_a_net_the_estimate_is_the_answer_within_a_factor_of_two(unknown: Family) -> None:
    """A scale of 0.35 on a new architecture: twice that, in logarithms, on either side."""
    found = pw.predict(Unknown(64, 64, 64), "H200")
    assert (found.latency_us, found.basis) == (pytest.approx(1000.0), "new_architecture")
    assert found.high_us == pytest.approx(1000.0 * math.exp(0.7))
    assert found.low_us == pytest.approx(1000.0 / math.exp(0.7))


@given(TIMES, st.floats(-1, 1), st.floats(0.01, 3.0), TIMES, TIMES)
def test_an_answer_is_the_estimate_corrected_and_never_below_what_physics_allows(
    base: float, log: float, scale: float, dram: float, floor: float
) -> None:
    residual, widths = Residual(log, scale), (Interval(1.5), Interval(1.0, 0.5))
    for protocol in ("cold", "graph"):
        latency, low, high = combined(base, residual, dram, floor, widths, protocol, SCALAR)
        least = max(floor, 1.1 * dram + 1.6e-6) if protocol == "cold" else floor
        assert latency == pytest.approx(max(base * math.exp(log), least))
        factor = math.exp(min(max(1.5 * scale, math.sqrt(scale)), 2.3))
        assert (low, high) == (pytest.approx(max(latency / factor, floor)), pytest.approx(latency * factor))


@given(TIMES, st.floats(-1, 1), TIMES, TIMES)
def test_a_ceiling_lies_between_the_floor_and_half_again_the_interval(
    base: float, log: float, floor: float, high: float
) -> None:
    found = not_beyond(base * math.exp(log), floor, high, SCALAR)
    assert found == pytest.approx(max(min(base * math.exp(log), 1.5 * high), floor))


@pytest.mark.parametrize(("busy", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_what_a_flush_left_behind_is_written_back_while_dram_is_busy(busy: float, share: float) -> None:
    """Half a byte goes out for each that comes in, up to a part of the L2, at the DRAM's highest rate."""
    gpu, gemm = find("H200"), family_of("gemm")
    few, many = (float(write_back_s(busy, size, gemm, gpu, SCALAR)) for size in (1e6, 1e12))
    assert few == pytest.approx(share * 0.5 * 1e6 / (1e9 * gpu.dram_peak_gbps), rel=0.05)
    assert many <= share * gpu.l2_mb * 2**20 / (1e9 * gpu.dram_peak_gbps)
    assert (many > 0) == (share > 0)


def test_replays_stand_in_above_the_floor_of_the_step() -> None:
    graph = np.array([[5.0, 1.0], [4.0, 0.5], [7.0, 2.0], [3.0, 0.4], [4.5, 0.9]])  # latency, low, high, floor, ceiling
    found = np.array(replayed(graph, np.array([2.0, 1.5]), ARRAY))
    assert found.T.tolist() == [[5.0, 4.0, 7.0, 2.0, 4.5], [1.5, 1.5, 2.0, 1.5, 1.5]]


@pytest.mark.parametrize(("spelt", "known"), [("bfloat16", "bf16"), ("half", "fp16"), ("float8_e4m3fn", "fp8")])
def test_other_words_for_types_are_understood_in_files(spelt: str, known: str) -> None:
    case, out = {"kernel": "gemm", "m": 64, "n": 4096, "k": 4096}, io.StringIO()
    answer_stream([json.dumps(case | {"dtype": word}) for word in (spelt, known)], out, gpu="H200")
    one, other = map(json.loads, out.getvalue().splitlines())
    assert one == other and "error" not in one
