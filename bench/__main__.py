"""Speed and size of pipewave on this machine, as a table (and JSON with --json FILE): `python -m bench`."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

from bench.speed import measure_all


def main() -> None:
    """Measure everything and print it beside the bar each figure has to meet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a look")
    args = parser.parse_args()
    figures = measure_all(scale=0.1 if args.quick else 1.0)
    print(f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}")
    for figure in figures:
        mark = "ok  " if figure.met else "MISS"
        print(f"{mark} {figure.name:46} {figure.value:12,.1f} {figure.unit:8} bar {figure.sign} {figure.bar:,.0f}")
    if args.json:
        args.json.write_text(json.dumps([figure.to_dict() for figure in figures], indent=1) + "\n")


main()
