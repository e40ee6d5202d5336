"""Ask AIConfigurator 0.12 for the points of our evaluation, through its own Python entry point and nothing else.

    python -m venv AIC && AIC/bin/pip install 'aiconfigurator==0.12.*'
    python -m studies.e2e_vllm --json studies/results/e2e_vllm.json
    AIC/bin/python lab/e2e_aiconfigurator.py studies/results/e2e_vllm.json studies/results/e2e_aiconfigurator.json

It runs in an environment of its own, as a black box: H200, vLLM, its newest measured tables, static batches. A prompt
longer than 8192 tokens is asked for chunk by chunk, as it was measured. Only the answers are kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

CHUNK = 8192
MODELS = Path(__file__).resolve().parents[1] / "src" / "pipewave" / "data" / "models"


class Baseline:
    """Calls `cli_estimate` for one model and split."""

    def __init__(self, folder: Path) -> None:
        from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found]

        self._estimate, self._folder = cli_estimate, folder

    def milliseconds(self, row: dict[str, Any]) -> float:
        """The time of a prefill or of a decode step."""
        if row["phase"] == "decode":
            answer = self._answer(row, mode="static_gen", isl=row["context"] - 1, osl=2)
            return float(answer.tpot)
        length = row["input_len"]
        ends = [*range(CHUNK, length, CHUNK), length] if length > CHUNK else [length]
        parts = [self._answer(row, mode="static_ctx", isl=end, osl=1, prefix=before)
                 for before, end in itertools.pairwise([0, *ends])]  # fmt: skip
        return float(sum(part.ttft for part in parts))

    def _answer(self, row: dict[str, Any], **query: Any) -> Any:
        moe = {"moe_tp_size": row["tp"], "moe_ep_size": 1} if "A3B" in row["model"] else {}
        return self._estimate(
            str(self._model(row["model"])), "h200_sxm", backend_name="vllm", batch_size=row["batch"], tp_size=row["tp"],
            **moe, **query,
        )  # fmt: skip

    def _model(self, name: str) -> Path:
        """A directory with the model's config, which needs no network."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text((MODELS / f"{name}.json").read_text())
        return folder


def main() -> None:
    """Ask for every row and write the answers with the time a call took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path, help="JSON of studies.e2e_vllm, whose points are asked for")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    rows, taken = [], []
    names = ("model", "tp", "phase", "batch", "input_len", "context")
    with tempfile.TemporaryDirectory() as folder:
        baseline = Baseline(Path(folder))
        for row in json.loads(given.evaluation.read_text())["rows"]:
            began = time.perf_counter()
            answer = baseline.milliseconds(row)
            taken.append(1e3 * (time.perf_counter() - began))
            rows.append({name: row[name] for name in names} | {"ms": answer})
    out = {"tool": "aiconfigurator 0.12", "median_call_ms": round(statistics.median(taken), 1), "rows": rows}
    given.out.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
