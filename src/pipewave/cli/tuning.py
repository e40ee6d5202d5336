"""What the `tune` commands need beside the library: parsing of shapes, rows to show, and a clear word without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipewave.errors import BadInput, MissingExtra
from pipewave.tune.reachable import reachable, trade_off


def need_gpu() -> None:
    """Say what is missing where nothing can be timed.

    Raises:
        MissingExtra: torch or triton is absent, or no CUDA GPU is visible.
    """
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"timing needs torch and triton ({error.name} is missing): pip install 'pipewave[gpu]'"
        ) from None
    if not torch.cuda.is_available():
        raise MissingExtra(
            "timing needs a CUDA GPU; none is visible here. Shipped tables work without one.", field="gpu"
        )


def fields_of(text: str) -> dict[str, int]:
    """Parse `m=300,n=4096`.

    Raises:
        BadInput: a part is not name=integer, or an integer below one.
    """
    try:
        found = {name.strip(): int(value) for name, _, value in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise BadInput(f"shape {text!r}: write name=integer, separated by commas, such as m=300,n=4096,k=4096",
                       field="shape") from None  # fmt: skip
    for name, value in found.items():
        if value < 1:
            raise BadInput(f"{name} = {value}: must be at least 1", field=name)
    return found


def range_of(text: str) -> tuple[str, range, dict[str, int]]:
    """Parse fixed fields and one range `name=LOW:HIGH[:STEP]`; HIGH belongs to it.

    Raises:
        BadInput: no range, several, or something that is not a number.
    """
    parts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    ranges = {name: value for name, value in parts.items() if ":" in value}
    if len(ranges) != 1:
        raise BadInput(f"shape {text!r}: give exactly one field a range, such as m=1:8192", field="shape")
    ((name, value),) = ranges.items()
    fixed = fields_of(",".join(f"{n}={v}" for n, v in parts.items() if n != name)) if len(parts) > 1 else {}
    try:
        low, high, *step = (int(number) for number in value.split(":"))
        return name, range(low, high + 1, *step), fixed
    except (ValueError, TypeError):
        raise BadInput(f"{name} = {value!r}: write LOW:HIGH or LOW:HIGH:STEP", field=name) from None


def reach_rows(
    table: Any, vary: str, points: range, fixed: Mapping[str, int]
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return one row a reachable configuration with its intervals, and how few configurations would do."""
    found = reachable(table, vary, points, **fixed)
    rows = [{**dict(config), vary: " ".join(f"{a}-{b}" if a < b else str(a) for a, b in intervals)}
            for config, intervals in found.items()]  # fmt: skip
    some = np.unique(np.geomspace(points.start, points[-1], 200).astype(int))
    columns = {vary: some[:, None], **{name: np.full((len(some), 1), value) for name, value in fixed.items()}}
    return rows, trade_off(table.table.fitted.us(columns))


def regret_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Flatten an evaluation: one row a (kernel, selector)."""
    keep = (
        "mean_regret",
        "p95_regret",
        "worst_regret",
        "share_of_optimum",
        "decision_us",
        "speed_up_geomean",
        "speed_up_max",
    )
    return [{"kernel": kernel, "selector": name, **{key: found[key] for key in keep}}
            for kernel, result in answer["kernels"].items() for name, found in result["selectors"].items()]  # fmt: skip
