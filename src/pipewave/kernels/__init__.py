"""Kernel families, one a file. Importing this package registers the built-in ones."""

from __future__ import annotations

from pipewave.kernels.attention import analyse as attention
from pipewave.kernels.attention_module import analyse as attention_module
from pipewave.kernels.base import Analysis, Columns, Context, Family, Ragged, families, family_of, register
from pipewave.kernels.collective import analyse as collective
from pipewave.kernels.expert_exchange import all_to_all, mega_moe
from pipewave.kernels.gemm import analyse as gemm
from pipewave.kernels.gemm import batched
from pipewave.kernels.hyper_connection import analyse as hyper_connection
from pipewave.kernels.mla import analyse as mla
from pipewave.kernels.moe import analyse as fused_moe
from pipewave.kernels.recurrent import conv, delta_net, mamba2
from pipewave.kernels.streaming import elementwise, norm

__all__ = [
    "Analysis",
    "Columns",
    "Context",
    "Family",
    "Ragged",
    "all_to_all",
    "attention",
    "attention_module",
    "batched",
    "collective",
    "conv",
    "delta_net",
    "elementwise",
    "families",
    "family_of",
    "fused_moe",
    "gemm",
    "hyper_connection",
    "mamba2",
    "mega_moe",
    "mla",
    "norm",
    "register",
]
