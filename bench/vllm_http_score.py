"""Predictions of `serve` beside what vLLM's own client measured over HTTP on an H100 (rows of `bench.vllm_http`).

    python -m bench.vllm_http_score

Closed loops are predicted from their concurrency, and every level once more from its real arrivals.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured" / "h100" / "http"
FIGURES = ("ttft_ms", "tpot_ms", "output_tokens_per_s")
Row = dict[str, Any]


def levels(folder: Path = FOLDER) -> list[Row]:
    """Every measured level."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def case(row: Row, name: str, *, replayed: bool) -> Row:
    """The level as a case: its arrivals, or its concurrency and lengths."""
    whole = {"id": name, "model": row["model"], "gpu": "H100", "engine": "vllm", "version": row["vllm"], "tp": 1}
    if replayed:
        return whole | {"mode": "serve", "arrivals": [request[:3] for request in row["requests"]]}
    lengths = {"isl": row["isl"], "osl": row["osl"], "requests": row["completed"]}
    return whole | lengths | {"mode": "serve", "concurrency": row["concurrency"]}


def answers(cases: list[Row]) -> dict[str, Row]:
    """What `pipewave serve --cases` says, by id."""
    with tempfile.TemporaryDirectory() as folder:
        given, answered = Path(folder, "cases.jsonl"), Path(folder, "answers.jsonl")
        given.write_text("".join(json.dumps(one) + "\n" for one in cases))
        command = [sys.executable, "-m", "pipewave", "serve", "--cases", str(given), "--out", str(answered)]
        subprocess.run(command, check=False, capture_output=True)
        return {row["id"]: row for row in map(json.loads, answered.read_text().splitlines())}


def main() -> None:
    """Print measured figures and errors, a line a level and way of asking."""
    rows = levels()
    cases: dict[tuple[int, str], Row] = {}
    for index, row in enumerate(rows):
        for way in ("loop", "arrivals") if row["concurrency"] else ("arrivals",):
            cases[index, way] = case(row, f"{index}-{way}", replayed=way == "arrivals")
    found = answers(list(cases.values()))
    print("| model | level | predicted from | TTFT ms | error % | TPOT ms | error % | output tokens/s | error % |")
    print("|---" * 9 + "|")
    for (index, way), one in cases.items():
        row, answer = rows[index], found[one["id"]]
        level = f"{row['concurrency']} clients" if row["concurrency"] else f"{row['rate']} a second"
        cells = [
            f"{row[key]:.1f} | {100 * (answer[key] / row[key] - 1):+.1f}" if key in answer else "–" for key in FIGURES
        ]
        print(f"| {row['model']} | {level} | {way} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
