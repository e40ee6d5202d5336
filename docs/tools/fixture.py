"""Make docs/fixtures/my-gpu.rows: a store as `pipewave measure` leaves it, with few rows of an H200 that never rested.

`python -m docs.tools.fixture` takes every k-th FP8 product with block scales of that run, whose clock was low.
"""

from __future__ import annotations

from typing import Any

from docs.tools.session import ROOT
from pipewave.files.store import Store
from pipewave.measure import environments, rows

SOURCE = ROOT / "data" / "measured" / "h200" / "loaded" / "gemm.json.gz"
TARGET = ROOT / "docs" / "fixtures" / "my-gpu.rows"
EVERY = 10


def main() -> None:
    """Write the store anew."""
    TARGET.unlink(missing_ok=True)
    chosen = [row for row in rows(SOURCE) if _wanted(row)][::EVERY]
    known = environments(SOURCE)
    with Store(TARGET) as store:
        store.extend({"t": "env"} | known[key] for key in sorted({row["env"] for row in chosen}))
        store.extend({"t": "row"} | {name: value for name, value in row.items() if name != "kernels"} for row in chosen)


def _wanted(row: dict[str, Any]) -> bool:
    return (row["protocol"], row["impl"], row["case"].get("dtype")) == ("cold", "cutlass", "fp8_block")


if __name__ == "__main__":
    main()
