"""Kernel families, one a file. Importing this package registers the built-in ones."""

from __future__ import annotations

from pipewave.kernels.attention import analyse as attention
from pipewave.kernels.base import Analysis, Columns, Context, Family, Ragged, families, family_of, register
from pipewave.kernels.collective import analyse as collective
from pipewave.kernels.gemm import analyse as gemm
from pipewave.kernels.mla import analyse as mla
from pipewave.kernels.moe import analyse as fused_moe
from pipewave.kernels.streaming import elementwise, norm

__all__ = [
    "Analysis",
    "Columns",
    "Context",
    "Family",
    "Ragged",
    "attention",
    "collective",
    "elementwise",
    "families",
    "family_of",
    "fused_moe",
    "gemm",
    "mla",
    "norm",
    "register",
]
