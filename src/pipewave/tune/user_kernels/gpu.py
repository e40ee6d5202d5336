"""The current GPU as a device to tune kernels on. Needs torch and triton."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from pipewave.tune import machine
from pipewave.tune.law.peaks import peaks_of
from pipewave.tune.user_kernels.device import Built, Launch

FLUSH_MB = 256


def current() -> Gpu | None:
    """The GPU in use; None where there is none, or where kernels run in Triton's interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return None
    try:
        import torch
    except ImportError:
        return None
    return _gpu(torch.cuda.current_device()) if torch.cuda.is_available() else None


@cache
def _gpu(_device: int) -> Gpu:
    """One timer with its buffer serves all kernels on a device."""
    return Gpu()


class Gpu:
    """Compiles in threads and times with a cold L2, as `timing.ColdTimer` does."""

    def __init__(self, flush_mb: int = FLUSH_MB) -> None:
        import torch

        torch.cuda.init()
        self.env: Mapping[str, Any] = machine.current()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.peaks = peaks_of(properties.name, properties.multi_processor_count)
        self._timer: Any = None
        self._flush_mb, self._built = flush_mb, dict[tuple[int, int], Built]()

    def idle(self) -> bool:
        """Whether measuring is allowed now."""
        import torch

        return not torch.cuda.is_current_stream_capturing()

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        """Compile in threads where this Triton can: its passes and the assembler run beside each other."""
        mode = self.async_mode()
        if mode is None:
            return {index: self._one(launch, index) for index in configs}
        with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) - 1)) as pool, mode(pool, ignore_errors=True):
            for index in configs:
                self._one(launch, index)
        return {index: self._one(launch, index) for index in configs}

    @staticmethod
    def async_mode() -> Any:
        """Triton's own way to compile in threads, None where it has none."""
        try:
            from triton.runtime._async_compile import AsyncCompileMode
        except ImportError:
            return None
        return AsyncCompileMode

    @staticmethod
    def _one(launch: Launch, index: int) -> Built:
        try:
            launch.prepare(index)
            compiled = launch.fn.run(
                *launch.args, grid=launch.grid, warmup=True, **launch.kwargs, **launch.configs[index]
            )
            if hasattr(compiled, "future") and compiled.kernel is None:
                return Built()
            compiled._init_handles()
            return Built(int(compiled.metadata.shared), int(compiled.n_regs or 32))
        except Exception as problem:  # noqa: BLE001  the compiler raises whatever its passes raise
            return Built(error=f"{type(problem).__name__}: {problem}"[:200])

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        """µs of one launch of each configuration, each after a flush of the L2."""
        from pipewave.tune.timing import FEW, ColdTimer

        if self._timer is None:
            self._timer = ColdTimer(self._flush_mb, FEW)
        return list(self._timer([Prepared(launch, index) for index in order]))


class Prepared(list[Callable[[], Any]]):
    """The launch of one configuration, for the timer: `before` and `after` run outside its time."""

    def __init__(self, launch: Launch, index: int) -> None:
        config = launch.configs[index]
        kwargs = {**launch.kwargs, **config}
        super().__init__([lambda: launch.fn.run(*launch.args, grid=launch.grid, warmup=False, **kwargs)])
        self.before, self.after = (lambda: launch.before(index)), (lambda: launch.after(index))
