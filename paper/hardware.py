"""The paper's hardware vectors: eleven GPUs with the numbers its authors used, right or wrong.

They differ from `pipewave.gpus` on purpose (measured L2 rates, a fixed clock, 516 instead of 512 on the L20): features
are only those of the paper with the paper's numbers. For other GPUs `hardware_of` takes the same quantities from the
registry.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipewave.errors import UnknownGPU, UnsupportedDtype, did_you_mean
from pipewave.files import packaged

if TYPE_CHECKING:
    from pipewave.gpus import GPU


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


def find(name: str | Hardware | GPU) -> Hardware:
    """The vector of a GPU by the paper's short or full name ("H200", "NVIDIA H200"), or of a GPU of the registry.

    A `Hardware` is passed through. Raises UnknownGPU for a name that the paper does not have.
    """
    if isinstance(name, Hardware):
        return name
    if not isinstance(name, str):
        return hardware_of(name)
    found = _BY_NAME.get(_plain(name))
    if found is None:
        known = ", ".join(HARDWARE)
        raise UnknownGPU(
            f"the paper has no GPU {name!r}:{did_you_mean(name, HARDWARE)} it has {known}; or pass pipewave.find(name)",
            field="gpu",
        )
    return found


def hardware_of(gpu: GPU) -> Hardware:
    """What the paper's recipe would note down for any GPU: the clock at which its peaks are quoted, and those peaks."""
    cycles_per_s = gpu.sms * gpu.sustained_clock_mhz * 1e6
    return Hardware(
        name=gpu.name,
        full_name=gpu.name,
        architecture=gpu.architecture,
        compute_capability=gpu.compute_capability,
        sms=gpu.sms,
        clock_mhz=gpu.sustained_clock_mhz,
        dram_gbps=gpu.dram_gbps,
        l2_gbps=gpu.l2_gbps,
        l2_mb=round(gpu.l2_mb),
        smem_bytes_per_clk_per_sm=gpu.smem_bytes_per_clk_per_sm,
        smem_kb_per_sm=round(gpu.smem_kb_per_sm),
        tensor_bf16_ops_per_clk_per_sm=gpu.peak_flops("fp16") / cycles_per_s,
        tensor_fp8_ops_per_clk_per_sm=gpu.peak_flops("fp8") / cycles_per_s if gpu.supports("fp8") else None,
        fma_ops_per_clk_per_sm=gpu.fma_per_clk_per_sm,
        xu_ops_per_clk_per_sm=gpu.xu_per_clk_per_sm,
    )


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("_", "").replace("-", "").removeprefix("nvidia")


def _load() -> dict[str, Hardware]:
    table: dict[str, Any] = packaged.document(Path(__file__).parent / "weights" / "hardware.json")
    return {row["name"]: Hardware(**row) for row in table["gpus"]}


HARDWARE = _load()
_BY_NAME = {_plain(key): hw for hw in HARDWARE.values() for key in (hw.name, hw.full_name)}
