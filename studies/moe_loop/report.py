"""Join the loop's times with predicted ceilings: `python -m studies.moe_loop.report [LOOP.jsonl] [--write]`. No GPU.

A layer is flagged where vLLM, with the configuration it picks itself (its file where it ships one, else its default),
takes longer than the ceiling that the shipped weights predict. Flagged or not, every layer is tuned and measured again.
`--write` makes `studies/results/moe_loop.json`, `docs/generated/moe_loop.md` and the figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from studies import rounded
from studies.moe_loop.figures import summary
from studies.moe_loop.layers import Layer, join, read
from studies.moe_loop.page import markdown, plot

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "data/measured/h200/moe_loop/layers.jsonl.gz"
RESULT, TABLES = ROOT / "studies/results/moe_loop.json", ROOT / "docs/generated/moe_loop.md"
FIGURE = ROOT / "docs/img/moe-loop.svg"


def write(of: Sequence[Layer], found: Mapping[str, Any]) -> None:
    """Write the figures, the flagged list with every layer's times, the tables and the plot."""
    lines = ",\n".join(json.dumps(rounded(asdict(layer) | {"flagged": layer.flagged}, 5)) for layer in of)
    RESULT.write_text(f'{{"summary": {json.dumps(found, indent=1)},\n"layers": [\n{lines}\n]}}\n')
    TABLES.write_text(markdown(found))
    plot(of, FIGURE)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loop", type=Path, nargs="?", default=ROWS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    of = join(read(options.loop))
    found = rounded(summary(of), 5)
    if options.write:
        write(of, found)
    sys.stdout.write(markdown(found) + json.dumps({name: found[name] for name in ("few_path", "errors")}) + "\n")


if __name__ == "__main__":
    main()
