"""How far a figure of a deployment may be off: one law for `estimate`, `serve` and `plan`.

Half the 90 % interval of a figure's logarithm adds up, as variances do, from what kernels leave open, what the host and
the settings of a server that somebody else runs leave open (by engine and figure), and what the version adds where it
is not named. The last two are read off published runs: the first with each group of them left out
(`python -m bench.published_cover --write`), the second as the difference that the version makes to answers for them.
Which kernels run (other software's rows, other GPUs') is part of what kernels leave open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.software.engines import Engine, numbered

FILE = Path(__file__).with_name("interval.json")
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s")
# Figures that go by the law of another: a static batch has no clients whose arrivals are open, an interval between two
# tokens is one of those that TPOT is the mean of.
AS = {"prefill_ms": "tpot_ms", "itl_ms": "tpot_ms"}


@cache
def _table() -> Mapping[str, Any]:
    return dict(packaged.document(FILE))


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """What is open about a deployment: its kernels (half the 90 % interval of a step's logarithm), whose server it is,
    and whether the version is told."""

    kernels: float
    engine: str
    told: bool

    def server(self, metric: str) -> float:
        """What host, front end and settings leave open; of an engine without published runs, as much as of any."""
        widths = _table()["servers"]
        name = AS.get(metric, metric)
        return float(widths[self.engine][name] if self.engine in widths else max(one[name] for one in widths.values()))

    def version(self, metric: str) -> float:
        """What the version adds where it is not told."""
        return 0.0 if self.told else float(_table()["version"][AS.get(metric, metric)])

    def half(self, metric: str) -> float:
        """Half the 90 % interval of a figure's logarithm."""
        return math.hypot(self.kernels, self.server(metric), self.version(metric))

    def ends(self, metric: str, value: float) -> dict[str, float]:
        """Both ends of a figure's interval, as `_low` and `_high`."""
        factor = math.exp(self.half(metric))
        return {"_low": value / factor, "_high": value * factor}

    @property
    def scales(self) -> tuple[float, float]:
        """Factors of steps at both ends of TPOT's interval."""
        half = self.half("tpot_ms")
        return math.exp(-half), math.exp(half)

    def note(self) -> str:
        """Which unknowns widen the intervals, and how far each would on its own."""
        first, later = (_percent(self.server(name)) for name in ("ttft_ms", "tpot_ms"))
        words = [
            f"kernels {_percent(self.kernels)}",
            f"host and settings of a {self.engine} server not known {later} (TTFT {first})",
        ]
        if not self.told:
            words.append(f"version not named {_percent(self.version('tpot_ms'))}")
        return "90 % intervals hold what is open: " + ", ".join(words)


def _percent(half: float) -> str:
    return f"± {100 * math.expm1(half):.0f} %"


def tells_version(engine: str | Engine) -> bool:
    """Whether an engine is named with its version, as `vllm:0.22.1` is."""
    return isinstance(engine, Engine) or bool(numbered(str(engine).partition(":")[2]))


def hull(intervals: Mapping[str, float], *ends: Mapping[str, float]) -> dict[str, float]:
    """Intervals, as `ttft_ms_low` and `ttft_ms_high`, that hold what happens at some ends as well."""
    pick = {"low": min, "high": max}
    named = {key: key.rpartition("_") for key in intervals}
    return {key: pick[side](intervals[key], *(end[name] for end in ends)) for key, (name, _, side) in named.items()}


def sides(means: Mapping[str, float], open_: Uncertainty) -> dict[str, float]:
    """Both ends of the interval of every mean, under names such as `ttft_ms_low`."""
    return {
        name + side: value for name in METRICS if name in means for side, value in open_.ends(name, means[name]).items()
    }
