"""Choosing a Triton kernel's configuration from the shape alone.

    table = pipewave.tune.load_table("gemm")
    config = table.select(m=300, n=4096, k=4096)     # {"BLOCK_M": 128, …, "num_warps": 8, "num_stages": 4, …}

Recording and profiling need a GPU; everything else, choosing included, is plain Python and numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["autotune", "load_table"]


def load_table(kernel: str, *, gpu: str = "H200", path: str | Path | None = None,
               env: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
    """Load a kernel's table, ready to `select(...)` from.

    Args:
        kernel: a name of `space.kernels()`.
        gpu: whose table; your own (`pipewave tune profile`) goes before the shipped one.
        path: a table file instead.
        env: the machine to serve, as `record.environment()` returns it; checked against the table's.

    Raises:
        UnknownKernel: no such kernel. BadFile: no table, or a corrupted or foreign one.
    """
    from pipewave.tune.lookup import lookup
    from pipewave.tune.table import check_environment, locate, read

    table = read(Path(path) if path else locate(kernel, gpu))
    if env is not None:
        check_environment(table, env)
    return lookup(table)


def autotune(*args: Any, **kwargs: Any) -> Any:
    """Stand in for `triton.autotune`; see `decorate.autotune`."""
    from pipewave.tune.decorate import autotune as decorator

    return decorator(*args, **kwargs)
