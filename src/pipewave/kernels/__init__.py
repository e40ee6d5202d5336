"""Kernel families, one a folder. The built-in ones are listed here and nowhere else; each is loaded when asked for."""

from __future__ import annotations

from pipewave.calls.collective import COLLECTIVES
from pipewave.kernels.base import (
    Analysis,
    Columns,
    Context,
    Family,
    Ragged,
    expect,
    families,
    family_of,
    group_of,
    register,
    registered,
    revision,
    rows_of,
)

__all__ = [
    "BUILT_IN",
    "Analysis",
    "Columns",
    "Context",
    "Family",
    "Ragged",
    "families",
    "family_of",
    "group_of",
    "register",
    "registered",
    "revision",
    "rows_of",
]

# The record of each family as file and name, or a mapping that has it: a command about one does without the others.
BUILT_IN = {
    "gemm": "gemm.family:FAMILY",
    "attention": "attention.family:FAMILY",
    "mla": "attention.mla:FAMILY",
    "fused_moe": "moe.family:FAMILY",
    "rmsnorm": "streaming.norm:RMSNORM",
    "silu_and_mul": "streaming.norm:SILU",
    "elementwise": "streaming.elementwise:FAMILY",
    **{call.kernel: "collective.family:FAMILIES" for call in COLLECTIVES},
    "delta_net": "recurrent.delta_net:FAMILY",
    "causal_conv1d": "recurrent.mamba2:CAUSAL_CONV1D",
    "mamba2": "recurrent.mamba2:MAMBA2",
    "attention_module": "attention_module.family:FAMILY",
    "hyper_connection": "operators:HYPER_CONNECTION",
    "moe_all_to_all": "expert_exchange:MOE_ALL_TO_ALL",
    "mega_moe": "expert_exchange:MEGA_MOE",
    "batched_gemm": "operators:BATCHED_GEMM",
}
expect({name: f"pipewave.kernels.{home}" for name, home in BUILT_IN.items()})
