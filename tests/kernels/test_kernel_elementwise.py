"""Streaming kernels: traffic by protocol, in-place operations, residency, laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.base import Context
from pipewave.kernels.streaming.stream import Stream, dram_bytes, least_bytes
from pipewave.physics.arith import ARRAY
from pipewave.physics.cache import MISSES, l2_bytes, missing_share

FAMILY = family_of("elementwise")

PROTOCOLS = ("cold", "serving", "graph", "profiler_warm")
BYTES = st.integers(0, 1 << 34)


def _stream(fresh: float, read: float, written: float, *, in_place: bool = False) -> Stream:
    return Stream(*(np.array([float(size)]) for size in (fresh, read, written)), in_place=in_place)


@given(BYTES, BYTES, BYTES, st.sampled_from(PROTOCOLS))
def test_expected_traffic_is_at_most_all_and_at_least_what_must_be(
    fresh: int, read: int, written: int, protocol: str
) -> None:
    gpu, work = find("H200"), _stream(fresh, read, written)
    assert dram_bytes(gpu, protocol, work)[0] <= work.moved[0]
    assert least_bytes(gpu, protocol, work)[0] <= work.moved[0]


def test_serving_takes_weights_from_dram_and_activations_from_l2() -> None:
    gpu, work = find("H200"), _stream(1e6, 2e6, 3e6)
    assert dram_bytes(gpu, "serving", work)[0] == 1e6
    assert dram_bytes(gpu, "cold", work)[0] == 6e6  # results push the flush's lines out
    assert dram_bytes(gpu, "graph", work)[0] == 0.0


def test_a_walked_buffer_begins_to_miss_around_the_capacity() -> None:
    gpu = find("H200")
    share = missing_share(MISSES["one_piece"], l2_bytes(gpu), l2_bytes(gpu) * np.array([0.5, 0.97, 2.0]))
    assert share[0] == 0.0
    assert 0.0 < share[1] < 1.0
    assert share[2] == 1.0


def test_in_place_operations_touch_their_memory_once() -> None:
    assert _stream(0, 5, 5, in_place=True).footprint(ARRAY)[0] == 5
    assert _stream(0, 5, 5).footprint(ARRAY)[0] == 10


@pytest.mark.parametrize("op", ["rope", "kv_write", "quantize", "embedding"])
def test_features_do_not_depend_on_the_operation_s_name(op: str) -> None:
    cols = {name: np.array([1e6]) for name in ("bytes_read", "bytes_written", "weight_bytes")}
    plain, named = (FAMILY.analyse(cols, Context(find("A100"), options=(("op", name),))) for name in ("copy", op))
    assert plain.features.keys() == named.features.keys()
    assert all(np.isfinite(values).all() for values in named.features.values())


@given(BYTES, BYTES, st.sampled_from(PROTOCOLS), st.sampled_from(("H200", "A40", "B200", "RTX 3090")))
def test_more_bytes_are_never_predicted_below_the_floor(read: int, written: int, protocol: str, gpu: str) -> None:
    found = pw.predict(pw.elementwise(read, written), gpu, protocol=protocol)
    assert found.floor_us <= found.low_us <= found.latency_us <= found.high_us
    assert found.floor_us >= (read + written) / (find(gpu).l2_peak_gbps * 1e3) * 0.999


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_dependent_round_takes_the_same_longer(protocol: str) -> None:
    calls = [pw.elementwise(8192, 2048, op="topk", rounds=rounds) for rounds in (0, 1, 2, 8)]
    none, one, two, eight = pw.predict(calls, "H200", protocol=protocol).latency_us
    assert one > none
    assert two - one == pytest.approx(one - none)
    assert eight - none == pytest.approx(8 * (one - none))
