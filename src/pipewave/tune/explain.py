"""Why a configuration was chosen: ranked candidates, what each one's time is made of, and how sure the choice is."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.tune.law import wave
from pipewave.tune.law.anchors import work
from pipewave.tune.law.launch_counts import check_shape
from pipewave.tune.law.margin import defaults
from pipewave.tune.law.wave import PARTS


def explain(table: Any, shape: dict[str, int], rows: int = 8) -> dict[str, Any]:
    """Rank configurations at a shape.

    Args:
        table: what `load_table` returns.
        shape: the kernel's shape fields.
        rows: candidates to return.

    Returns:
        `chosen`, `candidates` (parameters, µs, ± µs of two sigma, share of each part), `regret_bound` (two
        sigma), `speed_up` over the default, `provenance`.

    Raises:
        MissingField, UnknownField: the shape is not the kernel's.
    """
    check_shape(table.kernel, shape)
    config = table.select(**shape)
    columns = {name: np.array([value]) for name, value in shape.items()}
    us, (chooser, key) = table.us(columns)[0], table.key(shape)
    chosen, default = table.configs.index(config), int(defaults(table.kernel, table.config, columns)[0])
    order = [chosen, *(i for i in np.argsort(us, kind="stable").tolist() if i != chosen)][:rows]
    order += [default] if default not in order else []
    counts, model = chooser.formulas.counts(dict(zip(chooser.inputs, key, strict=True)))[None], chooser.model
    parts = wave.design(work(counts), model.peaks.sms, model.resident)[0] * model.law
    candidates = [_row(table, i, us, model.sigma, parts, "chosen" if i == chosen else "default" if i == default else "")
                  for i in order]  # fmt: skip
    inside = "profiled domain" if table.is_foreseen(shape) else "extrapolated"
    return {"kernel": table.kernel, "shape": shape, "chosen": dict(config), "candidates": candidates,
            "regret_bound": bound(us, model.sigma, chosen), "speed_up": float(us[default] / us[chosen]),
            "provenance": f"{inside}, source {table.of.source_sha256[:12]}, {table.gpu}"}  # fmt: skip


def bound(us: Any, sigma: Any, chosen: int) -> float:
    """Most the choice can lose to any rival if each law is off by two of its sigmas, in the unlucky direction."""
    worst = us[chosen] * (1 + 2 * sigma[chosen])
    return float(max(0.0, worst / np.min(us * (1 - 2 * sigma)) - 1))


def _row(table: Any, i: int, us: Any, sigma: Any, terms: Any, mark: str) -> dict[str, Any]:
    share = terms[i] / max(terms[i].sum(), 1e-9)
    parts = {name: round(float(share[list(index)].sum()), 3) for name, index in PARTS.items()}
    return {**table.configs[i], "us": float(us[i]), "within_us": float(2 * sigma[i] * us[i]), **parts, "is": mark}
