"""Record configuration spaces of our own kernels on a GPU: `python -m lab.own_kernels --kernel gemm --out DIR`.

Everything is compiled and checked, then timed at random test shapes and, until the budget is spent, at anchors. One
file a kernel; a kernel whose file exists is skipped, a killed run goes on where it was. `--tables` makes the tables of
the recordings. Recording needs torch and triton.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lab.own_kernels.making import table_of
from lab.own_kernels.profile import Budget, run
from lab.own_kernels.recording import Recording
from lab.own_kernels.space import space
from pipewave.tune.tables import KERNELS


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default=",".join(KERNELS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tests", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tables", action="store_true", help="fit the recordings of --out instead, without a GPU")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    budget = Budget(options.seconds, seed=options.seed, tests=options.tests)
    for kernel in (space(name).kernel for name in options.kernel.split(",")):
        path = options.out / f"{kernel}.npz"
        if options.tables:
            print(table_of(Recording.load(path), options.out))
        elif not path.exists():
            run(kernel, path.with_suffix(".profile"), budget).save(path)


if __name__ == "__main__":
    main()
