"""Kernel families, one a folder. The built-in ones are listed here and nowhere else; each is loaded when asked for."""

from __future__ import annotations

from pipewave.calls.collective import COLLECTIVES
from pipewave.kernels.base import Analysis as Analysis
from pipewave.kernels.base import Columns as Columns
from pipewave.kernels.base import Context as Context
from pipewave.kernels.base import Family as Family
from pipewave.kernels.base import expect
from pipewave.kernels.base import families as families
from pipewave.kernels.base import family_of as family_of
from pipewave.kernels.base import group_of as group_of
from pipewave.kernels.base import register as register
from pipewave.kernels.base import registered as registered
from pipewave.kernels.base import revision as revision
from pipewave.kernels.base import rows_of as rows_of

# The record of each family as file and name, or a mapping that has it: a command about one does without the others.
BUILT_IN = {
    "gemm": "gemm.family:FAMILY",
    "attention": "attention.family:FAMILY",
    "mla": "attention.family:MLA",
    "fused_moe": "moe.family:FAMILY",
    "rmsnorm": "streaming.norm:RMSNORM",
    "silu_and_mul": "streaming.norm:SILU",
    "elementwise": "streaming.elementwise:FAMILY",
    **{call.kernel: "collective.family:FAMILIES" for call in COLLECTIVES},
    "delta_net": "recurrent:DELTA_NET",
    "causal_conv1d": "recurrent:CAUSAL_CONV1D",
    "mamba2": "recurrent:MAMBA2",
    "attention_module": "attention_module.family:FAMILY",
    "hyper_connection": "operators:HYPER_CONNECTION",
    "moe_all_to_all": "operators:MOE_ALL_TO_ALL",
    "mega_moe": "operators:MEGA_MOE",
    "batched_gemm": "operators:BATCHED_GEMM",
}
expect({name: f"pipewave.kernels.{home}" for name, home in BUILT_IN.items()})
