"""How profiles show norms and gated activations: names of kernels, and operators that hold their sizes."""

from __future__ import annotations

from math import prod

from pipewave.calls.base import Call
from pipewave.calls.streaming import RmsNorm, SiluAndMul
from pipewave.kernels.faces import KernelName, OperatorReader, Profile
from pipewave.kernels.launched import Launched, Op


def _norm(x: int, *, fused_add: bool = False) -> OperatorReader:
    def reader(op: Op, launched: Launched) -> Call | None:
        dims = op.shape(x)
        dtype = op.dtype(x, launched)
        return RmsNorm(prod(dims[:-1]), dims[-1], fused_add=fused_add, dtype=dtype) if dims and dtype else None

    return reader


def _act(op: Op, launched: Launched) -> Call | None:
    dims, dtype = op.shape(0), op.dtype(0, launched)
    return SiluAndMul(prod(dims[:-1]), dims[-1], dtype=dtype) if dims and dtype else None


NORM = Profile(
    names=(
        KernelName(
            21,
            r"^triton_\w*(fused_add_rms_norm|add\w*rms_norm|rsqrt\w*add|add\w*rsqrt)",
            "fused_add_norm",
            "triton",
        ),
        KernelName(21, r"^triton_\w*(rms_norm|rsqrt)", "norm", "triton"),
        KernelName(80, r"fused_add_rms_norm|FusedAddRMSNorm|fused_add_rmsnorm|add_rmsnorm", "fused_add_norm", "vllm"),
        KernelName(80, r"rms_norm|RMSNormKernel|rmsnorm|RmsNorm", "norm", "vllm"),
        KernelName(80, r"layer_norm|LayerNorm", "norm", "torch"),  # moves the same bytes
    ),
    role="norm",
    operators={
        "_C::rms_norm": _norm(1),
        "_C::fused_add_rms_norm": _norm(0, fused_add=True),
        "sgl_kernel::rmsnorm": _norm(1),
        "sgl_kernel::fused_add_rmsnorm": _norm(0, fused_add=True),
        "flashinfer::rmsnorm": _norm(1),
        "flashinfer::fused_add_rmsnorm": _norm(0, fused_add=True),
        "aten::rms_norm": _norm(0),
        "aten::native_layer_norm": _norm(0),
    },
    fusible=True,
)
ACTIVATION = Profile(
    names=(
        KernelName(22, r"^triton_\w*(silu|swiglu|gelu)", "act", "triton"),
        KernelName(90, r"act_and_mul|silu_(and_)?mul|swiglu|SiluAndMul|doActivation", "act", "vllm"),
    ),
    role="act",
    operators={
        "_C::silu_and_mul": _act,
        "_C::gelu_and_mul": _act,
        "_C::gelu_tanh_and_mul": _act,
        "sgl_kernel::silu_and_mul": _act,
        "sgl_kernel::gelu_and_mul": _act,
    },
    generated=True,
)
