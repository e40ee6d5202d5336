"""The paper's hardware vectors: eleven GPUs with the numbers its authors used, right or wrong.

They differ from `pipewave.gpus` on purpose (measured L2 rates, a fixed clock, 516 instead of 512 on the L20): features
are only those of the paper with the paper's numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pipewave.errors import UnknownGPU, UnsupportedDtype, did_you_mean


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU as the paper sees it. Rates are operations per clock and SM with an FMA counted as two for `tensor_*`."""

    name: str
    full_name: str
    architecture: str
    compute_capability: int
    sms: int
    clock_mhz: float
    dram_gbps: float
    l2_gbps: float
    l2_mb: int
    smem_bytes_per_clk_per_sm: float
    smem_kb_per_sm: int
    tensor_bf16_ops_per_clk_per_sm: float
    tensor_fp8_ops_per_clk_per_sm: float | None
    fma_ops_per_clk_per_sm: float
    xu_ops_per_clk_per_sm: float

    def tensor_ops_per_clk_per_sm(self, dtype: str) -> float:
        """Tensor rate for "bf16" or "fp8"; raises UnsupportedDtype where the table has none."""
        rate = {"bf16": self.tensor_bf16_ops_per_clk_per_sm, "fp8": self.tensor_fp8_ops_per_clk_per_sm}[dtype]
        if rate is None:
            raise UnsupportedDtype(f"the paper has no {dtype} tensor rate for {self.name}", field="dtype")
        return rate


def find(name: str | Hardware) -> Hardware:
    """The vector of a GPU by short or full name ("H200", "NVIDIA H200"); a `Hardware` is passed through."""
    if isinstance(name, Hardware):
        return name
    found = _BY_NAME.get(_plain(name))
    if found is None:
        known = ", ".join(HARDWARE)
        raise UnknownGPU(
            f"the paper has no GPU {name!r}:{did_you_mean(name, HARDWARE)} it has {known}; or pass a paper.Hardware",
            field="gpu",
        )
    return found


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("_", "").replace("-", "").removeprefix("nvidia")


def _load() -> dict[str, Hardware]:
    table: dict[str, Any] = json.loads(files("pipewave").joinpath("data/paper/hardware.json").read_text("utf-8"))
    return {row["name"]: Hardware(**row) for row in table["gpus"]}


HARDWARE = _load()
_BY_NAME = {_plain(key): hw for hw in HARDWARE.values() for key in (hw.name, hw.full_name)}
