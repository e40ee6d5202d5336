"""Assemble the data set of a card: `python -m lab.card_rows FOLDER --rested STORE... [--loaded STORE...] ...`.

FOLDER gets what training, accuracy and calibration read: every row of the *rested* stores, taken in bursts of a dozen
calls with a rest after each, and of the *loaded* ones, taken 64 calls at a time, those that were not taken again (other
protocols, other flushes). FOLDER/loaded keeps the cold rows of the loaded stores, for the study of the clock and of
what two runs differ by; FOLDER/ragged the plan of that name; FOLDER/repeats/NAME the second measurements of a run
(`--repeat`), or a whole run once more (`--again`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.pack import pack
from pipewave.files import store

Row = dict[str, Any]
Named = Sequence[tuple[str, Path]]


@dataclass(frozen=True, slots=True)
class Sources:
    """Stores by what they hold; `repeats` and `again` carry the name of their folder."""

    rested: Sequence[Path]
    loaded: Sequence[Path] = ()
    ragged: Sequence[Path] = ()
    repeats: Named = ()
    again: Named = ()


def is_cold(row: Row) -> bool:
    """A first measurement under `cold` with L2 flushed by writing."""
    return row["protocol"] == "cold" and row.get("flush", "write") == "write" and not row.get("repeat")


def is_first(row: Row) -> bool:
    """Any protocol, measured for the first time."""
    return not row.get("repeat")


def is_repeat(row: Row) -> bool:
    """A second measurement of a call in the same plan."""
    return bool(row.get("repeat"))


def select(stores: Iterable[Path], wanted: Callable[[Row], bool], target: Path) -> dict[str, int]:
    """Pack the successful rows that are wanted, the last one of a key; bytes by file."""
    records = [record for path in stores for record in store.read(path).records]
    kept = [r for r in records if r["t"] != "row" or (r["status"] == "ok" and wanted(r))]
    with tempfile.TemporaryDirectory() as folder, store.Store(Path(folder) / "rows") as merged:
        merged.extend(kept)
        return pack(merged.path, target)


def assemble(folder: Path, sources: Sources) -> dict[str, int]:
    """Write all parts; bytes by part."""
    parts = {
        "": select([*sources.loaded, *sources.rested], is_first, folder),
        "loaded": select(sources.loaded, is_cold, folder / "loaded"),
        "ragged": select(sources.ragged, is_first, folder / "ragged"),
    }
    for named, wanted in ((sources.repeats, is_repeat), (sources.again, is_first)):
        for name in dict.fromkeys(name for name, _ in named):
            stores = [path for other, path in named if other == name]
            parts[f"repeats/{name}"] = select(stores, wanted, folder / "repeats" / name)
    return {name: sum(sizes.values()) for name, sizes in parts.items() if sizes}


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.card_rows", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rested", type=Path, nargs="*", default=[])
    parser.add_argument("--loaded", type=Path, nargs="*", default=[])
    parser.add_argument("--ragged", type=Path, nargs="*", default=[])
    parser.add_argument("--repeats", type=_named, nargs="*", default=[], help="NAME=STORE; a name may come twice")
    parser.add_argument("--again", type=_named, nargs="*", default=[], help="NAME=STORE")
    options = vars(parser.parse_args(argv))
    folder = options.pop("folder")
    for name, size in assemble(folder, Sources(**options)).items():
        print(f"{folder.name}/{name}: {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
