"""`@pipewave.tune.autotune` where `@triton.autotune` stood, and `patch()` for every `triton.autotune` of a program.

Kernels are told by their source, not by their name: a kernel called `gemm` is any other kernel. `patch` replaces
`Autotuner.run`, so that kernels that were decorated before are met too. Objects stay Triton's own: whoever looks into
`configs`, `cache` or `keys`, and `torch.compile`, finds what it knows.
"""

from __future__ import annotations

import atexit
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from pipewave.errors import BadInput
from pipewave.tune.user_kernels.aside import ASIDE
from pipewave.tune.user_kernels.device import BUDGET_S, Options
from pipewave.tune.user_kernels.tuned import TunedKernel

MARK = "pipewave_tuned"  # attribute of an Autotuner: its tuned kernel, None where upstream stays


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


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What was done for one kernel. `gain`: how many times the fastest its first configuration takes, at the measured
    launches (geometric mean); `best`: the configuration of its last launch; `reason`: why the laws do not choose.
    """

    kernel: str
    measured: int
    by_model: int
    upstream: int
    seconds: float
    gain: float
    best: str
    reason: str

    @classmethod
    def of(cls, kernel: TunedKernel) -> KernelReport:
        """The report of a kernel as it stands."""
        count, gain = kernel.provenance, geometric_mean(kernel.gains) if kernel.gains else 1.0
        return cls(kernel.of.name, count["measured"], count["model"], count["upstream"], kernel.spent_s, gain,
                   str(kernel.best_config), kernel.reason)  # fmt: skip

    def __str__(self) -> str:
        gain = f"{self.gain:.2f} × over the first configuration" if self.measured else "nothing measured"
        more = f"; {self.reason}" if self.reason else ""
        return (f"{self.kernel}: {self.measured} launches measured in {self.seconds:.1f} s, {self.by_model} chosen by "
                f"the model, {self.upstream} by triton.autotune; {gain}; last {self.best}{more}")  # fmt: skip


class Patch:
    """The replacement; `undo` puts Triton's own back."""

    def __init__(self, options: Options) -> None:
        from triton.runtime.autotuner import Autotuner

        self.options, self._of = options, Autotuner
        self._upstream: Callable[..., Any] = Autotuner.run
        self.kernels: list[TunedKernel] = []
        upstream, tuned = self._upstream, self._tuned

        def run(of: Any, *args: Any, **kwargs: Any) -> Any:
            kernel = of.__dict__[MARK] if MARK in of.__dict__ else tuned(of)
            return upstream(of, *args, **kwargs) if kernel is None else kernel.run(*args, **kwargs)

        Autotuner.run = run

    def _tuned(self, of: Any) -> TunedKernel | None:
        try:
            kernel = TunedKernel(of, self.options)
        except (AttributeError, BadInput):  # a source that cannot be read
            kernel = None
        setattr(of, MARK, kernel)
        if kernel is not None:
            kernel.launch_upstream = partial(self._upstream, of)
            self.kernels.append(kernel)
        return kernel

    def undo(self) -> None:
        """Triton's own `run` again, for kernels met already too."""
        _ACTIVE.clear()
        self._of.run = self._upstream
        atexit.unregister(self.say)

    def report(self) -> list[KernelReport]:
        """What was measured, chosen and gained, kernel by kernel."""
        return [KernelReport.of(kernel) for kernel in self.kernels]

    def say(self) -> None:
        """Write the report to stderr."""
        for line in (*self.report(), *(f"not worked out: {problem}" for problem in ASIDE.problems)):
            sys.stderr.write(f"pipewave.tune: {line}\n")


_ACTIVE: list[Patch] = []


def patch(*, budget_s: float = BUDGET_S, cache: Any = True, report: bool = True, device: Any = None) -> Patch:
    """Let pipewave choose for every kernel under `triton.autotune` from now on.

    `budget_s` (of each kernel), `cache`, `device` are as of `autotune`. `report`: a line a kernel to stderr at the end.
    """
    if _ACTIVE:
        return _ACTIVE[0]
    made = Patch(Options(budget_s, None, None, cache, device))
    _ACTIVE.append(made)
    if report:
        atexit.register(made.say)
    return made
