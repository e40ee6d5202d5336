"""The main job on real input: every kernel of Llama-3.1-8B, prefill and decode, on several GPUs (`make demo`)."""

from __future__ import annotations

from pathlib import Path

import pipewave as pw
from bench.measured import compare
from pipewave.cli.streams import show
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.models.load import load

GPUS = ("H200", "B200", "RTX PRO 6000", "L40S", "A100")
BATCHES = {
    "prefill of 4,096 tokens": Batch.of([4096], [4096]),
    "decode of 32 requests at 2,048 tokens": Batch.of([1] * 32, [2048] * 32),
}
KNOWN = "most rows were trained on, `pipewave accuracy` scores the others"
ROWS = Path(__file__).parent.parent / "data" / "measured" / "h200"


def main() -> None:
    """Print one table a batch, then measured against predicted where the package holds measured rows."""
    deployment = Deployment(load("Llama-3.1-8B"))
    for title, batch in BATCHES.items():
        show(rows(deployment.kernels(batch)), "table", title=f"Llama-3.1-8B, {title}: µs a launch, by GPU")
    if ROWS.is_dir():
        show(compare(ROWS), "table", title=f"measured on an H200 (cold L2) against predicted; {KNOWN}")


def rows(uses: list[Use]) -> list[dict[str, object]]:
    """One row a kernel, with a column a GPU, and the sum over all launches in ms."""
    answers = {gpu: pw.predict([use.call for use in uses], gpu, protocol="serving") for gpu in GPUS}
    table: list[dict[str, object]] = [
        {"kernel": use.name, "launches": use.count}
        | {gpu: float(answer.latency_us[i]) for gpu, answer in answers.items()}
        | {"bound on " + GPUS[0]: answers[GPUS[0]][i].bound}
        for i, use in enumerate(uses)
    ]
    sums = {gpu: sum(u.count * t for u, t in zip(uses, a.latency_us, strict=True)) / 1e3 for gpu, a in answers.items()}
    total = {"kernel": "all kernels, ms", "launches": sum(use.count for use in uses)} | sums
    return [*table, {**total, "bound on " + GPUS[0]: ""}]


main()
