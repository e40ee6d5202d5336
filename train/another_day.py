"""`python -m train.another_day [--write]`: cold intervals that hold shapes without rows on another card and day.

Other cold intervals rest on rows that members never saw, of the cards and days that nets learned from. Rows of another
day (`studies.another_day`) say how much wider they must be: the factor on the multiple that holds 90 % of the rows of
each GPU model, the larger of the two; never narrower, since these are few shapes. What the factor of one model, H100 or
H200, holds of the other's rows is printed: the other is then a card, a day and shapes that settled nothing. Rows of
calls with other rows, and heads of widths without, are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.another_day_cases import CARDS
from pipewave.calls.families import CLASSES
from pipewave.kernels.attention.family import DECODE, PREFILL
from pipewave.kernels.gemm.family import NET_OF
from pipewave.measure.row_files import rows
from pipewave.nets.calibration.corrections import suspended
from pipewave.nets.weights_metadata import BASES
from studies.another_day import PLACE, SECOND, WIDTHS, answered, known
from studies.card_blind import DATA, phase
from train.cards import WEIGHTS, read, write
from train.intervals import LEVEL
from train.two_levels import weighted_quantile

PROTOCOL = "cold"
BASIS = f"{BASES[0]}|{PROTOCOL}"
Floats = NDArray[np.float64]
Row = dict[str, Any]
Needed = Mapping[str, Floats]  # by GPU model: the factor that each row needs


def net_of(case: Mapping[str, Any]) -> str:
    """The net that answers a call of our rows."""
    if case["kernel"] == "gemm":
        return NET_OF[case["dtype"]]
    if case["kernel"] == "attention":
        return DECODE if phase(case) == "decode" else PREFILL
    return str(case["kernel"])


def concerned(row: Row, old: Mapping[str, Row]) -> bool:
    """A cold call without other rows, of one GPU, whose heads have a usual width."""
    case = row["case"]
    fresh = row["protocol"] == PROTOCOL and row["key"] not in old and "bytes" not in case and case["kernel"] in CLASSES
    return fresh and case.get("head_dim", WIDTHS[0]) in WIDTHS


def needed() -> dict[str, dict[str, Floats]]:
    """By net and GPU model, on both machines where there are two."""
    found: dict[str, dict[str, list[Floats]]] = defaultdict(lambda: defaultdict(list))
    for card in CARDS:
        old = known(card)
        for second in SECOND.get(card, ("",)):
            groups: dict[str, list[Row]] = defaultdict(list)
            for row in rows(DATA / card.lower() / PLACE / second):
                if concerned(row, old):
                    groups[net_of(row["case"])].append(row)
            for net, some in groups.items():
                found[net][card].append(_factors(card, some))
    return {net: {card: np.concatenate(parts) for card, parts in cards.items()} for net, cards in found.items()}


def _factors(card: str, some: list[Row]) -> Floats:
    with suspended():
        told = answered(card, some, PROTOCOL)
    error = np.abs(np.log([row["latency_us"] for row in some] / told.latency_us))
    return np.asarray(error / np.log(told.high_us / told.latency_us))


def factor(of: Needed) -> float:
    """What holds LEVEL of the rows of every GPU model; at least 1."""
    return max(1.0, *(weighted_quantile(one, np.ones(len(one)), LEVEL) for one in of.values()))


def report(net: str, of: Needed) -> str:
    """Rows, shares inside now, the factor, and what one model's factor holds of the other's rows."""
    inside = {card: round(100 * float((one <= 1.0).mean()), 1) for card, one in of.items()}
    nested = {
        card: round(100 * float((one <= factor({name: of[name] for name in of if name != card})).mean()), 1)
        for card, one in of.items()
    }
    held = {card: round(100 * float((one <= factor(of)).mean()), 1) for card, one in of.items()}
    return f"{net}: inside {inside}, factor {factor(of):.2f}, then {held}; by the other model's factor {nested}"


def update(net: str, by: float) -> None:
    """Widen the cold interval of a card by a factor."""
    path = WEIGHTS / f"{net}.json"
    card = read(path)
    usual = card["intervals"][BASIS]
    card["intervals"][BASIS] = usual | {
        name: round(usual[name] * by, 4) for name in ("multiple", "most") if name in usual
    }
    write(path, card)


def settled(*, write: bool) -> Iterator[str]:
    """A line a net."""
    for net, of in sorted(needed().items()):
        yield report(net, of)
        if write and factor(of) > 1.0:
            update(net, factor(of))


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.another_day", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the factors into the cards that ship")
    print(*settled(write=parser.parse_args(argv).write), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
