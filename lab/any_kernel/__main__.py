"""`python -m lab.any_kernel --out DIR [--only NAME,…] [--budget-s 40]`: record the spaces of every kernel.

On the GPU machine, after `python -m lab.any_kernel.wheels` here (carry `.cache/any_kernel`). A space that DIR holds
already is not recorded again, so that a run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from lab.any_kernel import spaces
from lab.any_kernel.listed import subjects
from lab.any_kernel.record import first_use, record
from pipewave.files.whole import write as replace


def record_all(out: Path, only: Sequence[str], budget_s: float, *, use: bool) -> None:
    """Record what `out` lacks; one kernel's failure does not cost the others' time."""
    import torch

    from pipewave.tune.user_kernels import gpu

    device = gpu.current()
    if device is None:
        raise SystemExit("no GPU here: --score replays what was recorded")
    for subject in subjects():
        path = out / f"{subject.name}{spaces.SUFFIX}"
        if path.exists() or (only and subject.name not in only):
            continue
        start = time.monotonic()
        try:
            space = record(subject, device, torch, budget_s)
            spaces.write(space, path)
            used = first_use(subject, device, torch, space) if use else {}
        except Exception:  # noqa: BLE001  of a third party's kernel anything may come
            sys.stderr.write(f"{subject.name} failed:\n{traceback.format_exc()}")
            continue
        if used:
            replace(out / f"{subject.name}.first_use.json", json.dumps(used).encode())
        sys.stderr.write(f"{subject.name}: {len(space.shapes)} launches, {time.monotonic() - start:.0f} s; {used}\n")
        torch.cuda.empty_cache()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget-s", type=float, default=40.0, help="seconds for each kernel, compilation included")
    parser.add_argument("--spaces-only", action="store_true", help="leave first use out")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    only = [name for name in options.only.split(",") if name]
    record_all(options.out, only, options.budget_s, use=not options.spaces_only)


if __name__ == "__main__":
    main()
