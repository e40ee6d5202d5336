"""What a shipped table can choose, and why: ranked candidates with what each one's time is made of and how sure the
choice is; and every configuration that a range of shapes can reach, to compile ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipewave.tune.law.wave import PARTS, design
from pipewave.tune.shipped_kernels import defaults
from pipewave.tune.tables import KernelTable


def explain(table: KernelTable, shape: dict[str, int], rows: int = 8) -> dict[str, Any]:
    """Rank so many configurations at a shape: `chosen`, `candidates` (parameters, µs, ± µs of two sigma, share of each
    part), `regret_bound` (two sigma), `speed_up` over the default, `provenance`. Raises as `table.select`.
    """
    config = table.select(**shape)
    columns = {name: np.array([value]) for name, value in shape.items()}
    us, (chooser, key) = table.us(columns)[0], table.key(shape)
    chosen, default = table.configs.index(config), int(defaults(table.kernel, table.config, columns)[0])
    order = [chosen, *(i for i in np.argsort(us, kind="stable").tolist() if i != chosen)][:rows]
    order += [default] if default not in order else []
    counts, model = chooser.counts(key)[None], chooser.model
    parts = design(counts, model.peaks.sms, model.resident)[0] * model.law
    share = parts / np.maximum(parts.sum(axis=1, keepdims=True), 1e-9)
    said = {default: "default", chosen: "chosen"}
    candidates = [{**table.configs[i], "us": float(us[i]), "within_us": float(2 * model.sigma[i] * us[i]),
                   **{name: round(float(share[i, list(terms)].sum()), 3) for name, terms in PARTS.items()},
                   "is": said.get(i, "")} for i in order]  # fmt: skip
    inside = "profiled domain" if chooser.listed(key) is not None else "extrapolated"
    whose = " carried over to ".join(filter(None, (table.gpu, table.meta["env"].get("carried_over_to"))))
    # Each law off by two of its sigmas, in the unlucky direction.
    worst = us[chosen] * (1 + 2 * model.sigma[chosen]) / np.min(us * (1 - 2 * model.sigma))
    return {"kernel": table.kernel, "shape": shape, "chosen": dict(config), "candidates": candidates,
            "regret_bound": max(0.0, float(worst) - 1), "speed_up": float(us[default] / us[chosen]),
            "provenance": f"{inside}, source {table.of.source_sha256[:12]}, {whose}"}  # fmt: skip


def runs(select: Callable[[int], Any], points: Sequence[int]) -> list[tuple[int, int, Any]]:
    """Ranges (first, last, choice) of points in ascending order with one choice."""
    found: list[tuple[int, int, Any]] = []
    for point in points:
        config = select(point)
        if found and found[-1][2] == config:
            found[-1] = found[-1][0], point, config
        else:
            found.append((point, point, config))
    return found


def reachable(
    table: KernelTable, vary: str, points: range, **fixed: int
) -> dict[tuple[tuple[str, int], ...], list[tuple[int, int]]]:
    """Every configuration that `table.select` can choose while one shape field varies, with its intervals.

    Args:
        vary, fixed: the field that varies, such as `m` or `kv_len`; the others. Raises as `select` for wrong ones.
        points: its values; all are tried, so a wide range of attention lengths wants a step.
    """
    out: dict[tuple[tuple[str, int], ...], list[tuple[int, int]]] = {}
    for first, last, config in runs(lambda value: table.select(**fixed, **{vary: value}), list(points)):
        out.setdefault(tuple(config.items()), []).append((first, last))
    return out
