"""Calls of shapes without rows, answered first and measured then: `lab.another_day_cases` draws them.

`python -m studies.another_day answer DIR` writes data/measured/CARD/another_day/answers.json for every cases file of
DIR, before anything is measured. `python -m studies.another_day keep CARD STORE...` packs the rows beside the answers.
`python -m studies.another_day score` compares both and writes studies/results/another_day.json: errors, bias and the
share inside the 90 % interval of what was answered before, and of what today's weights answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pipewave as pw
from lab.another_day_cases import CARDS, PLANS
from lab.card_rows import is_first, select
from pipewave.calls.families import from_dict
from pipewave.measure.plan import Job, from_file
from pipewave.measure.row_files import environments, rows
from pipewave.measure.runner import stack_version
from pipewave.prediction.answers import Predictions
from studies.card_blind import DATA, RESULTS, phase, weights

PLACE = "another_day"
OUT = RESULTS / f"{PLACE}.json"
WIDTHS = (64, 128)  # of heads, that attention has other rows of
MIB = 1 << 20
SECOND = {"H200": ("", "second", "third", "fourth", "fifth")}  # folders of rows of a card, each of another machine
LATENCIES = ("latency_us", "low_us", "high_us")
Row = dict[str, Any]
Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]


def answered(card: str, some: Sequence[Row], protocol: str) -> Predictions:
    """Predictions for rows or jobs of one protocol, without SM clock and Triton configuration."""
    calls = [from_dict(row["case"] | {"stack": row["stack"], "impl": row["impl"]}) for row in some]
    return pw.predict(calls, card, protocol=protocol)


def answers(card: str, jobs: Iterable[Job]) -> dict[str, Any]:
    """Columns of answers by key, and the weights that gave them."""
    environment = next(iter(environments(DATA / card.lower()).values()))
    groups: dict[str, list[Row]] = defaultdict(list)
    for job in jobs:
        groups[job.protocol].append(job.fields() | {"stack": stack_version(job, environment)})
    columns: dict[str, list[Any]] = defaultdict(list)
    for protocol, some in groups.items():
        found = answered(card, some, protocol)
        columns["key"] += [row["key"] for row in some]
        for name in (*LATENCIES, "floor_us"):
            columns[name] += [float(f"{value:.5g}") for value in getattr(found, name)]
    return {"weights": weights(), **columns}


def known(card: str) -> dict[str, Row]:
    """Rows of the card by key, from other days."""
    return {row["key"]: row for plan in PLANS for row in rows(DATA / card.lower() / plan)}


def family(case: Mapping[str, Any]) -> str:
    """Family with type; of attention the phase, and whether its heads are of a width without other rows."""
    kernel = str(case["kernel"])
    if kernel == "attention":
        return f"attention {phase(case)}" + ("" if case["head_dim"] in WIDTHS else ", other head widths")
    if "bytes" in case:
        return f"{kernel} {'from' if case['bytes'] >= 4 * MIB else 'below'} 4 MiB"
    return kernel if "dim" in case else f"{kernel} {case.get('dtype', 'bf16')}"


def score(measured: Floats, told: Columns) -> dict[str, float]:
    """Rows, mean absolute and median error, bias and the share inside the interval, in %."""
    error = told["latency_us"] / measured - 1.0
    inside = (told["low_us"] <= measured) & (measured <= told["high_us"])
    means = {"mape": np.abs(error).mean(), "median": np.median(np.abs(error)), "bias": error.mean()}
    shares = means | {"inside": inside.mean()}
    return {"rows": len(measured)} | {name: round(100 * float(value), 2) for name, value in shares.items()}


def tables(card: str, second: str = "") -> list[dict[str, Any]]:
    """One line a family, protocol and kind of call, of answers given before and of today's; `second` another card."""
    folder = DATA / card.lower() / PLACE
    told = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    told = {name: values if name == "key" else np.array(values) for name, values in told.items()}
    place, old = {key: i for i, key in enumerate(told["key"])}, known(card)
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows(folder / second):
        kind = "known" if row["key"] in old else "new"
        groups[family(row["case"]), row["protocol"], kind].append(row)
    lines = []
    for (name, protocol, kind), some in sorted(groups.items()):
        at = [place[row["key"]] for row in some]
        line = {"card": f"{card} {second}".strip(), "family": name, "protocol": protocol, "calls": kind}
        lines.append(line | _compared(card, some, {column: told[column][at] for column in LATENCIES}, old))
    return lines


