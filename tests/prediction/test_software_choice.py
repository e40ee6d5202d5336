"""Whose kernels answer: the stack's own, those of its nearest version, or none; every substitution is named."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import pytest

import pipewave as pw
from pipewave.calls.families import Call, from_dict
from pipewave.errors import UnsupportedDtype
from pipewave.prediction.kernel_latency import BEYOND
from tests.sampled import sampled


def test_an_implementation_without_rows_is_named() -> None:
    assert any("'foo'" in note for note in pw.predict(pw.gemm(64, 64, 64), "H200", impl="foo").notes)
    assert pw.predict(pw.gemm(64, 64, 64), "H200", impl="cublas").notes == ()


def test_four_bit_weights_are_answered_by_a_stack_that_runs_them() -> None:
    """vLLM 0.22.1 has rows of other types only, 0.24.0 has kernels of such weights."""
    call = pw.fused_moe(256, 128, 4, 2880, 2880, dtype="mxfp4")
    found = pw.predict(call, "H200", protocol="serving")
    assert found.stack == "vllm-0.24.0" and found.software == "nearest_version"
    assert found.notes[0] == "no rows of vllm-0.22.1 mxfp4 on H200 were used in training; answered from vllm-0.24.0"
    assert found.latency_us == pw.predict(call, "H200", protocol="serving", stack="vllm-0.24.0").latency_us


def test_software_says_whose_rows_answer() -> None:
    """`measured` is of this GPU, this stack, this type; every substitution is named."""
    call = pw.gemm(512, 4096, 4096)
    known = pw.predict(call, "H200", protocol="graph", stack="vllm-0.24.0")
    assert (known.software, known.notes) == ("measured", ())
    elsewhere = pw.predict(call, "H200", protocol="graph", stack="trtllm-1.0.0")
    assert elsewhere.software == "other_gpu" and "its rows on A100" in elsewhere.notes[0]
    unknown = pw.predict(call, "H200", protocol="graph", stack="tvm-0.1")
    assert unknown.software == "other_framework" and unknown.notes
    assert (
        pw.predict([call] * 2, "H200", protocol="graph", stack="tvm-0.1").to_dict()["software"]
        == ["other_framework"] * 2
    )


@pytest.mark.parametrize(
    ("dtype", "stack"), [("bf16", "trtllm-1.2.0rc5"), ("fp8", "trtllm-1.2.0rc5"), ("bf16", "trtllm-1.0.0")]
)
def test_no_implementation_of_another_type_stands_in(dtype: str, stack: str) -> None:
    """TensorRT-LLM's weight-only plugins are all that one version was measured with on a GPU, in one type."""
    for gpu in ("H200", "H100", "L40S"):
        found = pw.predict(pw.gemm(512, 4096, 4096, dtype=dtype), gpu, protocol="graph", stack=stack)
        assert "weight_only" not in found.impl.lower() and "plugin" not in found.impl.lower()


def test_a_type_that_a_framework_never_ran_is_named() -> None:
    found = pw.predict(pw.gemm(512, 4096, 4096, dtype="int8"), "H100", protocol="graph", stack="sglang-0.5.14")
    assert found.software == "other_framework" and "no rows of sglang-0.5.14 int8 on H100" in found.notes[0]
    assert any("other types" in note for note in found.notes)


def test_a_type_that_a_framework_ran_in_another_version_is_answered_from_it() -> None:
    """SGLang's per-tensor FP8 experts are known of 0.5.9, whose rows were said to be of blocks."""
    call = pw.fused_moe(256, 128, 8, 2048, 768, dtype="fp8")
    found = pw.predict(call, "H100", protocol="graph", stack="sglang-0.5.14")
    assert found.software == "nearest_version" and found.stack == "sglang-0.5.9"


DECODE = pw.attention([1] * 8, [4096] * 8, 32, 8, kv_dtype="fp8")
IMAGE = pw.attention([1024] * 4, [1024] * 4, 16, 16, 64, causal=False)


