"""Who leaves what on the table: measured rows against the ceiling, by GPU, family, stack and implementation.

`python -m studies.stack_gaps data/measured/h200 --gpu H200` prints how stacks compare and the worst-served shapes of
rows that `pipewave.measure` wrote; `compare_stacks` and `worst` take any rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.calls.families import Call, from_dict
from pipewave.errors import BadInput
from pipewave.physics.demand import Array
from pipewave.prediction.api import predict

FAR = 1.10  # rows slower than the ceiling by more than a tenth


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of one call; `call` names the stack and implementation that ran."""

    call: Call
    gpu: str
    protocol: str
    latency_us: float


@dataclass(frozen=True, slots=True)
class Standing:
    """How one implementation stands to the ceiling. `ratio` is measured / ceiling: 1 at the ceiling, more is slower.

    `slower_share`: rows above the ceiling, 0.8 over all implementations where it is calibrated.
    """

    gpu: str
    family: str
    protocol: str
    stack: str
    impl: str
    rows: int
    slower_share: float
    far_share: float
    median_ratio: float
    p90_ratio: float


def ratios(rows: Sequence[Row]) -> Array:
    """measured / ceiling of each row, [row]."""
    found = np.empty(len(rows))
    together: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        together.setdefault((row.gpu, row.protocol), []).append(index)
    for (gpu, protocol), members in together.items():
        answers = predict([rows[i].call for i in members], gpu, protocol=protocol)
        found[members] = np.array([rows[i].latency_us for i in members]) / answers.ceiling_us
    return found


def compare_stacks(rows: Sequence[Row], found: Array | None = None) -> list[Standing]:
    """Standings of all implementations, those that leave most on the table first. `found`: their ratios, if known."""
    found, together = ratios(rows) if found is None else found, dict[tuple[str, str, str, str, str], list[int]]()
    for index, row in enumerate(rows):
        software = (str(getattr(row.call, "stack", None) or ""), str(getattr(row.call, "impl", None) or ""))
        together.setdefault((row.gpu, row.call.kernel, row.protocol, *software), []).append(index)
    standings = []
    for key, members in together.items():
        own = found[members]
        slower, far = (float(np.mean(own > most)) for most in (1.0, FAR))
        half, most = map(float, np.quantile(own, (0.5, 0.9)))
        standings.append(Standing(*key, len(own), slower, far, half, most))
    return sorted(standings, key=lambda one: -one.median_ratio)


def worst(rows: Sequence[Row], count: int = 20) -> list[tuple[Row, float]]:
    """The rows with most time above the ceiling, with their ratio: the worst-served shapes."""
    found = ratios(rows)
    lost = np.array([row.latency_us for row in rows]) * (1.0 - 1.0 / found)
    return [(rows[i], float(found[i])) for i in np.argsort(-lost)[:count]]


def measured_rows(found: Iterable[Mapping[str, Any]], gpu: str) -> list[Row]:
    """Rows of `pipewave.measure` as calls; those of families that nothing predicts are left out."""
    rows = []
    for one in found:
        case = {name: value for name, value in one["case"].items() if value is not None}
        try:
            call = from_dict(case | {"stack": one["stack"], "impl": one["impl"]})
        except BadInput:  # a family measured as an example of streaming kernels
            continue
        if not one.get("flush"):
            rows.append(Row(call, gpu, one["protocol"], float(one["latency_us"])))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Print how stacks compare and the worst-served shapes of a folder of measured rows."""
    from pipewave.measure.row_files import rows as packed
    from pipewave.traces.entry import shape_text
    from pipewave.traces.report import describe

    parser = argparse.ArgumentParser(prog="python -m studies.stack_gaps", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--worst", type=int, default=20)
    options = parser.parse_args(argv)
    rows = measured_rows(packed(options.folder), options.gpu)
    say = sys.stdout.write
    say(
        f"{'family':16}{'protocol':10}{'stack':14}{'impl':22}{'rows':>7}{'slower':>8}{'>10%':>7}{'median':>8}{'p90':>7}\n"
    )
    for one in compare_stacks(rows):
        say(f"{one.family:16}{one.protocol:10}{one.stack:14}{one.impl:22}{one.rows:7}{one.slower_share:8.1%}")
        say(f"{one.far_share:7.1%}{one.median_ratio:8.2f}{one.p90_ratio:7.2f}\n")
    say("\nworst-served shapes, by time above the ceiling\n")
    for row, ratio in worst(rows, options.worst):
        call = describe(row.call)
        say(f"{row.latency_us:10.1f} µs {ratio:5.2f}× {row.call.kernel} {shape_text(call)} {call.get('impl', '')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
