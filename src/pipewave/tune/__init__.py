"""Choosing a Triton kernel's configuration from the shape alone.

    table = pipewave.tune.load_table("gemm")
    config = table.select(m=300, n=4096, k=4096)     # {"BLOCK_M": 128, …, "num_warps": 8, "num_stages": 4, …}

Recording and profiling need a GPU; everything else, choosing included, is plain Python and numpy.
"""

from __future__ import annotations

from typing import Any

from pipewave.tune.tables import load_table

__all__ = ["autotune", "load_table", "patch"]


def __getattr__(name: str) -> Any:
    """`decorate.autotune` and `decorate.patch`, imported when asked for: they load Triton, where there is one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipewave.tune import decorate

    return getattr(decorate, name)