@pytest.mark.parametrize(
    ("call", "gpu", "stack", "impl"),
    [
        (DECODE, "L40S", "vllm-0.24.0", "vllm_flashinfer_fidecode"),  # FlashAttention 2 reads no FP8 cache
        (dataclasses.replace(DECODE, kv_dtype=None), "L40S", "vllm-0.24.0", "vllm_flash_attn_fa2"),
        (DECODE, "RTX 3090", "vllm-0.22.1", "vllm_flashinfer_fidecode"),
        (dataclasses.replace(DECODE, causal=False), "L40S", "vllm-0.24.0", "vllm_flashinfer_fidecode"),
        (dataclasses.replace(DECODE, head_dim=192), "B300", "vllm-0.24.0", "vllm_triton_attn"),
        (DECODE, "B300", "vllm-0.24.0", "vllm_flashinfer_trtllmdecode"),
        (IMAGE, "B300", "sglang-0.5.14", "flash_attention_v4"),
        (dataclasses.replace(IMAGE, causal=True), "B300", "sglang-0.5.14", "trtllm_mha"),
    ],
)
def test_a_stack_chooses_its_attention_kernel_by_the_call(call: Call, gpu: str, stack: str, impl: str) -> None:
    assert pw.predict(call, gpu, protocol="graph", stack=stack).impl == impl
    assert pw.predict([call] * 2, gpu, protocol="graph", stack=stack)[1].impl == impl


@pytest.mark.parametrize("protocol", ["cold", "serving", "graph"])
def test_weight_only_products_run_the_kernels_that_were_measured(protocol: str) -> None:
    """No vLLM has rows of them, TensorRT-LLM has: vLLM's 16-bit product is no stand-in."""
    found = pw.predict(pw.gemm(64, 4096, 4096, dtype="int4"), "H200", protocol=protocol)
    assert found.stack.startswith("trtllm") and "linear" not in found.impl


def test_four_bit_weights_meet_plain_activations_unless_said() -> None:
    call = pw.fused_moe(256, 128, 4, 2880, 2880, dtype="mxfp4")
    assert ":" not in pw.predict(call, "B200", protocol="graph").impl


@pytest.mark.parametrize(
    ("stack", "name", "impl"),
    [
        ("vllm-0.24.0", "vLLM_custom_graph", "custom"),
        ("sglang-0.5.14", "SGLang_CustomAllReduce_graph", "custom"),
        ("trtllm-1.3.0rc20", "TRTLLM", "custom"),
        ("nccl-2.29.2", "NCCL", "nccl"),
    ],
)
def test_collectives_go_by_the_names_of_the_corpus_too(stack: str, name: str, impl: str) -> None:
    calls = [pw.all_reduce(size, 8) for size in (1 << 10, 1 << 20, 1 << 28)]
    named, plain = (pw.predict(calls, "B200", protocol="graph", stack=stack, impl=each) for each in (name, impl))
    assert named.latency_us.tolist() == plain.latency_us.tolist() and named[0].impl == impl and named[0].notes == ()


def test_a_kernel_of_four_bit_weights_is_known_without_its_activations() -> None:
    call = pw.fused_moe(256, 128, 4, 2880, 2880, dtype="mxfp4")
    name = "sglang_mxfp4_flashinfer_trtllm_moe"
    found = pw.predict(call, "B200", protocol="graph", stack="sglang-0.5.14", impl=name)
    assert found.impl == f"{name}:mxfp8" and found.notes == ()


@pytest.mark.parametrize("stack", ["sglang-0.5.14", "vllm-0.24.0"])
def test_a_ceiling_is_not_far_above_what_the_kernel_asked_about_surely_takes(stack: str) -> None:
    """A kernel that is surely faster by far shows that a well-made one can be."""
    calls = [pw.attention([q], [q + 16384], 8, 1) for q in (2, 16, 256)]
    calls.append(pw.attention([2], [16386], 32, 8))
    found = pw.predict(calls, "RTX 5090", protocol="graph", stack=stack)
    assert (found.ceiling_us <= BEYOND * found.high_us * (1 + 1e-6)).all()
    assert all(pw.predict(call, "RTX 5090", protocol="graph", stack=stack).ceiling_us <= BEYOND * high * (1 + 1e-6)
               for call, high in zip(calls, found.high_us, strict=True))  # fmt: skip


def test_nor_is_it_where_a_correction_moves_the_answer_below() -> None:
    """AMD's correction takes this product below what its ceiling was learned beside."""
    call = pw.gemm(128, 1, 1, dtype="fp8", quantize=True)
    for found in (pw.predict(call, "MI300X"), pw.predict([call] * 30, "MI300X")[0]):
        assert found.low_us <= found.latency_us <= found.high_us and found.ceiling_us <= BEYOND * found.high_us + 1e-9


