"""How much step times of an engine scatter around their mean: `python -m studies.step_jitter`.

Root mean square over cells of the samples' standard deviation over their mean, from the committed runs of vLLM on an
H200 and an H100 (`data/measured/*/engine`): each cell is one batch, stepped several times. `software/front.json` holds
it as `jitter`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

MEASURED = Path(__file__).resolve().parents[1] / "data" / "measured"
FEWEST = 3  # samples of a cell that counts


def scatter(files: Iterator[Path]) -> tuple[int, float]:
    """Cells, and the root mean square of their relative standard deviations."""
    cells = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    samples = [np.array(cell["samples_ms"]) for cell in cells if len(cell.get("samples_ms") or ()) >= FEWEST]
    each = np.array([one.std(ddof=1) / one.mean() for one in samples])
    return len(each), float(np.sqrt((each**2).mean()))


def main() -> None:
    """Print both."""
    cells, found = scatter(iter(sorted(MEASURED.glob("*/engine/*.jsonl"))))
    print(f"{cells} cells, steps scatter by {100 * found:.2f} % of their mean")


if __name__ == "__main__":
    main()
