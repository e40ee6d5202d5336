"""`python -m studies.card_blind H100`: errors on rows of a card that no net was trained on, by family.

Run once, with the weights from before the rows: writes studies/results/blind_h100.json, which the card's page shows.
The SM clock and the Triton configuration are not given, as a user does not know them. Of the H200, whose other rows
were trained on, only the plan `ragged` is new. The same weights are then calibrated with the rows, as a user would with
those of a card: `after` is the error on groups left out.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.calibrate.run import calibrate
from pipewave.calls.families import CLASSES, from_dict
from pipewave.measure.row_files import rows

ROOT = Path(__file__).resolve().parents[1]
DATA, RESULTS = ROOT / "data" / "measured", ROOT / "studies" / "results"
PARTS = {"H100": ("", "ragged"), "H200": ("ragged",)}
Row = dict[str, Any]


def phase(case: Mapping[str, Any]) -> str:
    """`decode`, `prefill`, `mixed` (decodes beside prompts) or `chunked`, by what the requests add and hold."""
    new, held = case["q_lens"], case["kv_lens"]
    if max(new) == 1:
        return "decode"
    if new == held:
        return "prefill"
    return "mixed" if min(new) == 1 else "chunked"


def name(row: Row, part: str) -> str:
    """Family, type and implementation; of attention the phase, and whether it is of the plan `ragged`."""
    case = row["case"]
    kind = f" {phase(case)}" if case["kernel"] == "attention" else ""
    return f"{case['kernel']}{kind} {case.get('dtype', 'bf16')} {row['impl']}" + f", {part}" * bool(part)


def usable(found: Iterable[Row]) -> Iterator[Row]:
    """First measurements under `cold`, L2 flushed by writing, of kernels that predictions exist for."""
    for row in found:
        if row["protocol"] == "cold" and row.get("flush", "write") == "write" and row["case"]["kernel"] in CLASSES:
            yield row


def scored(card: str, some: list[Row]) -> dict[str, Any]:
    """Mean and median error, bias, coverage of the 90 % interval, and how many rows are below the floor."""
    answers = pw.predict([from_dict(r["case"] | {"stack": r["stack"], "impl": r["impl"]}) for r in some], card)
    measured = np.array([row["latency_us"] for row in some])
    error = answers.latency_us / measured - 1.0
    inside = (answers.low_us <= measured) & (measured <= answers.high_us)
    shares = {"MAPE %": np.abs(error).mean(), "median %": np.median(np.abs(error)), "bias %": error.mean()}
    out = {key: f"{100 * share:.2f}" for key, share in (shares | {"in 90 % interval": inside.mean()}).items()}
    return out | {"below floor": str(int((measured < answers.floor_us).sum()))}


def blind(card: str) -> list[dict[str, Any]]:
    """One row a family."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for part in PARTS[card]:
        for row in usable(rows(DATA / card.lower() / part)):
            groups[name(row, part)].append(row)
    return [{"family": key, "rows": f"{len(some):,}"} | scored(card, some) for key, some in sorted(groups.items())]


def calibrated(card: str) -> list[dict[str, Any]]:
    """What `pipewave calibrate` makes of the cold rows of a card's first part."""
    with tempfile.TemporaryDirectory() as folder:
        report = calibrate(DATA / card.lower() / PARTS[card][0], card, out=Path(folder) / "card.safetensors")
    shown = ("net", "rows", "groups", "MAPE before %", "MAPE after %", "interval")
    return [{name: line[name] for name in shown} for line in report.table() if line["protocol"] == "cold"]


def weights() -> str:
    """Eight hex digits of the shipped weights."""
    folder = resources.files("pipewave") / "data" / "weights"
    files = sorted((file for file in folder.iterdir() if file.is_file()), key=lambda file: file.name)
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


if __name__ == "__main__":
    for card in sys.argv[1:]:
        found = {"card": card, "weights": weights(), "rows": blind(card), "calibrated": calibrated(card)}
        (RESULTS / f"blind_{card.lower()}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found, indent=1))