@pytest.mark.parametrize(("dtype", "gpu"), [("mxfp4", "H200"), ("int4", "H200"), ("int4", "B300"), ("nvfp4", "B200")])
def test_cold_calls_of_four_bit_weights_run_the_kernels_that_replays_of_them_do(dtype: str, gpu: str) -> None:
    """No cold row has such weights; that is no reason to answer as a kernel of 16-bit ones. Versions differ in kernels,
    so the replays are those of the stack that answers the cold call."""
    call = pw.fused_moe(256, 384, 8, 7168, 2048, tp=8, dtype=dtype)
    cold = pw.predict(call, gpu, protocol="cold")
    replayed = pw.predict(dataclasses.replace(call, stack=cold.stack), gpu, protocol="graph")
    assert (cold.stack, cold.impl) == (replayed.stack, replayed.impl)
    assert cold.latency_us == pytest.approx(replayed.latency_us, rel=0.15)


@pytest.mark.parametrize("gpu", ["H200", "L40S", "RTX PRO 6000 Server", "B300"])
@pytest.mark.parametrize("stack", ["sglang-0.5.14", "vllm-0.24.0"])
def test_a_stack_runs_its_own_kernels_of_four_bit_weights(gpu: str, stack: str) -> None:
    """Also where every shape that it was measured at is held out of training."""
    found = pw.predict(pw.fused_moe(256, 384, 8, 7168, 2048, dtype="int4"), gpu, protocol="graph", stack=stack)
    assert found.stack == stack
    assert (found.software == "measured") == (found.notes == ())
    assert "marlin" in found.impl or (gpu == "B300" and found.impl == "sglang_flashinfer_trtllm_moe")


def test_prompts_of_latent_attention_under_vllm_are_answered_as_expanded() -> None:
    """SGLang's kernel on compressed rows takes three times as long, and vLLM does not run it."""
    call = pw.mla([4096], [4096], 128, "context")
    vllm, sglang = (pw.predict(call, "H200", protocol="serving", stack=s) for s in ("vllm-0.22.1", "sglang-0.5.14"))
    assert vllm.stack.startswith("trtllm") and vllm.latency_us < 0.5 * sglang.latency_us


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (pw.attention([1], [64], 8, 8), "int4"),
        (pw.mla([1], [64], 8, "generation"), "nvfp4"),
        (pw.rmsnorm(8, 64), "mxfp4"),
    ],
)
def test_types_of_weights_are_no_types_of_kernels_without_weights(call: Call, dtype: str) -> None:
    with pytest.raises(UnsupportedDtype, match=call.kernel):
        pw.predict(dataclasses.replace(call, dtype=dtype), "B200")


@pytest.mark.parametrize(
    ("case", "gpu", "stack", "impl"),
    [
        (pw.fused_moe(256, 8, 2, 4096, 14336), "B200", "sglang-0.5.14", "sglang_fused_moe_triton"),
        (pw.fused_moe(256, 8, 2, 4096, 14336), "B300", "sglang-0.5.14", "sglang_fused_moe_triton"),
        (pw.fused_moe(256, 128, 8, 2048, 768), "B200", "sglang-0.5.14", "sglang_flashinfer_trtllm_moe"),
        # one layer of 0.5.17 was measured, which Triton runs: others as 0.5.14 has them
        (pw.fused_moe(256, 512, 10, 8192, 2048), "B200", "sglang-0.5.17", "sglang_fused_moe_triton"),
        (pw.fused_moe(256, 128, 8, 2048, 768), "B200", "sglang-0.5.17", "sglang_flashinfer_trtllm_moe"),
        (pw.fused_moe(256, 128, 8, 2048, 768), "B200", "sglang-0.5.23", "sglang_flashinfer_trtllm_moe"),
        (pw.fused_moe(256, 8, 2, 4096, 14336), "B200", "sglang-0.5.23", "sglang_fused_moe_triton"),
        (pw.fused_moe(256, 128, 4, 6144, 3072), "GB200", "vllm-0.25.0", "vllm_unquantizedfusedmoe_triton_tritonexperts"),
        (pw.fused_moe(256, 128, 4, 6144, 3072), "B200", "vllm-0.33.0", "vllm_unquantizedfusedmoe_triton_tritonexperts"),
        (pw.fused_moe(256, 512, 22, 2048, 5120, gated=False), "H100", "trtllm-1.3.0rc20", "moe_torch_flow_nongated"),
        (pw.fused_moe(256, 64, 4, 1024, 5120, gated=False), "H100", "trtllm-1.3.0rc20", "moe_torch_flow_nongated"),
        (pw.fused_moe(256, 64, 4, 1024, 5120), "H100", "trtllm-1.3.0rc20", "moe_torch_flow_cutlass"),
        (pw.fused_moe(256, 64, 4, 4096, 1024, dtype="fp8_block"), "H100", "vllm-0.24.0", "vllm_fp8moe_triton_tritonexperts"),
        (pw.fused_moe(256, 64, 4, 4096, 1024, dtype="fp8_block", ep=2), "H100", "vllm-0.24.0",
         "vllm_fp8moe_flashinfer_cutlass_flashinferexperts"),
    ],
)  # fmt: skip
def test_experts_without_a_named_kernel_run_what_the_stack_keeps_for_their_model(
    case: Call, gpu: str, stack: str, impl: str
) -> None:
    answer = pw.predict(case, gpu, protocol="graph", stack=stack)
    assert answer.impl == impl
    assert answer.latency_us == pw.predict(case, gpu, protocol="graph", stack=stack, impl=impl).latency_us


