"""How profiles show matrix products: names of kernels, and operators that hold their sizes."""

from __future__ import annotations

from math import prod

from pipewave.calls.base import Call
from pipewave.calls.gemm import Gemm
from pipewave.kernels.faces import KernelName, OperatorReader, Profile
from pipewave.kernels.launched import Dims, Launched, Op

NAMES = (
    KernelName(11, r"^triton_tem_\w*mm_", "gemm"),
    KernelName(100, r"splitKreduce|splitK_reduce|splitk_reduce|reduce_1Block_kernel", "gemm_reduce", "", "previous"),
    KernelName(100, r"nvjet", "gemm", "cublas"),
    KernelName(100, r"xmma_gemm|s\d+gemm|[hsi]\d*gemm_|gemv|gemmk1|gemmSN|dot_kernel|cublas", "gemm", "cublas"),
    KernelName(
        100,
        r"cutlass_3x_gemm|cutlass_\d+_(tensorop|wmma)|cutlass.*[Gg]emm|GemmUniversal|cutlass_scaled",
        "gemm",
        "cutlass",
    ),
    KernelName(100, r"^(gemm|bmm)_[A-Z]|tinygemm|gemm_forward|weight_only|fpA_intB|_w8a8_", "gemm"),
    KernelName(
        100,
        r"deep_gemm|fp8_gemm|w8a8_block|marlin|Marlin|machete|awq_gemm|gptq|gemm_kernel|matmul_kernel|scaled_mm|_gemm",
        "gemm",
    ),
)


def _product(x: Dims, n: int, k: int, dtype: str | None) -> Gemm | None:
    if not x or x[-1] != k or dtype is None:
        return None
    return Gemm(prod(x[:-1]), n, k, dtype=dtype)


def _mm(x: int, w: int) -> OperatorReader:
    """x[..., k] · w[k, n], whose positions are given."""

    def reader(op: Op, launched: Launched) -> Call | None:
        weights = op.shape(w)
        return _product(op.shape(x), weights[1], weights[0], op.dtype(x, launched)) if len(weights) == 2 else None

    return reader


def _linear(op: Op, launched: Launched) -> Call | None:
    weights = op.shape(1)
    return _product(op.shape(0), weights[0], weights[1], op.dtype(0, launched)) if len(weights) == 2 else None


PROFILE = Profile(
    NAMES,
    anchors=("gemm",),
    operators={
        "aten::mm": _mm(0, 1),
        "aten::addmm": _mm(1, 2),
        "aten::_scaled_mm": _mm(0, 1),
        "aten::linear": _linear,
        "_C::cutlass_scaled_mm": _mm(1, 2),
        "sgl_kernel::fp8_scaled_mm": _mm(1, 2),
    },
)
