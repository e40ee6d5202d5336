"""AIConfigurator 0.12 on our tables: `python lab/aiconfigurator_run.py AIC/bin/aiconfigurator`, in its own venv.

It is asked, as a black box, for a prefill and a decode step of Llama-3.1-8B on a GPU that only our folder describes,
and again with every latency of our tables doubled: what it answers must come from them. Our own estimate stands beside.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pipewave as pw
from pipewave.export.aiconfigurator import BACKEND, VERSION, export
from pipewave.gpus import find
from pipewave.models import load

MODEL, GPU, BATCH, PROMPT = "Llama-3.1-8B", "L40S", 8, 1024
CONFIG = Path(__file__).resolve().parents[1] / "src" / "pipewave" / "data" / "models" / f"{MODEL}.json"
ANSWERS = {"static_ctx": r"TTFT:\s+([\d.,]+) ms", "static_gen": r"TPOT:\s+([\d.,]+) ms"}


def asked(program: str, systems: Path, model: Path, mode: str) -> float:
    """What the program answers, ms."""
    options = {
        "--systems-paths": systems, "--system": GPU.lower(), "--backend": BACKEND, "--perf-db-version": VERSION,
        "--model-path": model, "--estimate-mode": mode, "--isl": PROMPT, "--osl": 2, "--batch-size": BATCH,
        "--tp-size": 1,
    }  # fmt: skip
    command = [program, "cli", "estimate", *(str(word) for pair in options.items() for word in pair)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(ANSWERS[mode], done.stdout)
    if found is None:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return float(found[1].replace(",", ""))


def doubled(folder: Path) -> None:
    """Every latency twice as long."""
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path)
        at = table.schema.get_field_index("latency")
        pq.write_table(table.set_column(at, "latency", pc.multiply(table["latency"], pa.scalar(2.0))), path)


def main() -> int:
    """Print all answers; 1 where theirs do not follow our tables."""
    program, found = sys.argv[1], {}
    with tempfile.TemporaryDirectory() as folder:
        root, model = Path(folder), Path(folder) / "model"
        model.mkdir()
        (model / "config.json").write_text(CONFIG.read_text())
        for name in ("ours", "doubled"):
            export(load(MODEL), find(GPU), root / name)
        doubled(root / "doubled")
        for mode in ANSWERS:
            found[mode] = {name: asked(program, root / name, model, mode) for name in ("ours", "doubled")}
    mine = pw.estimate(MODEL, GPU, batch=BATCH, input_len=PROMPT, output_len=16, max_num_batched_tokens=BATCH * PROMPT)
    found |= {"pipewave": {"prefill_ms": round(mine.prefill_ms, 2), "tpot_ms": round(mine.tpot_ms, 3)}}
    print(json.dumps(found))
    follows = all(1.6 < found[mode]["doubled"] / found[mode]["ours"] <= 2.001 for mode in ANSWERS)
    near = abs(found["static_ctx"]["ours"] / mine.prefill_ms - 1) < 0.1
    return 0 if follows and near else 1


if __name__ == "__main__":
    sys.exit(main())
