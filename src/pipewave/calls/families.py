"""Kernel calls as values: one frozen class a family, with the field names and defaults of the public contract.

Classes lie beside their relatives (`gemm`, `attention`, `moe`, `streaming`, `collective`); this is the door to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.calls.attention import Attention, Mla, attention, mla
from pipewave.calls.collective import (
    COLLECTIVES,
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    ReduceScatter,
    SendRecv,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    send_recv,
)
from pipewave.calls.fields import DTYPES, KV_DTYPES, Call, check_lengths, check_names
from pipewave.calls.gemm import Gemm, gemm
from pipewave.calls.operators import (
    OPERATORS,
    AttentionModule,
    BatchedGemm,
    CausalConv1d,
    DeltaNet,
    FusedMoe,
    HyperConnection,
    Mamba2,
    MegaMoe,
    MoeAllToAll,
    fused_moe,
)
from pipewave.calls.streaming import Elementwise, RmsNorm, SiluAndMul, elementwise, rmsnorm, silu_and_mul
from pipewave.errors import UnknownKernel, did_you_mean

ENVELOPE = frozenset({"id", "kernel", "gpu", "protocol"})  # what a case says beside the fields of its call

__all__ = [
    "BUILT_IN", "CLASSES", "DTYPES", "KV_DTYPES", "AllGather", "AllReduce", "AllToAll", "Attention",
    "AttentionModule", "BatchedGemm", "Call", "CausalConv1d", "Collective", "DeltaNet", "Elementwise", "FusedMoe",
    "Gemm", "HyperConnection", "Mamba2", "MegaMoe", "Mla", "MoeAllToAll", "ReduceScatter", "RmsNorm", "SendRecv",
    "SiluAndMul", "all_gather", "all_reduce", "all_to_all", "attention", "check_lengths", "class_of", "elementwise",
    "from_dict", "fused_moe", "gemm", "mla", "reduce_scatter", "rmsnorm", "send_recv", "silu_and_mul",
]  # fmt: skip

Classes = tuple[type[Call], ...]
BUILT_IN: Classes = (Gemm, Attention, Mla, FusedMoe, RmsNorm, SiluAndMul, Elementwise, *COLLECTIVES, *OPERATORS)
# Call classes by family: the contract's own, and those of every family that is registered later.
CLASSES: dict[str, type[Call]] = {cls.kernel: cls for cls in BUILT_IN}


def class_of(kernel: Any) -> type[Call]:
    """The call class of a family name, or UnknownKernel."""
    if not isinstance(kernel, str) or kernel not in CLASSES:
        known = ", ".join(CLASSES)
        raise UnknownKernel(
            f"kernel = {kernel!r}: unknown;{did_you_mean(str(kernel), CLASSES)} known: {known}", field="kernel"
        )
    return CLASSES[kernel]


def from_dict(case: Mapping[str, Any]) -> Call:
    """Build a call from a case of the contract; `id`, `gpu` and `protocol` are ignored here."""
    cls = class_of(case.get("kernel"))
    given = {k: v for k, v in case.items() if k not in ENVELOPE}
    check_names(cls, tuple(given))
    return cls(**given)
