"""`python -m qa.chaos [--json FILE] [--only PART]`: every part of `make chaos`, its figures in one file.

A part that is run alone replaces its own figures in the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qa import monotone
from qa.chaos import flips, inputs, kills, memory, silent, users

PAIRS, OUT = 20_000, 0.002  # of the pairs: out of order by more than 2 %, where rows of the GPU decide


def ordered() -> dict[str, Any]:
    """Pairs of which one cannot be faster."""
    rows = monotone.table(PAIRS, seed=5)
    specs = [row for row in rows if row["change"] in monotone.LESS]
    of_specs = {f"{name}_of_specs": sum(row[name] for row in specs) for name in monotone.COUNTS[:3]}
    return {name: sum(row[name] for row in rows) for name in monotone.COUNTS} | of_specs


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "inputs": lambda: inputs.run(46_000, 9, list(inputs.AREAS)),
    "flips": lambda: flips.run(5_000, 7),
    "order": ordered,
    "kills": lambda: kills.run(300, 3),
    "users": lambda: users.run(200, 30.0),
    "memory": lambda: memory.run(20_000, 7),
    "silent": lambda: silent.run(),
}
HOLDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "inputs": lambda found: not inputs.failed(found),
    "flips": lambda found: bool(found["noticed"] == found["flips"]),
    "order": lambda found: bool(
        found["out_of_order"] == found["out_of_order_measured"] <= OUT * found["pairs"]
        and not found["out_of_order_of_specs"]
    ),
    "kills": lambda found: all(one["records_seen"] and not one["lost"] for one in found.values()),
    "users": lambda found: bool(not found["refused"] and found["p99_ms"] <= 500),
    "memory": lambda found: bool(found["peak_mib"] <= memory.MOST_MIB),
    "silent": lambda found: not found["silent"],
}


def main() -> int:
    """Run the parts; 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", action="append", choices=sorted(PARTS))
    options = parser.parse_args()
    found = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for name in options.only or PARTS:
        found[name] = PARTS[name]() | {}
        found[name]["holds"] = HOLDS[name](found[name])
        print(f"{name}: {'holds' if found[name]['holds'] else 'DOES NOT HOLD'}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(found[name]["holds"] for name in options.only or PARTS) else 1


if __name__ == "__main__":
    sys.exit(main())
