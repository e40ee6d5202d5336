"""Gains of drafting that others published against ours: `python -m studies.published_drafts [--write]`.

Each figure is time per token without drafts over that with them, of one server (`data/published/drafts.yaml`, with
sources). Where tokens a step are stated, the acceptance that makes as many is taken, so that what is compared is what a
step that drafts and verifies costs. Nothing is fitted to these figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.simulate.speculative import of

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "data" / "published" / "drafts.yaml"
PAGE = ROOT / "docs" / "generated" / "drafts.md"
HEAD = ("server", "in flight", "drafted", "tokens a step", "gain published", "gain predicted", "off %")
WAVES = 4


@dataclass(frozen=True, slots=True)
class Gain:
    """A published gain: the case without drafts, how was drafted, tokens a step as stated, and the gain."""

    case: Mapping[str, Any]
    method: str
    drafted: int
    made: float | None
    measured: float

    @property
    def speculative(self) -> dict[str, Any]:
        """How a case says the drafts."""
        said: dict[str, Any] = {"method": self.method, "tokens": self.drafted}
        return said if self.made is None else said | {"acceptance": acceptance(self.drafted, self.made)}

    def predicted(self) -> float:
        """Time per token without drafts over that with them."""
        plain, drafted = (
            answer(from_dict(dict(self.case) | {"speculative": how}))["tpot_ms"] for how in ("none", self.speculative)
        )
        return float(plain / drafted)


def acceptance(drafted: int, made: float) -> float:
    """The probability, one for all positions, with which so many drafted tokens make a step of so many."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        enough = of({"method": "mtp", "tokens": drafted, "acceptance": middle}).mean >= made
        low, high = (low, middle) if enough else (middle, high)
    return high


def read() -> Iterator[Gain]:
    """Every published figure."""
    for group in yaml.safe_load(ROWS.read_text("utf-8")):
        for flight, drafted, made, gain in group["rows"]:
            case = group["case"] | {"concurrency": flight, "requests": WAVES * flight}
            yield Gain(case, group["method"], drafted, made, gain)


def table(gains: Sequence[Gain], predicted: Sequence[float]) -> str:
    """The figures as a page shows them, and their mean error."""
    lines = ["| " + " | ".join(HEAD) + " |", "| --- |" + " ---: |" * (len(HEAD) - 1)]
    for one, ours in zip(gains, predicted, strict=True):
        case, made = one.case, "usual" if one.made is None else f"{one.made:.2f}"
        server = (
            f"{case['model']}, {case['engine']} {case['version']}, {case.get('tp', 1)} × {case['gpu']}, {one.method}"
        )
        cells = (server, case["concurrency"], one.drafted, made, f"{one.measured:.2f}", f"{ours:.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} | {100 * (ours / one.measured - 1):+.0f} |")
    off = 100 * mean(abs(ours / one.measured - 1) for one, ours in zip(gains, predicted, strict=True))
    return "\n".join([*lines, f"| mean | | | | | | {off:.0f} |"]) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Predict, print, and write with `--write`."""
    parser = argparse.ArgumentParser(prog="python -m studies.published_drafts", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table of docs/serve.md")
    options = parser.parse_args(argv)
    gains = list(read())
    page = table(gains, [gain.predicted() for gain in gains])
    print(page, end="")
    if options.write:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
