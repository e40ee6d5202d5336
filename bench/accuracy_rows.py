"""`python -m bench.accuracy_rows`: cut the held-out rows that the package ships out of data/measured/h200."""

from __future__ import annotations

from pathlib import Path

from pipewave.evaluate.rows import GPU, cut, shipped_folder

MEASURED = Path(__file__).resolve().parents[1] / "data" / "measured" / GPU.lower()

if __name__ == "__main__":
    target = shipped_folder() / GPU.lower()
    rows = cut(MEASURED, target)
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{rows} rows, {size / 1e3:.0f} kB in {target.name}")
