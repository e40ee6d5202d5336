"""One call in plain floats answers as the same call in a batch, whatever software is named, from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.calls.families import Call
from pipewave.errors import BadFile
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.nets.nets import trained
from pipewave.nets.scalar import alike, scalar_net
from pipewave.prediction.api import as_case
from pipewave.prediction.columns import columns, group_key
from pipewave.prediction.kernel_latency import US, answer
from pipewave.prediction.scalar import WRITTEN_OUT_AT, _scalar_context, answer_scalar

SIZES = st.integers(1, 1 << 16)
LENS = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 8192)), min_size=1, max_size=80)
GPUS = st.sampled_from(["H200", "A100", "L40S", "B200", "RTX 4090"])
PROTOCOLS = st.sampled_from(["cold", "serving", "graph", "profiler_warm"])
STACKS = st.sampled_from([None, "vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20"])


@st.composite
def any_gemm(draw: st.DrawFn) -> Call:
    tile = draw(st.sampled_from([None, (128, 128, 64)]))
    ctas, clock = draw(st.sampled_from([None, 264])), draw(st.sampled_from([None, 1500.0]))
    return pw.gemm(
        draw(SIZES), draw(SIZES), draw(SIZES), dtype=draw(st.sampled_from(["bf16", "fp16", "int8"])),
        quantize=draw(st.booleans()), stack=draw(STACKS), tile=tile, ctas=ctas, sm_clock_mhz=clock,
    )  # fmt: skip


@st.composite
def any_attention(draw: st.DrawFn) -> Call:
    decode, lens = draw(st.booleans()), draw(LENS)
    q = [1 if decode else new for new, _ in lens]
    kv = [new + held for new, (_, held) in zip(q, lens, strict=True)]
    group, window = draw(st.sampled_from([1, 5, 8])), draw(st.sampled_from([None, 128, 4096]))
    return pw.attention(
        q, kv, 8 * group, 8, draw(st.sampled_from([64, 128])), window=window, stack=draw(STACKS),
        softcap=draw(st.sampled_from([None, 30.0])), causal=draw(st.booleans()),
    )  # fmt: skip


@given(any_gemm() | any_attention(), GPUS, PROTOCOLS)
def test_a_call_alone_answers_as_in_a_batch(call: Call, gpu: str, protocol: str) -> None:
    """Twice the same call, answered with arrays; nets sum in single precision, in another order."""
    case, family = as_case(call, None, None), family_of(call.kernel)
    key = group_key(family, case)
    alone = answer_scalar(family, case, key, find(gpu), protocol)
    assert alone is not None
    batch = answer(family, columns(family, [case, case]), key, find(gpu), protocol)
    assert alone.seconds == pytest.approx(batch.seconds[:, 1], rel=1e-5)
    assert alone.seconds[3] == pytest.approx(batch.seconds[3, 1], rel=1e-12)  # the floor knows no net
    assert alone.source == batch.source
    assert pw.predict(call, gpu, protocol=protocol).latency_us == alone.seconds[0] * US


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_calls_asked_often_are_answered_the_same(dtype: str, quantize: bool) -> None:
    """Formulas are written out after a while; a fresh context has not got so far."""
    calls = [pw.gemm(m, 4096, 65 * m, dtype=dtype, quantize=quantize) for m in range(1, 8 * WRITTEN_OUT_AT, 4)]
    often = [pw.predict(call, "H100") for call in calls]
    for call, found in zip(calls, often, strict=True):
        _scalar_context.cache_clear()
        assert pw.predict(call, "H100") == found


def test_other_families_are_left_to_the_batch() -> None:
    case, family = as_case(pw.rmsnorm(8, 4096), None, None), family_of("rmsnorm")
    assert answer_scalar(family, case, group_key(family, case), find("H200"), "cold") is None


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("name", ["gemm", "attention_decode"])
def test_nets_alone_compute_what_nets_compute(name: str, activation: str) -> None:
    learned = trained(name)
    assert learned is not None and learned.ceiling is not None
    codes = {"gpu": "H200", "dtype": "bf16", "protocol": "cold"}
    nets = [replace(net, activation=activation) for net in (learned.net, learned.ceiling.net)]
    assert alike(*nets) == (name == "gemm")  # a ceiling of attention has fewer layers
    features = dict(zip(nets[0].features, np.random.default_rng(0).normal(size=len(nets[0].features)), strict=True))
    for asked in [*([net] for net in nets), *([nets] if alike(*nets) else [])]:
        small = scalar_net(asked, [codes] * len(asked))
        means, _ = small(np.array(small.inputs(features), np.float32))
        for net in asked:
            mine, means = means[: len(net.weights[0])], means[len(net.weights[0]) :]
            batch = {feature: np.full(3, value) for feature, value in features.items()}
            assert np.mean(mine) == pytest.approx(net.mean(batch, codes)[0], rel=1e-4, abs=1e-5)
        with pytest.raises(BadFile, match="reinstall"):
            small.inputs({})


def test_threads_do_not_disturb_each_other() -> None:
    calls = [pw.gemm(m, 4096, 64 * m) for m in range(1, 200)] + [pw.attention([m], [m], 8, 8) for m in range(1, 100)]
    expected = [asdict(pw.predict(call, "H200")) for call in calls]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(lambda call: asdict(pw.predict(call, "H200")), calls)) == expected
