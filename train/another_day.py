"""`python -m train.another_day [--write]`: our own intervals that hold shapes without rows on another card and day.

Other intervals rest on rows that members never saw, of the cards and days that nets learned from. Rows of another
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

COLD, GRAPH = "cold", "graph"
OWN = ("vllm-0.22.1", "torch-2.11")  # what our rows ran
WIDENED = {COLD: (f"{BASES[0]}|{COLD}",), GRAPH: tuple(f"{BASES[0]}|{GRAPH}|{stack}" for stack in OWN)}
Floats = NDArray[np.float64]
Row = dict[str, Any]
Needed = Mapping[str, Floats]  # by GPU model: the factor that each row needs


def net_of(case: Mapping[str, Any]) -> str:
    """The net that answers a call of our rows."""
    if case["kernel"] == "attention":
        return DECODE if phase(case) == "decode" else PREFILL
    return NET_OF[case["dtype"]] if case["kernel"] == "gemm" else str(case["kernel"])


def concerned(row: Row, old: Mapping[str, Row], protocol: str) -> bool:
    """A call without other rows, of one GPU, whose heads have a usual width."""
    case = row["case"]
    fresh = row["protocol"] == protocol and row["key"] not in old and "bytes" not in case and case["kernel"] in CLASSES
    return fresh and case.get("head_dim", WIDTHS[0]) in WIDTHS


def needed(protocol: str = COLD) -> dict[str, dict[str, Floats]]:
    """By net and GPU model, on both machines where there are two."""
    found: dict[str, dict[str, list[Floats]]] = defaultdict(lambda: defaultdict(list))
    for card in CARDS:
        old = known(card)
        for second in SECOND.get(card, ("",)):
            groups: dict[str, list[Row]] = defaultdict(list)
            for row in rows(DATA / card.lower() / PLACE / second):
                if concerned(row, old, protocol):
                    groups[net_of(row["case"])].append(row)
            for net, some in groups.items():
                found[net][card].append(_factors(card, some, protocol))
    return {net: {card: np.concatenate(parts) for card, parts in cards.items()} for net, cards in found.items()}


def _factors(card: str, some: list[Row], protocol: str) -> Floats:
    with suspended():
        told = answered(card, some, protocol)
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


def update(net: str, protocol: str, by: float) -> None:
    """Widen the interval of a card by a factor."""
    path = WEIGHTS / f"{net}.json"
    card, all_gpus = read(path), f"{BASES[0]}|{protocol}"
    for name in WIDENED[protocol]:
        usual = card["intervals"].get(name) or card["intervals"].get(all_gpus, card["intervals"][BASES[0]])
        wider = {part: round(usual[part] * by, 4) for part in ("multiple", "most") if part in usual}
        card["intervals"][name] = usual | wider
    write(path, card)


def settled(*, write: bool) -> Iterator[str]:
    """A line a net and protocol."""
    for protocol in WIDENED:
        for net, of in sorted(needed(protocol).items()):
            yield f"{protocol}, {report(net, of)}"
            if write and factor(of) > 1.0:
                update(net, protocol, factor(of))


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.another_day", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the factors into the cards that ship")
    print(*settled(write=parser.parse_args(argv).write), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
