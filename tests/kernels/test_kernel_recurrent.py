"""Delta nets, Mamba 2 and their convolution: states and tokens counted by hand, and laws of size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.calls.operators import CausalConv1d, DeltaNet, Mamba2
from pipewave.errors import BadInput
from pipewave.kernels.base import Analysis, Context, family_of
from pipewave.prediction.columns import columns

H200 = pw.find("H200")
LENGTHS = st.lists(st.integers(1, 8192), min_size=1, max_size=5)


def analysed(kernel: str, case: dict[str, object], protocol: str = "cold") -> Analysis:
    family = family_of(kernel)
    options = tuple((name, case.get(name)) for name in family.options if name in case)
    return family.analyse(columns(family, [case]), Context(H200, "bf16", protocol, options=options))


def test_a_decoding_step_moves_every_state_twice() -> None:
    case = {"q_lens": [1] * 32, "k_heads": 16, "v_heads": 32, "head_k_dim": 128, "head_v_dim": 128}
    case |= {"phase": "generation", "state_dtype": "fp32"}
    states = 32 * 32 * 128 * 128 * 4
    assert analysed("delta_net", case).demand.l2[0] == pytest.approx(2 * states, rel=0.01)
    assert analysed("delta_net", case | {"state_dtype": "bf16"}).demand.l2[0] == pytest.approx(states, rel=0.02)


def test_verification_writes_a_state_for_every_token() -> None:
    case = {"q_lens": [4] * 8, "k_heads": 96, "v_heads": 96, "head_k_dim": 128, "head_v_dim": 128, "kind": "kda"}
    states = 8 * 96 * 128 * 128 * 4
    assert analysed("delta_net", case | {"phase": "verify"}).demand.l2[0] == pytest.approx(5 * states, rel=0.03)


@given(LENGTHS)
def test_a_scan_works_on_every_token_and_value_head(lengths: list[int]) -> None:
    case = {"q_lens": lengths, "k_heads": 8, "v_heads": 8, "head_k_dim": 128, "head_v_dim": 128}
    one, two = (analysed("delta_net", case | {"v_heads": heads}) for heads in (8, 16))
    assert one.demand.tensor[0] <= 6 * sum(lengths) * 8 * 128 * 128 * (1 + 1e-9)
    assert two.demand.tensor[0] == pytest.approx(2 * one.demand.tensor[0])
    assert two.base_s[0] > one.base_s[0]


def walked(lengths: list[int], heads: int) -> float:
    """Seconds of a scan that one block a request and head walks."""
    case = {"q_lens": lengths, "k_heads": heads, "v_heads": heads, "head_k_dim": 128, "head_v_dim": 128}
    ctx = Context(H200, "bf16", "cold", impl="chunk_gated_delta_rule_flashinfer", options=(("phase", "context"),))
    return float(family_of("delta_net").analyse(columns(family_of("delta_net"), [case]), ctx).base_s[0])


def test_blocks_that_walk_take_as_long_as_the_longest_until_the_gpu_is_full() -> None:
    """One request of 8 heads takes as long as sixteen, which fill 128 of 132 SMs; seventeen take a second wave."""
    one, full, over = (walked([4096] * count, 8) for count in (1, 16, 17))
    assert full == pytest.approx(one, rel=0.1)
    assert over / full == pytest.approx(2.0, rel=0.1)


def test_a_chunk_of_a_walk_takes_its_clocks() -> None:
    """6,000 clocks at 1.98 GHz: 3.0 µs, as the rows of H100 and H200 say (3.0 to 3.2)."""
    each = (walked([64 * 512], 8) - walked([64 * 256], 8)) / 256
    assert each == pytest.approx(6000 / (H200.boost_clock_mhz * 1e6), rel=0.02)


@given(st.sampled_from(["delta_net", "mamba2", "causal_conv1d"]), LENGTHS, st.integers(1, 4096))
def test_another_request_as_long_as_the_longest_takes_no_less(kernel: str, lengths: list[int], another: int) -> None:
    """A shorter one may: a wave is timed by its mean block, and the mean falls (by 1 % for [2] and [2, 1])."""
    rest = {"delta_net": {"k_heads": 8, "v_heads": 16, "head_k_dim": 128, "head_v_dim": 128},
            "mamba2": {"heads": 64, "head_dim": 64, "state_dim": 128, "groups": 8, "chunk": 128},
            "causal_conv1d": {"channels": 4096, "width": 4, "branches": 1}}[kernel]  # fmt: skip
    few, more = (analysed(kernel, rest | {"q_lens": lens}) for lens in (lengths, [*lengths, max(lengths) + another]))
    assert more.base_s[0] >= few.base_s[0] * (1 - 1e-9)
    assert np.all(more.demand.amounts >= few.demand.amounts * (1 - 1e-9))


def test_channels_of_a_convolution_go_in_and_out_once() -> None:
    case = {"q_lens": [4096], "channels": 8192, "width": 4, "branches": 1}
    assert analysed("causal_conv1d", case).demand.l2[0] == pytest.approx(2 * 2 * 4096 * 8192, rel=0.01)


@pytest.mark.parametrize("cls", [DeltaNet, CausalConv1d, Mamba2])
def test_generation_takes_one_token_a_request(cls: type) -> None:
    sizes = {DeltaNet: (8, 8), CausalConv1d: (1024,), Mamba2: (64,)}[cls]
    with pytest.raises(BadInput) as caught:
        cls((1, 2), *sizes, phase="generation")
    assert caught.value.field == "q_lens"


def test_value_heads_share_key_heads() -> None:
    with pytest.raises(BadInput) as caught:
        DeltaNet((16,), 12, 16)
    assert caught.value.field == "v_heads"


def test_kernels_that_leave_more_between_them_take_more_bandwidth() -> None:
    """flash-linear-attention's kernels of KDA: 14 kB a token and head, so as many times slower as a card's DRAM is."""
    case = {
        "q_lens": [8192] * 8,
        "k_heads": 96,
        "v_heads": 96,
        "kind": "kda",
        "phase": "context",
        "state_dtype": "fp32",
    }
    family = family_of("delta_net")
    options = tuple((name, case[name]) for name in family.options)

    def seconds(gpu: str, impl: str) -> float:
        ctx = Context(pw.find(gpu), "bf16", "graph", "sglang-0.5.16", impl, options)
        return float(family.analyse(columns(family, [case]), ctx).base_s[0])

    bandwidth = pw.find("H100").dram_gbps / pw.find("L40S").dram_gbps
    assert seconds("L40S", "chunk_kda") / seconds("H100", "chunk_kda") == pytest.approx(bandwidth, rel=0.25)
    assert seconds("H100", "flashkda_fwd") < 0.5 * seconds("H100", "chunk_kda")


def convolved(stack: str, tokens: int, requests: int = 64) -> float:
    """Seconds of a short convolution over 6,144 channels of prompts that are all alike."""
    case = {"q_lens": [tokens] * requests, "channels": 6144, "width": 4, "phase": "context"}
    family = family_of("causal_conv1d")
    ctx = Context(H200, "bf16", "graph", stack, "causal_conv1d_fn", (("phase", "context"),))
    return float(family.analyse(columns(family, [case]), ctx).base_s[0])


def test_a_block_that_has_a_channel_of_a_request_takes_as_long_for_8_tokens_as_for_512() -> None:
    """TensorRT-LLM's 64 threads; SGLang's were 128 until 0.5.14: twice the clocks. Triton's blocks share channels."""
    assert convolved("trtllm-1.3.0rc20", 512) == pytest.approx(convolved("trtllm-1.3.0rc20", 8), rel=0.08)
    assert convolved("sglang-0.5.10", 8) == pytest.approx(2 * convolved("trtllm-1.3.0rc20", 8), rel=0.05)
    assert convolved("sglang-0.5.14", 8) < 0.1 * convolved("sglang-0.5.10", 8)


def test_tokens_that_are_no_multiple_of_eight_are_read_one_by_one() -> None:
    assert convolved("trtllm-1.3.0rc20", 7) == pytest.approx(277 / 207 * convolved("trtllm-1.3.0rc20", 8), rel=0.06)
