"""A kernel's table, found and checked: the door that users, decorators and layers load through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def load_table(kernel: str, *, gpu: str | None = None, path: str | Path | None = None,
               env: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
    """Load a kernel's table, ready to `select(...)` from.

    Args:
        kernel: a name of `space.kernels()`.
        gpu: whose table; default: this machine's card, or the H200 where none is known. Your own
            (`pipewave tune profile`) goes before the shipped one.
        path: a table file instead; it must hold `kernel`, unless that is empty.
        env: the machine to serve, as `record.environment()` returns it; default: this one, as far as it can be known
            without touching the card. `{}` checks nothing, for a machine that only reads.

    Raises:
        UnknownKernel: no such kernel. BadFile: no table, or a corrupted one.
        TableMismatch: a table of another kernel, kernel source, configuration space or card.
    """
    from pipewave.tune import machine
    from pipewave.tune.lookup import lookup
    from pipewave.tune.table import check_environment, check_kernel, locate, read

    here = machine.current() if env is None else machine.flat(env)
    table = read(Path(path) if path else locate(kernel, gpu or here.get("gpu") or "H200"))
    check_kernel(table, kernel)
    check_environment(table, here)
    return lookup(table)
