"""Why a configuration was chosen: ranked candidates, what each one's time is made of, and how sure the choice is."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.tune import wave
from pipewave.tune.mapping import check_shape, mapper
from pipewave.tune.shapes import family
from pipewave.tune.space import space

WAVES = sum((wave.GROUPS[name] for name in ("wave", "first", "busiest", "ragged")), ())
PARTS = {"launch": wave.GROUPS["launch"], "waves": WAVES,
         "work": wave.GROUPS["work"], "bytes": wave.GROUPS["bytes"]}  # fmt: skip


def explain(table: Any, shape: dict[str, int], rows: int = 8) -> dict[str, Any]:
    """Rank configurations at a shape.

    Args:
        table: what `load_table` returns.
        shape: the kernel's shape fields.
        rows: candidates to return.

    Returns:
        `chosen`, `candidates` (parameters, µs, ± µs of two sigma, waves, share of each part), `regret_bound` (two
        sigma), `speed_up` over the default, `provenance`.

    Raises:
        MissingField, UnknownField: the shape is not the kernel's.
    """
    kernel, fitted = table.kernel, table.table.fitted
    check_shape(kernel, shape)
    columns = {name: np.array([[value]]) for name, value in shape.items()}
    us = fitted.us(columns)[0]
    config = table.select(**shape)
    number = {tuple(c.items()): i for i, c in enumerate(table.configs)}
    chosen, default = number[tuple(config.items())], _default(kernel, shape)
    order = [chosen, *(i for i in np.argsort(us, kind="stable").tolist() if i != chosen)][:rows]
    order += [default] if default not in order else []
    design = wave.design(mapper(kernel)(columns, fitted.config), fitted.sms, fitted.resident)[0] * fitted.law
    candidates = [
        _row(table, i, us, design, "chosen" if i == chosen else "default" if i == default else "") for i in order
    ]
    _, inside = table.candidates(shape)
    return {"kernel": kernel, "shape": shape, "chosen": dict(config), "candidates": candidates,
            "regret_bound": bound(us, fitted.sigma, chosen), "speed_up": float(us[default] / us[chosen]),
            "provenance": f"{'profiled domain' if inside else 'extrapolated'}, table {table.table.sha256[:12]}, "
                          f"{table.table.meta['env']['gpu']}"}  # fmt: skip


def _default(kernel: str, shape: dict[str, int]) -> int:
    """Which configuration runs without a table."""
    constant = {"head_dim": int(kernel.rsplit("_", 1)[1])} if family(kernel) in ("prefill", "decode") else {}
    of = space(kernel)
    return of.configs.index(of.default(shape | constant))


def bound(us: Any, sigma: Any, chosen: int) -> float:
    """Most the choice can lose to any rival if each law is off by two of its sigmas, in the unlucky direction."""
    worst = us[chosen] * (1 + 2 * sigma[chosen])
    return float(max(0.0, worst / np.min(us * (1 - 2 * sigma)) - 1))


def _row(table: Any, i: int, us: Any, design: Any, mark: str) -> dict[str, Any]:
    share = design[i] / max(design[i].sum(), 1e-9)
    # Terms 2 and 4 of the law are counts; their coefficients may be zero, so waves are read from the share of parts.
    parts = {name: round(float(share[list(index)].sum()), 3) for name, index in PARTS.items()}
    return {**table.configs[i], "us": float(us[i]), "within_us": float(2 * table.table.fitted.sigma[i] * us[i]),
            **parts, "is": mark}  # fmt: skip
