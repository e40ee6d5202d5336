"""A few calls answer as the same calls in a batch, whatever software is named, from any thread."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.calls.families import Call
from pipewave.errors import BadFile
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.nets import nets
from pipewave.nets.nets import alike, scalar_net, trained
from pipewave.prediction.columns import columns_of, group_key_of
from pipewave.prediction.few_calls import FEW, answer_few
from pipewave.prediction.kernel_latency import NUMBERS, US, answer

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


@st.composite
def any_streaming(draw: st.DrawFn) -> Call:
    rows, stack = draw(st.integers(1, 1 << 14)), draw(STACKS)
    op = draw(st.sampled_from(["rope", "kv_write", "sample", "argmax", "float_product", "softmax"]))
    return draw(
        st.sampled_from(
            [
                pw.rmsnorm(rows, 4096, fused_add=draw(st.booleans()), stack=stack),
                pw.silu_and_mul(rows, 1792, stack=stack, impl=draw(st.sampled_from([None, "inductor"]))),
                pw.elementwise(64 * rows, 32 * rows, weight_bytes=512, op=op, stack=stack),
            ]
        )
    )


@st.composite
def any_collective(draw: st.DrawFn) -> Call:
    make = draw(st.sampled_from([pw.all_reduce, pw.all_gather, pw.send_recv, pw.all_to_all]))
    return make(draw(st.integers(1, 1 << 28)), draw(st.sampled_from([2, 4, 8])), stack=draw(STACKS))


@given(any_gemm() | any_attention() | any_streaming() | any_collective(), GPUS, PROTOCOLS, st.integers(1, FEW))
def test_a_few_calls_answer_as_in_a_batch(call: Call, gpu: str, protocol: str, count: int) -> None:
    """Answered with arrays and with floats; nets sum in single precision, in another order."""
    family = family_of(call.kernel)
    key = group_key_of(family, call, None, None)
    few = answer_few(family, [call] * count, key, find(gpu), protocol)
    assert few is not None
    batch = answer(family, columns_of(family, [call, call]), key, find(gpu), protocol)
    rows = np.reshape(few.numbers, (NUMBERS, count))
    assert rows == pytest.approx(np.repeat(batch.numbers[:, 1:], count, axis=1), rel=1e-5)
    assert rows[3, 0] == pytest.approx(batch.seconds[3, 1], rel=1e-12)  # the floor knows no net
    assert few.source == batch.source
    assert few.draw is batch.draw
    alone = answer_few(family, [call], key, find(gpu), protocol)
    assert alone is not None and pw.predict(call, gpu, protocol=protocol).latency_us == alone.seconds[0] * US


@pytest.mark.parametrize("gpu", ["MI300X", "MI355X"])
def test_corrections_answer_a_few_calls_as_a_batch(gpu: str) -> None:
    """Of the Gaussian process that comes with the package: features, hidden units and software are its coordinates."""
    calls = [pw.gemm(m, 4096, 512 * m, dtype=dtype) for m in range(1, 60, 4) for dtype in ("bf16", "fp8")]
    many = pw.predict(calls * 4, gpu)
    for call, found in zip(calls, many, strict=False):
        alone = pw.predict(call, gpu)
        assert alone.notes == found.notes and "calibrated with" in alone.notes[-1]
        assert (alone.latency_us, alone.high_us) == pytest.approx((found.latency_us, found.high_us), rel=1e-5)


def test_other_families_are_left_to_the_batch() -> None:
    call, family = pw.fused_moe(8, 64, 8, 2048, 1024), family_of("fused_moe")
    assert answer_few(family, [call], group_key_of(family, call, None, None), find("H200"), "cold") is None


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("wasted", [-1, nets.WASTED, 10**9])
@pytest.mark.parametrize("name", ["gemm", "attention_decode"])
def test_nets_alone_compute_what_nets_compute(
    name: str, wasted: int, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members multiplied apart, side by side where that is faster, or side by side throughout; of one call or several."""
    monkeypatch.setattr(nets, "WASTED", wasted)
    nets._layers.cache_clear()
    learned = trained(name)
    assert learned is not None and learned.ceiling is not None
    codes = {"gpu": "H200", "dtype": "bf16", "protocol": "cold"}
    both = [replace(net, activation=activation) for net in (learned.net, learned.ceiling.net)]
    assert alike(*both) == (name == "gemm")  # a ceiling of attention has fewer layers
    rng = np.random.default_rng(0)
    calls = [dict(zip(both[0].features, rng.normal(size=len(both[0].features)), strict=True)) for _ in range(3)]
    batch = {feature: np.array([call[feature] for call in calls]) for feature in both[0].features}
    for asked in [*([net] for net in both), *([both] if alike(*both) else [])]:
        small = scalar_net(asked, [codes] * len(asked))
        inputs = [small.inputs(call) for call in calls]
        wanted = np.array([2, len(inputs[0]) + 5, len(inputs[0]) - 1])  # a feature, a unit of the first member, a one
        many, seen = small(inputs, wanted)
        _, units = asked[0].with_units(asked[0].inputs(batch), codes)
        for i, one in enumerate(inputs):
            (alone,), seen_alone = small([one], wanted)
            assert alone == pytest.approx(many[i], rel=1e-4, abs=1e-5)
            assert seen_alone == pytest.approx(seen[i], rel=1e-4, abs=1e-5)
            assert seen_alone == pytest.approx([one[2], units[0, i, 5], 1.0], rel=1e-4, abs=1e-5)
            means = alone[::2]
            for net in asked:
                mine, means = means[: len(net.weights[0])], means[len(net.weights[0]) :]
                assert np.mean(mine) == pytest.approx(net.mean(batch, codes)[i], rel=1e-4, abs=1e-5)
        with pytest.raises(BadFile, match="reinstall"):
            small.inputs({})


def test_an_answer_alone_is_as_one_that_was_built() -> None:
    """It is put together another way: nothing can tell, and nothing can be set."""
    alone = pw.predict(pw.gemm(512, 512, 512), "H200")
    built = type(alone)(**{each.name: getattr(alone, each.name) for each in fields(alone)})
    assert type(alone) is pw.Prediction and alone == built and hash(alone) == hash(built)
    assert pickle.loads(pickle.dumps(alone)) == replace(built, bound=alone.bound) and repr(alone) == repr(built)
    with pytest.raises(FrozenInstanceError):
        alone.latency_us = 1.0  # type: ignore[misc]


def test_threads_do_not_disturb_each_other() -> None:
    calls = [pw.gemm(m, 4096, 64 * m) for m in range(1, 200)] + [pw.attention([m], [m], 8, 8) for m in range(1, 100)]
    expected = [asdict(pw.predict(call, "H200")) for call in calls]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(lambda call: asdict(pw.predict(call, "H200")), calls)) == expected
