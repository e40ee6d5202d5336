"""Kernel families, one a file. Importing this package registers the built-in ones."""

from __future__ import annotations

from pipewave.kernels import attention, collective, elementwise, fused_moe, gemm, mla, norm
from pipewave.kernels.base import Analysis, Columns, Context, Family, Ragged, families, family_of, register

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
