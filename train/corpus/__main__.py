"""`python -m train.corpus --data DIR`: read every table, print row counts, and check or write the lock file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from train.corpus import FAMILIES, data_dir, load, lock, training_rows


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows per protocol, stack and GPU × dtype."""
    return rows.groupby(["protocol", "gpu", "stack", "dtype"], observed=True).size().unstack(fill_value=0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m train.corpus", description=__doc__)
    parser.add_argument("--data", help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only these families")
    parser.add_argument("--newest", action="store_true", help="count the rows that training uses")
    parser.add_argument("--lock", choices=("check", "write"), default="check", help="compare with the lock or renew it")
    options = parser.parse_args(argv)
    folder = data_dir(options.data)
    for family in options.family or FAMILIES:
        rows = (training_rows if options.newest else load)(family, folder)
        print(f"\n{family}: {len(rows):,} rows, {int(rows['flagged'].sum()):,} flagged")
        print(counts(rows).to_string())
    return _lock(options.lock, folder)


def _lock(action: str, folder: Path) -> int:
    if action == "write":
        lock.write(folder)
        return 0
    for line in (differences := lock.differences(folder)):
        print(f"differs from the lock: {line}", file=sys.stderr)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
