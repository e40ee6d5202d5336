"""`python -m studies.any_kernel --out DIR [--only NAME,…] [--budget-s 40]`: record every kernel, score everyone, print.

On the GPU machine, after `python -m lab.any_kernel.wheels` here (carry `.cache/any_kernel`). A space that DIR holds
already is not recorded again, so that a run goes on where it stopped; `--score` only replays, without a GPU.
`--from DIR` adds the transfer: tables of that folder's card, and so many anchors (`--anchors 20`) of this one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.files.whole import write as replace
from pipewave.tune.law.model import carried, fit
from studies.any_kernel import spaces
from studies.any_kernel.selectors import SELECTORS, Pipewave, SpaceSelector, peaks_of_space, score

BARS = {"mean_regret": 0.02, "worst_regret": 0.10, "slower_share": 0.02}


def record_all(out: Path, only: Sequence[str], budget_s: float, *, use: bool) -> None:
    """Record what `out` lacks; one kernel's failure does not cost the others' time."""
    import torch

    from lab.any_kernel.listed import subjects
    from lab.any_kernel.record import first_use, record
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


def scored(out: Path, source: Path | None, anchors: int) -> dict[str, Any]:
    """Figures of every selector at every space, of the transfer, and of first use."""
    found: dict[str, Any] = {}
    for path in spaces.found(out):
        name, space = path.name.removesuffix(spaces.SUFFIX), spaces.read(path)
        rows: dict[str, Any] = {}
        for selector in SELECTORS.values():
            try:
                rows[selector.name] = score(space, selector())
            except ImportError:
                continue
        if source is not None and (source / path.name).exists():
            rows[f"transfer, {anchors} anchors"] = score(
                space, transfer(spaces.read(source / path.name), space), anchors
            )
            rows[f"{anchors} anchors alone"] = score(space, Pipewave(), anchors)
        used = out / f"{name}.first_use.json"
        found[name] = {"selectors": rows, "first_use": json.loads(used.read_text()) if used.exists() else {}}
    return found


def transfer(source: spaces.Space, target: spaces.Space) -> SpaceSelector:
    """Ours with the source card's model as prior."""
    every = np.flatnonzero(~np.array(source.is_test))
    model = fit(source.anchors(every), peaks_of_space(source))
    return Pipewave(carried(model, peaks_of_space(target)))


def rounded(found: Any) -> Any:
    """Figures to a hundredth of a percent or of a µs, and what holds them."""
    if isinstance(found, dict):
        return {name: rounded(each) for name, each in found.items()}
    if isinstance(found, list):
        return [rounded(each) for each in found]
    return round(found, 4) if isinstance(found, float) else found


def table(found: dict[str, Any]) -> str:
    """The bars' table: a line a kernel and selector, what misses a bar marked."""
    lines = [f"{'kernel':20} {'selector':22} {'mean %':>7} {'worst %':>8} {'slower %':>8} {'speed-up':>8}  misses"]
    for name, each in found.items():
        for selector, row in each["selectors"].items():
            misses = ", ".join(bar for bar, most in BARS.items() if row[bar] > most) if selector == "pipewave" else ""
            lines.append(f"{name:20} {selector:22} {100 * row['mean_regret']:7.2f} {100 * row['worst_regret']:8.1f} "
                         f"{100 * row['slower_share']:8.1f} {row['speed_up']:8.2f}  {misses}")  # fmt: skip
        if each["first_use"]:
            used = each["first_use"]
            lines.append(f"{name:20} {'first use, 2 s':22} {100 * used.get('measured_regret', 0):7.2f} at "
                         f"{used['measured']} measured, {100 * used.get('unseen_regret', 0):.2f} beyond")  # fmt: skip
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget-s", type=float, default=40.0, help="seconds for each kernel, compilation included")
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--spaces-only", action="store_true", help="leave first use out")
    parser.add_argument("--json", type=Path, help="where the figures go, instead of beside the spaces")
    parser.add_argument("--record-only", action="store_true", help="score later, elsewhere")
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--anchors", type=int, default=20)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.score:
        record_all(
            options.out,
            [name for name in options.only.split(",") if name],
            options.budget_s,
            use=not options.spaces_only,
        )
    if options.record_only:
        return
    found = scored(options.out, options.source, options.anchors)
    replace(options.json or options.out / "scores.json", (json.dumps(rounded(found), indent=1) + "\n").encode())
    print(table(found))


if __name__ == "__main__":
    main()
