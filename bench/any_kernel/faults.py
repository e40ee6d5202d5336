"""Configurations of a kernel that fault on this card: `python -m bench.any_kernel.faults NAME INDEX` runs one and ends.

An illegal access takes the process's context with it, so that each is tried in a process of its own, at the first few
test launches.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bench.any_kernel.subjects import Subject

LAUNCHES, AT_ONCE, SECONDS = 4, 13, 90


def sound(subject: Subject) -> tuple[Subject, list[int]]:
    """The subject with the configurations that run, the author's own first; and the numbers of those that do not."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        fine = list(pool.map(lambda index: _ends_well(subject.name, index), range(len(subject.configs))))
    kept = tuple(config for config, ends in zip(subject.configs, fine, strict=True) if ends)
    return replace(subject, configs=kept), [i for i, ends in enumerate(fine) if not ends]


def _ends_well(name: str, index: int) -> bool:
    command = [sys.executable, "-m", "bench.any_kernel.faults", name, str(index)]
    try:
        return subprocess.run(command, timeout=SECONDS, capture_output=True, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main(argv: Sequence[str] | None = None) -> None:
    """Run one configuration; the process ends badly where it faults."""
    import torch

    from bench.any_kernel import record
    from bench.any_kernel.listed import subjects

    name, index = argv or sys.argv[1:]
    subject = next(one for one in subjects() if one.name == name)
    for shape in subject.shapes(LAUNCHES, record.TEST_SEED):
        grid, args, kwargs = subject.launch(torch, shape)
        for _ in range(3):
            subject.kernel().run(*args, grid=grid, warmup=False, **kwargs, **subject.configs[int(index)])
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
