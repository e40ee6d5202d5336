"""Files as pipewave writes them for a user: a store of measured rows, a calibration fitted to it, a tuning table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pipewave as pw
from pipewave.calibrate.run import calibrate
from pipewave.files.packaged import ROOT
from pipewave.files.store import Store
from pipewave.tune.store import read_table, write_table
from pipewave.tune.tables import description

GPU = "H200"
ROWS = 30
SOFTWARE = {"stack": "torch-2.11", "impl": "cublas"}


def measurements(path: Path, *, factor: float = 1.5) -> Path:
    """A store of products that take `factor` times what is predicted."""
    calls = [pw.gemm(64 + 97 * i, 1024 + 512 * (i % 7), 4096) for i in range(ROWS)]
    predicted = pw.predict(calls, GPU, **SOFTWARE).latency_us
    with Store(path) as out:
        out.append({"t": "env", "id": "e", "gpu": "NVIDIA H200"})
        for i, (call, latency) in enumerate(zip(calls, predicted.tolist(), strict=True)):
            case = {"kernel": "gemm", "m": call.m, "n": call.n, "k": call.k}
            row: dict[str, Any] = {"t": "row", "key": str(i), "case": case, "protocol": "cold", "status": "ok"}
            out.append(row | SOFTWARE | {"latency_us": factor * latency, "env": "e"})
    return path


def calibration(path: Path) -> Path:
    """A calibration of this GPU."""
    return calibrate(measurements(path.with_suffix(".rows")), GPU, out=path).path


def tune_table(path: Path) -> Path:
    """A table as `lab.own_kernels` writes it."""
    of = description("gemm")
    meta, kinds = read_table(ROOT / "data" / "tables" / "h200" / "gemm.safetensors", of)
    write_table(path, of, meta["env"], kinds)
    return path