@pytest.mark.parametrize("gpu", ["A100", "H200", "L40S", "B200"])
@pytest.mark.parametrize("protocol", ["cold", "graph"])
def test_one_sixteen_bit_type_runs_what_the_other_does(gpu: str, protocol: str) -> None:
    calls = (
        lambda dtype: pw.gemm(512, 4096, 4096, dtype=dtype),
        lambda dtype: pw.fused_moe(512, 64, 6, 2048, 1408, dtype=dtype),
        lambda dtype: pw.attention([1] * 8, [2048] * 8, 32, 8, dtype=dtype),
        lambda dtype: pw.attention([1] * 8, [2048] * 8, 32, 8, dtype=dtype, kv_dtype="fp8"),
    )
    for call in calls:
        half, brain = (pw.predict(call(dtype), gpu, protocol=protocol) for dtype in ("fp16", "bf16"))
        assert half.impl == brain.impl
        assert half.latency_us == pytest.approx(brain.latency_us, rel=0.25)


@pytest.mark.parametrize("gpu", ["A100", "H200", "L40S", "GB200"])
@pytest.mark.parametrize("protocol", ["serving", "graph"])
def test_a_card_with_one_number_changed_is_still_predicted_as_that_card(gpu: str, protocol: str) -> None:
    card = pw.find(gpu)
    calls = [pw.gemm(64, 4096, 4096), pw.fused_moe(64, 64, 6, 2048, 1408), pw.attention([1] * 8, [2048] * 8, 32, 8),
             pw.attention([2048], [2048], 32, 8), pw.all_reduce(1 << 20, 4)]  # fmt: skip
    known = pw.predict(calls, card, protocol=protocol)
    same, faster = (pw.predict(calls, card.what_if(**change), protocol=protocol)
                    for change in ({"dram_gb": card.dram_gb + 1}, {"dram_gbps": 1.1 * card.dram_gbps}))  # fmt: skip
    assert same.latency_us == pytest.approx(known.latency_us)
    assert (faster.latency_us < 1.05 * known.latency_us).all()
    assert {same[i].basis for i in range(len(calls))} <= {"same_architecture", "new_architecture"}


def test_a_stack_without_rows_of_a_type_here_runs_what_it_runs_elsewhere() -> None:
    found = pw.predict(pw.gemm(512, 4096, 4096), "H100", protocol="graph", stack="trtllm-1.0.0")
    assert found.impl == "torch_flow", "its rows on this GPU are of weight-only kernels"


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm", "torch"])
@pytest.mark.parametrize("protocol", ["cold", "graph", "profiler_warm"])
def test_a_framework_without_a_version_is_answered_from_its_own_rows_and_says_which(
    framework: str, protocol: str
) -> None:
    call = pw.gemm(64, 4096, 4096)
    found = pw.predict(call, "H200", protocol=protocol, stack=framework)
    assumed = [note for note in found.notes if note.startswith(f"{framework} names no version")]
    assert len(assumed) == 1
    whole = assumed[0].split(": ")[1].removesuffix(" assumed")
    assert whole.startswith(f"{framework}-")
    assert pw.predict(call, "H200", protocol=protocol, stack=whole).latency_us == found.latency_us


