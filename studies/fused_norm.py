"""All-reduce and norm in one kernel: the law of `step/overlap.py` beside measured rows: `python -m studies.fused_norm`.

TensorRT-LLM's one-shot all-reduce, which FlashInfer and through it vLLM and SGLang call, in the corpus's rows on
H200 and B200 at 2, 4 and 8 GPUs, 64 KiB to 1 MiB. Prints measured and predicted µs and the mean absolute error.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from pipewave.gpus import find
from pipewave.step.overlap import fused_us
from studies.published_rows import corpus

FOLDERS = {"H200": "h200_sxm", "B200": "b200_sxm"}
VERSION = "1.3.0rc20"
SIZES = (2**16, 2**18, 2**20)  # bytes
ACT = 2


def rows(folder: Path, gpu: str) -> pd.DataFrame:
    """Measured rows of one GPU: world, bytes, µs."""
    path = folder / "aiconfigurator" / FOLDERS[gpu] / "comm" / "trtllm" / VERSION / "custom_allreduce_perf.parquet"
    table = pd.read_parquet(path)
    table = table.assign(bytes=table.message_size * ACT, us=table.latency * 1e3, gpu=gpu)
    return table[table.bytes.isin(SIZES)][["gpu", "num_gpus", "bytes", "us"]]


def compared(folder: Path) -> pd.DataFrame:
    """All rows with the law's answer."""
    table = pd.concat([rows(folder, gpu) for gpu in FOLDERS])
    law = [fused_us(float(row.bytes), int(row.num_gpus), find(row.gpu)) for row in table.itertuples()]
    return table.assign(law_us=np.array(law))


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=corpus())
    table = compared(parser.parse_args().data)
    print(table.round(1).to_string(index=False))
    print(f"mean absolute error {100 * (table.law_us / table.us - 1).abs().mean():.1f} %")


if __name__ == "__main__":
    main()