def _compared(card: str, some: Sequence[Row], told: Columns, old: Mapping[str, Row]) -> dict[str, Any]:
    """Both scores of rows of one protocol, and of rows that the card has twice how far apart they are."""
    measured = np.array([row["latency_us"] for row in some])
    now = answered(card, some, some[0]["protocol"])
    found = {"before": score(measured, told), "now": score(measured, {name: getattr(now, name) for name in LATENCIES})}
    earlier = [old[row["key"]]["latency_us"] for row in some if row["key"] in old]
    return found | ({"repeat": _apart(measured, np.array(earlier))} if earlier else {})


def _apart(measured: Floats, earlier: Floats) -> dict[str, float]:
    off = measured / earlier - 1.0
    return {"mape": round(100 * float(np.abs(off).mean()), 2), "bias": round(100 * float(off.mean()), 2)}


def page_rows() -> list[dict[str, str]]:
    """For reading: a line a family and protocol of new calls, for each card the error before, now, and the share inside
    now.
    """
    found: dict[str, dict[str, str]] = {}
    lines = [line for line in json.loads(OUT.read_text(encoding="utf-8")) if line["calls"] == "new"]
    cards = dict.fromkeys(line["card"] for line in lines)
    for line in sorted(lines, key=lambda line: str(line["protocol"])):
        name = line["family"] + ("" if line["protocol"] == "cold" else f", `{line['protocol']}`")
        cells, before, now = (
            found.setdefault(name, {"family": name} | dict.fromkeys(cards, "–")),
            line["before"],
            line["now"],
        )
        cells[line["card"]] = f"{before['mape']:.1f}; {now['mape']:.1f}; {now['inside']:.0f} % of {now['rows']}"
    return list(found.values())


def answer(folder: Path) -> None:
    """Answer every cases file of a folder, before it is measured."""
    found: dict[str, list[Job]] = defaultdict(list)
    for file in sorted(folder.glob("*.jsonl")):
        found[file.name.split(".")[0]] += from_file(file)
    for card, jobs in found.items():
        target = DATA / card / PLACE / "answers.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(answers(card.upper(), jobs)) + "\n", encoding="utf-8")
        print(f"{target}: {len(jobs)} calls")


def keep(card: str, stores: Sequence[Path], name: str) -> None:
    """Pack the rows of stores beside the answers, those of a second card into a folder of their own."""
    print(select(stores, is_first, DATA / card.lower() / PLACE / name))


def show(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print a line each."""
    for line in lines:
        before, now = line["before"], line["now"]
        print(f"{line['card']:11} {line['protocol']:5} {line['calls']:5} {line['family']:40} {before['rows']:4d}"
              f" before {before['mape']:6.2f} {before['bias']:+7.2f} {before['inside']:6.1f}"
              f" now {now['mape']:6.2f} {now['bias']:+7.2f} {now['inside']:6.1f} {line.get('repeat', '')}")  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies.another_day", description=__doc__)
    do = parser.add_subparsers(dest="do", required=True)
    do.add_parser("answer").add_argument("folder", type=Path)
    keeping = do.add_parser("keep")
    keeping.add_argument("card")
    keeping.add_argument("stores", type=Path, nargs="+")
    keeping.add_argument("--as", dest="name", default="", help="subfolder, of a second card")
    do.add_parser("score")
    options = parser.parse_args(argv)
    if options.do == "answer":
        answer(options.folder)
    elif options.do == "keep":
        keep(options.card, options.stores, options.name)
    else:
        lines = [line for card in CARDS for second in SECOND.get(card, ("",)) for line in tables(card, second)]
        OUT.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
        show(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
