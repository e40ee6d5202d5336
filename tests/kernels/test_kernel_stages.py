"""Laws of the stages that operators are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.kernels.base import Context
from pipewave.kernels.stages import SCALED_ROWS, Stage, Stages, product, rate
from pipewave.kernels.streaming.stream import Stream

ONE = np.ones(1)


def seconds(stage: Stage, gpu: str, dtype: str) -> float:
    """Time of one stage by itself."""
    none = Stream(0.0 * ONE, 0.0 * ONE, 0.0 * ONE)
    ctx = Context(pw.find(gpu), dtype, "graph", "vllm-0.24.0", "default", ())
    return float(Stages(ctx, 1, (stage,), none, 0.0 * ONE).base_s[0])


@pytest.mark.parametrize(("dtype", "gpu"), [("fp8_block", "L40S"), ("nvfp4", "B200"), ("nvfp4", "RTX PRO 6000 Server")])
@given(k=st.integers(8, 128))
def test_one_sm_walks_all_of_k_where_scales_lie_along_it(k: int, dtype: str, gpu: str) -> None:
    """A product of one tile takes at least what one SM needs for the tile's rows, however few rows are asked for."""
    deep, card = 128 * k, pw.find(gpu)
    tile_s = 2.0 * SCALED_ROWS[dtype] * 128 * deep * card.sms / rate(card, dtype)
    assert seconds(product("p", ONE, 128 * ONE, deep * ONE, dtype), gpu, dtype) > tile_s


@given(k=st.integers(16, 64))
def test_a_product_in_16_bits_is_cut_along_k(k: int) -> None:
    """One tile of twice the depth is spread over twice the SMs: it takes far less than twice as long."""
    short, deep = (
        seconds(product("p", ONE, 128 * ONE, 512.0 * times * ONE, "bf16"), "L40S", "bf16") for times in (k, 2 * k)
    )
    assert deep < 1.5 * short


@given(m=st.integers(1, 4096), dtype=st.sampled_from(("fp8", "fp8_block", "nvfp4")))
def test_quantising_reads_16_bits_writes_fewer_and_reads_these(m: int, dtype: str) -> None:
    """Beside inputs and outputs of 16 bits, the narrow copy of the input is written once and read once."""
    plain, narrow = (product("p", m * ONE, 512 * ONE, 1024 * ONE, each) for each in ("bf16", dtype))
    more = float(narrow.read[0] - plain.read[0])
    assert more == pytest.approx(float(narrow.written[0] - plain.written[0]))
    assert 0.5 * 1024 * m <= more <= 1.01 * 1024 * m
    assert narrow.launches == plain.launches + 1.0
