"""Choosing a Triton kernel's configuration from the shape alone.

    table = pipewave.tune.load_table("gemm")
    config = table.select(m=300, n=4096, k=4096)     # {"BLOCK_M": 128, …, "num_warps": 8, "num_stages": 4, …}

Recording and profiling need a GPU; everything else, choosing included, is plain Python and numpy.
"""

from __future__ import annotations

from typing import Any

from pipewave.tune.tables import load_table

__all__ = ["autotune", "load_table", "patch"]


def autotune(*args: Any, **kwargs: Any) -> Any:
    """Stand in for `triton.autotune`; see `decorate.autotune`."""
    from pipewave.tune.decorate import autotune as decorator

    return decorator(*args, **kwargs)


def patch(**options: Any) -> Any:
    """Choose for every kernel of the program that is under `triton.autotune`; see `patched.patch`."""
    from pipewave.tune.decorate import patch as patched

    return patched(**options)
