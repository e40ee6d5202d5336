"""How long sending a prompt's cache holds up a prefill scheduler of SGLang: `python -m train.published_send`.

Published disaggregated rows of SGLang are simulated with each time of a grid in place of the shipped one
(`published/handover.yaml`), everything else as shipped. By what joins the pools and how prefill engines are
cut, the time with the least mean error of groups is printed, and each group's error with the time that the other groups
of its kind would take: errors are mean absolute errors of TTFT and TPOT, as `studies.published` has them, groups alike.
The first waves of a run's requests are simulated (`WAVES`). `--seconds` ends the command when so many have passed; the
same command goes on.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from pipewave.models import load
from pipewave.published.answers import setup_of
from pipewave.published.cases import from_dict
from pipewave.published.published_pools import launched, send_ms
from pipewave.simulate.report import summary
from studies.published_rows import Row, corpus, read
from studies.published_slices import resumed

GRID_MS = (0, 8, 15, 30, 45, 60, 90, 120, 150, 180)
WAVES = 4  # requests simulated for each one in flight
ENGINE = "sglang"
ERRORS = Path(".cache/published_send.jsonl")
Errors = dict[int, float]  # by milliseconds: of a row or a group


def main() -> None:
    """Simulate, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--every", type=int, default=1, help="only one row in so many of a group")
    parser.add_argument("--only", default="", help="only rows of groups with this word")
    parser.add_argument("--errors", type=Path, default=ERRORS, help="errors of rows; the same command goes on")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of one slice")
    options = parser.parse_args()
    rows = [
        row for row in read(options.data or corpus()) if row.group.engine == ENGINE and "disaggregated" in row.needs
    ]
    asked = {row.id: row for row in sorted(rows, key=_key)[:: options.every]}
    asked = {name: row for name, row in asked.items() if not row.generated and options.only in _key(row)}
    options.errors.parent.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + options.seconds
    known = resumed(options.errors, asked, lambda name: _simulated(asked[name]), until_s)
    if left := len(asked.keys() - known.keys()):
        sys.exit(f"{left} of {len(asked)} rows are left: give the same command again")
    kinds: dict[tuple[str, str], dict[str, list[Errors]]] = {}
    for name, row in asked.items():
        way, errors = known[name]["way"], {int(ms): error for ms, error in known[name]["errors"].items()}
        kinds.setdefault(tuple(way), {}).setdefault(_key(row), []).append(errors)
    for way, groups in kinds.items():
        show(way, {name: joined(errors) for name, errors in groups.items()})


def _key(row: Row) -> str:
    return f"{row.group.gpu} {row.group.precision}"


def _simulated(row: Row) -> dict[str, Any]:
    """A row's error at every time of the grid, and what its pools' caches cross."""
    case = from_dict(row.case)
    traffic = case.traffic()
    setup, _ = setup_of(case, traffic)
    found = launched(load(case.model), case.gpu, setup, case.version or "", case.tp, traffic)
    assert found is not None, row.id
    pools = found[0]
    traffic = traffic.first(min(len(traffic), WAVES * (traffic.concurrency or len(traffic))))
    errors = {}
    for ms in GRID_MS:
        seen = summary(replace(pools, send_s=1e-3 * ms).record(traffic), traffic, pools.gpus)
        errors[ms] = mean(abs(seen[f"{name}_mean_ms"] / row.measured[f"{name}_ms"] - 1.0) for name in ("ttft", "tpot"))
    return {"id": row.id, "way": pools.way, "errors": errors}


def joined(rows: Sequence[Errors]) -> Errors:
    """Means over rows or groups."""
    return {ms: mean(one[ms] for one in rows) for ms in GRID_MS}


def best_ms(groups: Sequence[Errors]) -> int:
    """The time of the grid with the least mean error of groups."""
    whole = joined(groups)
    return min(GRID_MS, key=lambda ms: whole[ms])


def show(way: tuple[str, str], groups: Mapping[str, Errors]) -> None:
    """One line a kind of hand-over and one for each of its groups."""
    shipped = send_ms(ENGINE, *way)
    print(f"{' '.join(way):24} best {best_ms(list(groups.values()))} ms, shipped {shipped:.0f}")
    for name, own in groups.items():
        others = [one for other, one in groups.items() if other != name]
        said = best_ms(others) if others else 0
        print(
            f"  {name:22} own {best_ms([own])} ms ({100 * own[best_ms([own])]:.0f} %), others say {said} ms "
            f"({100 * own[said]:.0f} %), without {100 * own[0]:.0f} %"
        )


if __name__ == "__main__":
    main()
