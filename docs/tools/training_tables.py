"""`python -m docs.tools.training_tables`: what training took (docs/train.md) and AMD's corrections (docs/amd.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS, GENERATED = ROOT / "src" / "pipewave" / "data" / "weights", ROOT / "docs" / "generated"
AMD = ROOT / "studies" / "results" / "amd.json"  # of `python -m train.amd`


def training(weights: Path) -> str:
    """What each card that ships says of its training; a dash where it does not say."""
    lines = ["| net | rows | CPU or GPU | seconds | memory, MB | commit | data |", "|---|---:|---|---:|---:|---|---|"]
    for path in sorted(weights.glob("*.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        training = card.get("training", {})
        where = f"{training['device']}, {training['threads']} threads" if "threads" in training else "–"
        took = (f"{training.get(name, '–'):,}" if name in training else "–" for name in ("seconds", "peak_mb"))
        from_ = (f"`{training[name][:8]}`" if training.get(name) else "–" for name in ("commit", "corpus_lock_sha256"))
        lines.append(" | ".join((f"| {path.stem}", f"{card['rows']:,}", where, *took, *from_)) + " |")
    return "\n".join(lines) + "\n"


def corrections(content: Mapping[str, Any]) -> str:
    """Both tables of AMD's corrections, between the marks that the page includes them by."""
    parts = []
    for name, rows in content.items():
        head = list(rows[0])
        lines = [head, ["---"] * len(head), *([_cell(row[key]) for key in head] for row in rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"--8<-- [start:{name}]\n{table}\n--8<-- [end:{name}]\n")
    return "\n".join(parts)


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Write both."""
    (GENERATED / "training.md").write_text(training(WEIGHTS), encoding="utf-8")
    (GENERATED / "amd.md").write_text(corrections(json.loads(AMD.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
