"""A kernel's table, found and checked: the door that users, decorators and layers load through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FROM = "H200"  # the GPU whose tables are shipped


def load_table(kernel: str, *, gpu: str | None = None, path: str | Path | None = None,
               env: Mapping[str, Any] | None = None, transfer: bool = False) -> Any:  # fmt: skip
    """Load a kernel's table, ready to `select(...)` from.

    Args:
        kernel: a name of `space.kernels()`.
        gpu: whose table; default: this machine's GPU, or the H200 where none is known. Your own
            (`pipewave tune profile`) goes before the shipped one.
        path: a table file instead; it must hold `kernel`, unless that is empty.
        env: the machine to serve, as `record.environment()` returns it; default: this one, as far as it can be known
            without touching the GPU. `{}` checks nothing, for a machine that only reads.
        transfer: where the GPU has no table, carry the H200's over by the physics of both GPUs: a warm start, half as
            sure of itself. A few launches measured there do better: `pipewave tune profile`.

    Raises:
        UnknownKernel: no such kernel. BadFile: no table, or a corrupted one.
        TableMismatch: a table of another kernel, kernel source, configuration space or GPU.
    """
    from pipewave.tune import machine
    from pipewave.tune.lookup import lookup
    from pipewave.tune.table import check_environment, check_kernel, has_table, locate, read
    from pipewave.tune.warm import carried_over

    here = machine.current() if env is None else machine.flat(env)
    name = gpu or here.get("gpu") or FROM
    if transfer and path is None and not has_table(kernel, name):
        return lookup(carried_over(read(locate(kernel, FROM)), name))
    table = read(Path(path) if path else locate(kernel, name))
    check_kernel(table, kernel)
    check_environment(table, here)
    return lookup(table)
