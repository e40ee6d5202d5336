"""`@pipewave.tune.autotune` where `@triton.autotune` stood: any kernel, by what its source says and its launches take.

Kernels are told by their source, not by their name: a kernel called `gemm` is any other kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput
from pipewave.tune.user_kernels.device import BUDGET_S, Options
from pipewave.tune.user_kernels.tuned import TunedKernel


def autotune(configs: Sequence[Any], key: Sequence[str], *args: Any, table: str | Path | None = None,
             budget_s: float = BUDGET_S, trips: Any = None, cache: str | Path | bool = True, device: Any = None,
             **upstream: Any) -> Callable[[Any], Any]:  # fmt: skip
    """Decorate any Triton kernel: what it does is read from its source, and its first launches are measured.

    Args:
        configs, key, *args, **upstream: exactly what `triton.autotune` takes.
        table: a table file to choose by (`pipewave tune profile FILE.py:kernel`), then nothing is measured.
        budget_s: seconds of timing at first use, in all, compilation apart; 0 measures nothing.
        trips: loop trips of a block where the source does not tell them: their mean, (mean, longest), or a function of
            the arguments by name that gives either.
        cache: folder of what was measured instead of the user's own; False keeps nothing.
        device: what measures (`user_kernels.device.Device`); default: the GPU in use.

    A kernel whose source cannot be read stays with `triton.autotune`, with a warning.
    """

    def decorate(fn: Any) -> Any:
        import triton

        made = triton.autotune(configs, key, *args, **upstream)(fn)
        try:
            return TunedKernel(made, Options(budget_s, trips, table, cache, device))
        except (AttributeError, BadInput) as problem:
            name = getattr(fn, "__name__", "kernel")
            warnings.warn(f"{name}: left to triton.autotune, its source cannot be read: {problem}", stacklevel=2)
            return made

    return decorate
