"""Compile what a recording will launch, in processes: `python -m bench.any_kernel.ahead [--only …] [--workers 14]`.

Threads share Python's lock, so that recording waits for its compiler. Here each process compiles some configurations
at all launches, for the target alone: no card is touched. Binaries go to Triton's own cache, where a recording beside
it finds them.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
from collections.abc import Sequence
from typing import Any

TARGET = ("cuda", 90, 32)


class OnlyTarget:
    """A driver of Triton that knows the target and nothing else."""

    def get_current_target(self) -> Any:
        """Hopper."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*TARGET)

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The only one."""
        return 0


def compile_some(names: Sequence[str], worker: int, workers: int) -> None:
    """Compile every so many of all kernels' configurations, at all launches."""
    from triton.runtime import driver

    from bench.any_kernel import record
    from bench.any_kernel.listed import subjects
    from bench.any_kernel.paper import on_paper

    driver.set_active(OnlyTarget())
    paper, before = on_paper(), 0
    for subject in subjects():
        if names and subject.name not in names:
            continue
        kernel, mine = subject.kernel(), subject.configs[(worker - before) % workers :: workers]
        before += len(subject.configs)
        shapes = [*subject.shapes(record.TESTS, record.TEST_SEED), *subject.shapes(record.ANCHORS, record.ANCHOR_SEED)]
        for shape in shapes if mine else ():
            grid, args, kwargs = subject.launch(paper, shape)
            for config in mine:
                with contextlib.suppress(Exception):  # what does not compile here is reported by the recording
                    kernel.run(*args, grid=grid, warmup=True, **kwargs, **config)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    options = parser.parse_args(argv)
    names = [name for name in options.only.split(",") if name]
    context = multiprocessing.get_context("spawn")
    some = [context.Process(target=compile_some, args=(names, i, options.workers)) for i in range(options.workers)]
    for each in some:
        each.start()
    for each in some:
        each.join()


if __name__ == "__main__":
    main()
