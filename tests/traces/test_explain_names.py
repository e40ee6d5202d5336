"""Kernel names: families, operand types and tiles, against names and shapes of measured rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipewave.calls.families import Elementwise, RmsNorm, SiluAndMul
from pipewave.kernels import families
from pipewave.kernels.profiler import Given, dtype_of
from pipewave.traces.group import group, recorded_call
from pipewave.traces.kernel_names import kind_of, short, tile_of
from pipewave.traces.trace import Kernel, Op

ROWS = Path(__file__).parents[2] / "data" / "measured" / "h200"

NAMES = {
    "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_splitK_TNT": ("gemm", "bf16", (32, 128, 64)),
    "nvjet_sm90_hsh_168x64_64x7_2x1_v_bz_splitK_TNN": ("gemm", "fp16", (64, 168, 64)),
    "nvjet_sm90_qqtst_176x192_128x4_1x2_h_bz_coopB_TNN": ("gemm", "fp8", (192, 176, 128)),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x32_warpgroupsize1x1x1_execute_kernel": ("gemm", "bf16", (64, 128, 32)),
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn": ("gemm", "bf16", (64, 128, 64)),
    "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_64x128_32x6_tn_align8>(Params)": ("gemm", "fp16", None),
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4>(Params)": ("gemm", "bf16", None),
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(Params)": ("gemm", "bf16", None),
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 512u, 7168u>(float*)": ("gemm", "fp8", None),
    "void marlin::Marlin<c10::BFloat16>(int4 const*)": ("gemm", "bf16", None),
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 96, 4, false, false, cutlass::bfloat16_t>>(P)": ("attention", "bf16", (64, 96, 128)),
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, __nv_bfloat16>(P)": ("attention", "bf16", None),
    "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, __nv_bfloat16>(P)": ("attention", "bf16", None),
    "kernel_unified_attention_2d": ("attention", None, None),
    "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8, cutlass::bfloat16_t>>(P)": ("mla", "bf16", None),
    "fused_moe_kernel": ("fused_moe", None, None),
    "void vllm::moe::moe_align_block_size_kernel<int>(int const*)": ("fused_moe", None, None),
    "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16>(P)": ("elementwise", "bf16", None),
    "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(P)": ("rmsnorm", "bf16", None),
    "triton_red_fused_fused_add_rms_norm_2": ("rmsnorm", None, None),
    "triton_poi_fused_mul_silu_slice_1": ("silu_and_mul", None, None),
    "triton_red_fused__to_copy_embedding_rms_norm_0": ("elementwise", None, None),
    "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, silu>(P)": ("silu_and_mul", "bf16", None),
    "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, __nv_bfloat16>(P)": ("elementwise", "bf16", None),
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("all_reduce", "bf16", None),
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("all_gather", None, None),
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": ("send_recv", None, None),
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(P)": ("all_reduce", "bf16", None),
    "Memcpy DtoD (Device -> Device)": ("elementwise", None, None),
    "Memcpy HtoD (Pinned -> Device)": (None, None, None),
    "my_own_kernel": (None, None, None),
    # Older cuBLAS, other engines, older and newer cards.
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT": ("gemm", "bf16", (256, 128, 64)),
    "nvjet_qqtst_128x128_128x6_2x1_v_bz_TNN": ("gemm", "fp8", (128, 128, 128)),
    "volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_tn": ("gemm", "fp16", None),
    "triton_tem_fused_addmm_relu_3": ("gemm", None, None),
    "gemm_Bfloat16_E4m3E4m3_Fp32_t128x8x256u2_s4_et64x8_m64x8x32": ("gemm", None, None),
    "void tensorrt_llm::kernels::weight_only::kernel<__nv_bfloat16>(P)": ("gemm", "bf16", None),
    "void deep_gemm::sm90_m_grouped_fp8_gemm_contiguous_1d2d_impl<0u>(P)": ("fused_moe", "fp8", None),
    "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, (deep_gemm::GemmType)1>(P)": ("fused_moe", "fp8", None),
    "bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x256_s7_et64x8_dynBatch_sm100f": ("fused_moe", None, None),
    "_p_matmul_ogs_NTN_bf16xbf16xmxfp4_128x256x64x1_swiglu": ("fused_moe", None, None),
    "_combined_routing_memset": ("fused_moe", None, None),
    "void moe_fused_gate_kernel<float, float, 32, 8>(P)": ("elementwise", None, None),
    "void vllm::silu_mul_fp8_quant_deep_gemm_kernel<__nv_bfloat16>(P)": ("silu_and_mul", None, None),
    "fmhaSm100fKernel_QkvE4m3OBfloat16HQk576HV512PagedKvDenseP32VarSeqQ16Kv128": ("mla", None, None),
    "void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop, __nv_bfloat16>(P)": ("attention", "bf16", None),
    "_fwd_kernel": ("attention", None, None),
    "_chunk_scan_fwd_kernel": (None, None, None),
    "fused_recurrent_gated_delta_rule_fwd_kernel": (None, None, None),
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(P)": ("rmsnorm", "bf16", None),
    "void deep_ep::intranode::dispatch<8, 768, 8192>(P)": ("all_to_all", None, None),
    "create_flashinfer_kv_indices_triton": ("elementwise", None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_known_names(name: str) -> None:
    family, dtype, tile = NAMES[name]
    assert kind_of(name).family == family
    if dtype is not None:
        assert dtype_of(name) == dtype
    if tile is not None:
        assert tile_of(name) == tile


def test_every_family_in_the_tables_has_a_prediction() -> None:
    from pipewave.traces.kernel_names import kinds

    known = set(families())
    assert {kind.family for kind in kinds() if kind.family} <= known


def test_short_names_drop_templates_and_arguments() -> None:
    long = "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<T>::exists, void>::type vllm::fused_add_rms_norm_kernel<T, 8>(T*)"
    assert short(long) == "vllm::fused_add_rms_norm_kernel"
    assert short(
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float> > >(R)"
    ) == ("at::native::reduce_kernel[ArgMaxOps]")
    assert short("cuda::<unnamed>::spin_kernel(long)") == "cuda::spin_kernel"


def _table(family: str) -> tuple[dict[str, str], dict[str, list[Any]]]:
    with gzip.open(ROWS / f"{family}.json.gz") as file:
        table = json.load(file)
    return table["names"], table["rows"]


def _kernels(names: dict[str, str], ran: list[Any]) -> list[Kernel]:
    """Kernels of a measured row: [name, µs, grid, block, ...] each."""
    return [Kernel(names[k[0]], float(i), k[1], tuple(k[2] or ()), tuple(k[3] or ())) for i, k in enumerate(ran)]


@pytest.mark.parametrize("family", ["attention", "fused_moe", "rmsnorm", "silu_and_mul"])
def test_measured_rows_group_into_one_call_of_their_family(family: str) -> None:
    names, rows = _table(family)
    seen = 0
    for ran in rows["kernels"][::7]:
        groups = [one for one in group(_kernels(names, ran or [])) if one.kind.role not in ("fill", "copy")]
        if ran:
            assert [one.kind.family for one in groups] == [family], [names[k[0]][:80] for k in ran]
            seen += 1
    assert seen > 50


@pytest.mark.parametrize("family", ["rope", "kv_write"])
def test_measured_streaming_rows_have_their_role(family: str) -> None:
    names, rows = _table(family)
    assert {kind_of(names[k[0]]).role for ran in rows["kernels"] for k in ran or []} == {family}


def test_measured_gemm_rows_are_one_gemm_of_the_right_type() -> None:
    names, rows = _table("gemm")
    seen = 0
    for ran, dtype in zip(rows["kernels"][::23], rows["case.dtype"][::23], strict=True):
        gemms = [one for one in group(_kernels(names, ran or [])) if one.kind.family == "gemm"]
        if ran:
            assert len(gemms) == 1
            assert gemms[0].dtype == dtype.removesuffix("_block")
            seen += 1
    assert seen > 300


def test_the_tile_of_few_tokens_is_narrow_on_the_side_of_the_tokens() -> None:
    """Were the two sides mixed up, tiles of 8 tokens would have 64 rows or more in nearly all cases."""
    names, rows = _table("gemm")
    narrow = [
        tile_of(names[k[0]])
        for ran, m, n in zip(rows["kernels"], rows["case.m"], rows["case.n"], strict=True)
        for k in ran or []
        if m <= 8 and n >= 4096 and "nvjet" in names[k[0]]
    ]
    tiles = [tile for tile in narrow if tile]
    assert len(tiles) == len(narrow) > 200
    assert sum(tile[0] <= 16 for tile in tiles) > 0.9 * len(tiles)


OPERATORS = {
    "aten::pow": ("void at::native::vectorized_elementwise_kernel<4, F>(P)", Elementwise(4096, 4096, op="pointwise")),
    "aten::mean": ("void at::native::reduce_kernel<512, 1, MeanOps>(P)", Elementwise(4096, 8, op="sum")),
    "aten::native_layer_norm": ("vectorized_layer_norm_kernel", RmsNorm(32, 64)),
    "_C::gelu_and_mul": ("void vllm::act_and_mul_kernel<c10::BFloat16>(P)", SiluAndMul(32, 64)),
    "_C::dynamic_per_token_scaled_fp8_quant": ("dynamic_per_token_scaled_fp8_quant_kernel", Elementwise(4096, 2048, op="quantize")),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_eager_code_give_the_shape(name: str) -> None:
    kernel, expected = OPERATORS[name]
    op = Op(1, name, ((32, 64), (32, 64)), ("c10::BFloat16", "c10::BFloat16"))
    [one] = group([Kernel(kernel, 0.0, 1.0, ops=(op,))])
    shaped = recorded_call(one, None, Given())
    assert shaped is not None
    assert shaped.read
    assert shaped.call == expected
