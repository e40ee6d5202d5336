"""Kernel families, one a folder. Importing this package registers the built-in ones, listed here and nowhere else."""

from __future__ import annotations

from pipewave.kernels.attention import analyse as attention
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
from pipewave.kernels.gemm import analyse as gemm
from pipewave.kernels.mla import analyse as mla
from pipewave.kernels.moe import analyse as moe
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
)
for _family in BUILT_IN:
    register(_family)
