"""How far a figure of a deployment may be off: one law for `estimate`, `serve` and `plan`.

Half the 90 % interval of a figure's logarithm adds up, as variances do, from what kernels leave open, what the host and
the settings of a server that somebody else runs leave open (by engine and figure), what data-parallel ranks add, which
real requests and experts load unevenly, what the version adds where it is not named, what pools could be that nobody
stated (`matched`), and how many drafts are accepted where nothing says it (`speculative`). Widths of servers, ranks and
versions are read off published runs: the first two with each group of them left out
(`python -m train.published_cover --write`), the third as the difference that the version makes to answers for them.
Which kernels run (other software's rows, other GPUs') is part of what kernels leave open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.software.engine import Engine
from pipewave.software.stacks import version_of

FILE = Path(__file__).with_name("interval.json")
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s")
# Figures that go by the law of another: a static batch has no clients whose arrivals are open, an interval between two
# tokens is one of those that TPOT is the mean of.
AS = {"prefill_ms": "tpot_ms", "itl_ms": "tpot_ms"}
FOUND = "prefix_found_share"  # of the prompts' tokens, in a cache that steps fill and empty
FIRST = ("ttft_ms", "prefill_ms")  # nothing is drafted before a first token


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Sources of uncertainty of a deployment; numbers are half the 90 % interval of a logarithm."""

    kernels: float  # of a step
    engine: str  # whose server it is (`server_of`)
    version_given: bool
    ranks: bool = False  # ranks of attention data parallelism share its requests
    pools: float = 0.0  # number of engines in pools that was not given
    drafts: float = 0.0  # acceptance of drafts that was not given

    def server(self, metric: str) -> float:
        """Half-width due to host, front end and settings; for an engine without published runs, the widest of all."""
        table = packaged.shared(FILE)
        widths, older = table["servers"], {_old(name): one for name, one in table["older"].items()}
        known, name = {**widths, **older}, AS.get(metric, metric)
        return float(known[self.engine][name] if self.engine in known else max(one[name] for one in widths.values()))

    def version(self, metric: str) -> float:
        """Half-width due to a version that is not given."""
        return 0.0 if self.version_given else _width("version", metric)

    def uneven(self, metric: str) -> float:
        """Half-width due to uneven data-parallel ranks."""
        return _width("ranks", metric) if self.ranks else 0.0

    def half(self, metric: str) -> float:
        """Half the 90 % interval of a figure's logarithm."""
        open_ = (self.server(metric), self.version(metric), self.uneven(metric))
        return math.hypot(self.kernels, *open_, self.pools, 0.0 if metric in FIRST else self.drafts)

    def ends(self, metric: str, value: float) -> dict[str, float]:
        """Both ends of a figure's interval, as `_low` and `_high`."""
        factor = math.exp(self.half(metric))
        return {"_low": value / factor, "_high": value * factor}

    def tried(self, concurrency: int | None) -> tuple[float, ...]:
        """Factors of steps to simulate beside the middle: none where a number of clients wait for their answers, else
        both ends of TPOT's interval, for queues amplify what steps leave open.
        """
        half = self.half("tpot_ms")
        return () if concurrency else (math.exp(-half), math.exp(half))

    def note(self) -> str:
        """Which unknowns widen the intervals, and how far each would on its own."""
        named = {"TTFT": self.server("ttft_ms"), "TPOT": self.server("tpot_ms")}
        server = " and ".join(f"{_percent(half)} of {name}" for name, half in named.items() if half)
        parts = {
            "load of data-parallel ranks": self.uneven("tpot_ms"),
            "number of engines not known": self.pools,
            "acceptance of drafts not known": self.drafts,
            "version not named": self.version("tpot_ms"),
        }
        words = [f"kernels {_percent(self.kernels)}"]
        words += [f"host and settings of a {self.engine} server not known {server}"] if server else []
        words += [f"{what} {_percent(half)}" for what, half in parts.items() if half]
        return "90 % intervals hold what is open: " + ", ".join(words)


def _width(part: str, metric: str) -> float:
    return float(packaged.shared(FILE)[part][AS.get(metric, metric)])


def server_of(engine: Engine) -> str:
    """Whose server it is: an engine's, or that of its generation before today's, of which less is known."""
    older = packaged.shared(FILE)["older"].get(engine.name)
    before = older and version_of(engine.version) < version_of(older["before"])
    return _old(engine.name) if before else engine.name


def _old(name: str) -> str:
    return f"{name} before {packaged.shared(FILE)['older'][name]['before']}"


def _percent(half: float) -> str:
    return f"± {100 * math.expm1(half):.0f} %"


def interval_ends(figures: Mapping[str, Any], uncertain: Uncertainty, *others: Mapping[str, Any]) -> dict[str, float]:
    """Both ends of the interval of every time of a run (`ttft_ms`, `ttft_p99_ms`) and of its rate of tokens, under
    names such as `ttft_ms_low`. It holds the same figures of other runs as well, and what a cache of prefixes holds.
    """
    found: dict[str, float] = {}
    for name, value in figures.items():
        if name in METRICS or name.endswith("_ms"):
            metric = name if name in METRICS else f"{name.partition('_')[0]}_ms"
            low, high = uncertain.ends(metric, value).values()
            beside = [other[name] for other in others if name in other]
            found |= {f"{name}_low": min([low, *beside]), f"{name}_high": max([high, *beside])}
    shares = [one[FOUND] for one in (figures, *others) if FOUND in one]
    if len(shares) > 1:  # no law tells what a cache of prefixes holds: it is as open as several runs differ
        found |= {f"{FOUND}_low": min(shares), f"{FOUND}_high": min(max(shares), 1.0)}
    return found
