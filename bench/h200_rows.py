"""`python -m bench.h200_rows FOLDER --rested STORE... --loaded STORE... --repeat NAME=STORE...`: assemble the data set.

FOLDER gets what training, accuracy and calibration read: every row of the *rested* stores, taken in bursts of a dozen
calls with a rest after each, and of the *loaded* ones, taken 64 calls at a time, those that were not taken again (other
protocols, other flushes). FOLDER/loaded keeps the cold rows of the loaded stores, for the study of the clock and of
what two runs differ by; FOLDER/repeats/NAME the second measurements of a run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pipewave.files import store
from pipewave.measure.pack import pack

Row = dict[str, Any]


def is_cold(row: Row) -> bool:
    """A first measurement under `cold` with L2 flushed by writing."""
    return row["protocol"] == "cold" and row.get("flush", "write") == "write" and not row.get("repeat")


def select(stores: Iterable[Path], wanted: Callable[[Row], bool], target: Path) -> dict[str, int]:
    """Pack the successful rows that are wanted, the last one of a key; bytes by file."""
    records = [record for path in stores for record in store.read(path).records]
    kept = [r for r in records if r["t"] != "row" or (r["status"] == "ok" and wanted(r))]
    with tempfile.TemporaryDirectory() as folder, store.Store(Path(folder) / "rows") as merged:
        merged.extend(kept)
        return pack(merged.path, target)


def assemble(
    folder: Path, rested: Sequence[Path], loaded: Sequence[Path], repeats: Sequence[tuple[str, Path]]
) -> dict[str, int]:
    """Write all parts; bytes by part."""
    parts = {
        "": select([*loaded, *rested], lambda row: not row.get("repeat"), folder),
        "loaded": select(loaded, is_cold, folder / "loaded"),
    }
    for name in dict.fromkeys(name for name, _ in repeats):
        stores = [path for repeat, path in repeats if repeat == name]
        parts[f"repeats/{name}"] = select(stores, lambda row: bool(row.get("repeat")), folder / "repeats" / name)
    return {name: sum(sizes.values()) for name, sizes in parts.items()}


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.h200_rows", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rested", type=Path, nargs="+", required=True)
    parser.add_argument("--loaded", type=Path, nargs="*", default=[])
    parser.add_argument("--repeat", type=_named, nargs="*", default=[], help="NAME=STORE; a name may come twice")
    options = parser.parse_args(argv)
    for name, size in assemble(options.folder, options.rested, options.loaded, options.repeat).items():
        print(f"{options.folder.name}/{name}: {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