@pytest.mark.parametrize("written", ["vLLM-0.22.1", "vllm==0.22.1", "vllm:v0.22.1", "vllm-0.22.1+cu130"])
@pytest.mark.parametrize("protocol", ["cold", "graph", "serving"])
def test_a_version_written_otherwise_is_that_version(written: str, protocol: str) -> None:
    call = pw.attention([1] * 4, [3000] * 4, heads=32, kv_heads=8, head_dim=128)
    named, other = (pw.predict(call, "H200", protocol=protocol, stack=stack) for stack in ("vllm-0.22.1", written))
    assert other == named and not named.notes


@pytest.mark.parametrize(
    ("written", "lacks"), [("v0.22.1", "framework"), ("latest", "framework"), ("vllm:main", "version")]
)
def test_a_stack_without_a_part_of_its_name_says_what_was_assumed(written: str, lacks: str) -> None:
    found = pw.predict(pw.gemm(64, 4096, 4096, dtype="fp8"), "H200", protocol="graph", stack=written)
    assert found.notes == (f"{written} names no {lacks}: {found.stack} assumed",) and found.software == "measured"


SIXTEEN_BITS = (
    {"kernel": "gemm", "m": 1, "n": 4096, "k": 4096},
    {"kernel": "attention", "q_lens": [512], "kv_lens": [512], "heads": 32, "kv_heads": 8, "head_dim": 128},
    {"kernel": "attention", "q_lens": [1], "kv_lens": [32768], "heads": 8, "kv_heads": 1, "head_dim": 128},
    {"kernel": "mla", "q_lens": [1], "kv_lens": [1024], "heads": 16, "phase": "generation"},
    {"kernel": "fused_moe", "tokens": 4096, "experts": 8, "topk": 2, "hidden": 4096, "inter": 14336, "tp": 2},
    {"kernel": "fused_moe", "tokens": 1, "experts": 256, "topk": 8, "hidden": 7168, "inter": 2048, "ep": 8},
)


SIXTEEN_BIT_STACKS = (None, "vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20")


@pytest.mark.parametrize(
    ("case", "gpu", "protocol", "stack"),
    sampled(product(SIXTEEN_BITS, ("H100", "A100", "L40S", "H20"), ("graph", "serving"), SIXTEEN_BIT_STACKS), 45),
)
def test_sixteen_bit_types_take_the_same_time(case: dict[str, Any], gpu: str, protocol: str, stack: str | None) -> None:
    """The same kernels run both at one rate: where rows are of one alone, they answer for the other."""
    one, other = (
        pw.predict(from_dict(case | {"dtype": dtype}), gpu, protocol=protocol, stack=stack).latency_us
        for dtype in ("bf16", "fp16")
    )
    assert other == pytest.approx(one, rel=0.1)


HEADS = ({"heads": 32, "kv_heads": 8}, {"heads": 64, "kv_heads": 8, "head_dim": 64, "window": 128, "sinks": True})
LENGTHS = {"decode": ([1] * 32, [8192] * 32), "prefill": ([2048] * 4, [2048] * 4)}


TWINS = (("B300", "B200"), ("GB300", "GB200"), ("H20", "H200"), ("L4", "L40S"))
VERSIONS = ("sglang-0.5.8", "sglang-0.5.10", "sglang-0.5.14", "vllm-0.20.0", "vllm-0.22.1")


@pytest.mark.parametrize(("twins", "stack", "lengths"), sampled(product(TWINS, VERSIONS, sorted(LENGTHS)), 14))
def test_a_gpu_without_rows_runs_what_its_generation_was_measured_with(
    twins: tuple[str, str], stack: str, lengths: str
) -> None:
    """Rows of a version on a GPU of the generation come before a rule of what its code takes by default."""
    for heads in HEADS:
        call = pw.attention(*LENGTHS[lengths], **heads)
        own, measured = (pw.predict(call, name, protocol="graph", stack=stack) for name in twins)
        assert (own.stack, own.impl) == (measured.stack, measured.impl)


@pytest.mark.parametrize(("named", "newest"), [("vllm-0.28.0", "vllm-0.24.0"), ("sglang-0.5.18", "sglang-0.5.14")])
def test_a_version_after_the_newest_is_answered_as_the_newest(named: str, newest: str) -> None:
    """The newest with rows on GPUs of the generation, on one that was measured with older ones only, too."""
    after, last = (pw.predict(pw.gemm(64, 4096, 4096), "A100", protocol="graph", stack=s) for s in (named, newest))
    assert (after.stack, after.software) == (newest, "nearest_version")
    assert after.latency_us == pytest.approx(last.latency_us, rel=0.02)
