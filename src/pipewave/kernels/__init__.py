"""Kernel families, one a folder. Importing this package registers the built-in ones, listed here and nowhere else."""

from __future__ import annotations

from pipewave.kernels.attention import analyse as attention
from pipewave.kernels.attention_module import analyse as attention_module
from pipewave.kernels.base import (
    Analysis,
    Columns,
    Context,
    Family,
    Ragged,
    families,
    family_of,
    register,
    registered,
    revision,
    rows_of,
)
from pipewave.kernels.collective import analyse as collective
from pipewave.kernels.expert_exchange import all_to_all, mega_moe
from pipewave.kernels.gemm import analyse as gemm
from pipewave.kernels.gemm import batched
from pipewave.kernels.hyper_connection import analyse as hyper_connection
from pipewave.kernels.mla import analyse as mla
from pipewave.kernels.moe import analyse as moe
from pipewave.kernels.recurrent import conv, delta_net, mamba2
from pipewave.kernels.streaming import elementwise, norm

__all__ = [
    "Analysis",
    "Columns",
    "Context",
    "Family",
    "Ragged",
    "families",
    "family_of",
    "register",
    "registered",
    "revision",
    "rows_of",
]

BUILT_IN: tuple[Family, ...] = (
    gemm.FAMILY,
    attention.FAMILY,
    mla.FAMILY,
    moe.FAMILY,
    norm.RMSNORM,
    norm.SILU,
    elementwise.FAMILY,
    *collective.FAMILIES,
    delta_net.FAMILY,
    conv.FAMILY,
    mamba2.FAMILY,
    attention_module.FAMILY,
    hyper_connection.FAMILY,
    all_to_all.FAMILY,
    mega_moe.FAMILY,
    batched.FAMILY,
)
for _family in BUILT_IN:
    register(_family)
