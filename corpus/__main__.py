"""`python -m corpus --data DIR`: read every table, print row counts, and check or write the lock file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pandas as pd

from corpus import FAMILIES, data_dir, load, lock, rules, training_rows

DROPPED = Path(__file__).with_name("dropped.json")
UNTUNED = (  # why series of experts are dropped
    "all numbers of tokens of one sharding and routing of a layer take 1.8 to 6 times what the layer's other shardings "
    "do beside the estimate, or over 1.2 times what a routing that loads ranks less evenly takes, or the same on "
    "a card that is no faster: a tenth of the series on B200, H100 and H200, a twentieth on GB200, and of kernels that "
    "nothing tunes 1 in 200; 1.3.0rc10 and 1.3.0rc20 are slow on others: the tuning before the measurement failed"
)


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows per protocol, stack and GPU × dtype."""
    return rows.groupby(["protocol", "gpu", "stack", "dtype"], observed=True).size().unstack(fill_value=0)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m corpus", description=__doc__)
    parser.add_argument("--data", help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only these families")
    parser.add_argument("--newest", action="store_true", help="count the rows that training uses")
    parser.add_argument(
        "--dropped", action="store_true", help="count the rows that each rule of ours drops, and keep that"
    )
    parser.add_argument("--lock", choices=("check", "write"), default="check", help="compare with the lock or renew it")
    options = parser.parse_args(argv)
    folder = data_dir(options.data)
    if options.dropped:
        return _dropped(folder)
    for family in options.family or FAMILIES:
        rows = (training_rows if options.newest else load)(family, folder)
        print(f"\n{family}: {len(rows):,} rows, {int(rows['flagged'].sum()):,} flagged")
        print(counts(rows).to_string())
    return _lock(options.lock, folder)


def _dropped(folder: Path) -> int:
    """Rows dropped by our own rules, rule by rule, beside the code."""
    own = json.loads(rules.OWN.read_text(encoding="utf-8"))
    counts = dict.fromkeys((rule["id"] for rule in own), 0)
    for file in sorted(folder.glob("aiconfigurator/*/*/*/*/*_perf.parquet")):
        gpu, _, framework, version = file.parts[-5:-1]
        table = file.name.removesuffix("_perf.parquet")
        known = rules.concerning(folder, table, gpu, framework, version)
        for rule in (rule for rule in known if rule["id"] in counts):
            counts[rule["id"]] += rules.dropped(pd.read_parquet(file), rule)
    found = [{"rule": rule["id"], "rows dropped": counts[rule["id"]], "evidence": rule["evidence"]} for rule in own]
    found.append(_untuned(folder))
    DROPPED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(pd.DataFrame(found).to_string())
    return 0


def _untuned(folder: Path) -> dict[str, str | int]:
    """The same of series of experts that ran untuned kernels, which no name tells."""
    from train.nets.fused_moe import untuned

    slow = untuned(load("fused_moe", folder, sources=("aiconfigurator",)))
    return {"rule": "moe-trtllm-untuned-series", "rows dropped": int(slow.sum()), "evidence": UNTUNED}


def _lock(action: str, folder: Path) -> int:
    if action == "write":
        lock.write(folder)
        return 0
    for line in (differences := lock.differences(folder)):
        print(f"differs from the lock: {line}", file=sys.stderr)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
