"""Kernel families, one a folder. The built-in ones are listed here and nowhere else; each is loaded when asked for."""

from __future__ import annotations

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

# The record of each family, as file and name: a command about one of them does without the others.
BUILT_IN = {
    "gemm": "gemm.analyse:FAMILY",
    "attention": "attention.analyse:FAMILY",
    "mla": "mla.analyse:FAMILY",
    "fused_moe": "moe.analyse:FAMILY",
    "rmsnorm": "streaming.norm:RMSNORM",
    "silu_and_mul": "streaming.norm:SILU",
    "elementwise": "streaming.elementwise:FAMILY",
    "all_reduce": "collective.analyse:ALL_REDUCE",
    "all_gather": "collective.analyse:ALL_GATHER",
    "reduce_scatter": "collective.analyse:REDUCE_SCATTER",
    "all_to_all": "collective.analyse:ALL_TO_ALL",
    "send_recv": "collective.analyse:SEND_RECV",
    "delta_net": "recurrent.delta_net:FAMILY",
    "causal_conv1d": "recurrent.conv:FAMILY",
    "mamba2": "recurrent.mamba2:FAMILY",
    "attention_module": "attention_module.analyse:FAMILY",
    "hyper_connection": "hyper_connection.analyse:FAMILY",
    "moe_all_to_all": "expert_exchange.all_to_all:FAMILY",
    "mega_moe": "expert_exchange.mega_moe:FAMILY",
    "batched_gemm": "gemm.batched:FAMILY",
}
expect({name: f"pipewave.kernels.{home}" for name, home in BUILT_IN.items()})
