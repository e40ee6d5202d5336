"""How far a served mean may be off: what kernels leave open, and what a description of a deployment leaves open.

Both add as variances do, in logarithms. The second part is read off published runs, each group of them scored with the
others' (`python -m bench.published_cover --write`); it is wider where the engine's version is not given. A deployment
called from its own process has the first part only, in `estimate`, `serve` and `plan` alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pipewave.files import packaged

FILE = Path(__file__).with_name("interval.json")
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s")
Open = Mapping[str, Mapping[str, float]]


@cache
def left_open() -> Open:
    """Half-widths by what is known of the version (`version_given`, `version_assumed`) and mean."""
    return dict(packaged.document(FILE)["half_widths"])


def half_width(metric: str, kernels: float, *, version_given: bool) -> float:
    """Half the 90 % interval of a mean's logarithm; `kernels`: that of a step; `version_given`: by the description."""
    return math.hypot(kernels, left_open()["version_given" if version_given else "version_assumed"][metric])


def sides(means: Mapping[str, float], kernels: float, *, version_given: bool) -> dict[str, float]:
    """Both ends of the interval of every mean, under names such as `ttft_ms_low`."""
    factors = {
        name: math.exp(half_width(name, kernels, version_given=version_given)) for name in METRICS if name in means
    }
    return {
        f"{name}_{side}": means[name] * factor**sign
        for name, factor in factors.items()
        for side, sign in (("low", -1), ("high", 1))
    }
