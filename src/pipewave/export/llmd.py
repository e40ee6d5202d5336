"""Rows of the performance database of llm-d's planner, for its `POST /api/v1/db/upload-benchmarks`.

One JSON file, `{"benchmarks": [...]}`: a row a load, with latencies in ms. Names are those of `scripts/schema.sql` and
`src/planner/knowledge_base/loader.py` of llm-d-incubation/llm-d-planner (dc02dcf, eb75c8b). The planner picks, of each
model, GPU and number of GPUs, the row of the highest rate that meets the limits; so rates double up to saturation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipewave.export.tables import Row, json_file
from pipewave.gpus import GPU
from pipewave.models import ModelSpec
from pipewave.published.answers import deploy, served
from pipewave.published.cases import from_dict
from pipewave.version import VERSION

LENGTHS = ((512, 256), (1024, 1024), (4096, 512), (10240, 1536))  # prompt and output tokens of its workloads
REQUESTS, MOST_RATES = 200, 10  # of a run; of a load
STATISTICS = ("mean", "p90", "p95", "p99")


def export(model: ModelSpec, gpu: GPU, folder: Path, *, tps: Sequence[int] = (1,)) -> tuple[Path, ...]:
    """Write `benchmarks.json`; the file. Raises what `serve` raises, BadFile where the folder cannot be written."""
    found = [row for tp in tps for isl, osl in LENGTHS if isl + osl <= (model.max_length or isl + osl)
             for row in rows(model, gpu, tp, isl, osl)]  # fmt: skip
    about = {"source": f"pipewave {VERSION}, predicted", "estimated": True}
    return (json_file(folder / "benchmarks.json", {"_metadata": about, "benchmarks": found}),)


def rows(model: ModelSpec, gpu: GPU, tp: int, isl: int, osl: int) -> Iterator[Row]:
    """A row a rate, from half a request a second up to the first at which the server saturates."""
    for doubled in range(MOST_RATES):
        rate = 2.0 ** (doubled - 1)
        load = {"isl": isl, "osl": osl, "rate": rate, "requests": REQUESTS}
        case = from_dict({"model": model.name, "gpu": gpu.name, "tp": tp, **load})
        answer = served(deploy(case.stated(), case.traffic()), interval=False).answer
        latencies = {
            f"{name}_{how}": answer[f"{name}_{how}_ms"] for name in ("ttft", "itl", "e2e") for how in STATISTICS
        }
        yield {
            "model_hf_repo": model.name, "hardware": gpu.name, "hardware_count": tp, "framework": answer["engine"],
            "framework_version": answer["version"], "prompt_tokens": isl, "output_tokens": osl,
            "mean_input_tokens": isl, "mean_output_tokens": osl, **latencies, "requests_per_second": rate,
            "responses_per_second": answer["requests_per_s"], "tokens_per_second": answer["output_tokens_per_s"],
            "profiler_type": "pipewave", "profiler_tag": VERSION, "estimated": True,
        }  # fmt: skip
        if answer["verdict"] == "saturated":
            return
