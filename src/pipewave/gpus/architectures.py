"""What every GPU of one compute capability shares, per SM and per clock.

Residency limits are those of the CUDA C++ Programming Guide ("Technical Specifications per Compute Capability"). Lanes
per clock are its "Arithmetic Instructions" table, shared-memory width its bank count times four bytes. Ratios of peaks
are those of the vendor's datasheets. L2 bytes per clock and SM are the mean over the measured siblings that the note
names; they serve GPUs whose L2 nobody in our sources measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipewave.errors import BadInput


@dataclass(frozen=True, slots=True)
class Architecture:
    """Facts of one compute capability; `of_16bit`: other peaks as multiples of the 16-bit one, absent = cannot run."""

    name: str
    smem_kb_per_sm: int
    max_threads_per_sm: int
    max_ctas_per_sm: int
    fma_per_clk_per_sm: int
    pcie_gbps: int
    l2_bytes_per_clk_per_sm: float
    l2_note: str
    of_16bit: Mapping[str, float]
    xu_per_clk_per_sm: int = 16
    smem_bytes_per_clk_per_sm: int = 128
    registers_per_sm: int = 65536


_AMPERE = {"bf16_tflops": 1.0, "tf32_tflops": 0.5, "int8_tops": 2.0}
_FP8 = _AMPERE | {"fp8_tflops": 2.0}

ARCHITECTURES: Mapping[int, Architecture] = {
    70: Architecture("volta", 96, 2048, 32, 64, 16, 19.5, "V100 as in Jia et al. 2018, not re-read", {}),
    75: Architecture(
        "turing", 64, 1024, 16, 64, 16, 20.0, "T4 as in Jia et al. 2019, not re-read", {"int8_tops": 2.0},
        smem_bytes_per_clk_per_sm=64,
    ),
    80: Architecture("ampere", 164, 2048, 32, 64, 32, 21.2, "A100", _AMPERE),
    86: Architecture("ampere", 100, 1536, 16, 128, 32, 17.2, "A40, RTX A6000", _AMPERE),
    89: Architecture("ada", 100, 1536, 24, 128, 32, 17.0, "L20, L40, RTX 6000 Ada", _FP8),
    90: Architecture("hopper", 228, 2048, 32, 128, 64, 36.5, "H100, H800", _FP8),
    100: Architecture("blackwell", 228, 2048, 32, 128, 64, 36.5, "H100, the next of kin", _FP8 | {"fp4_tflops": 4.0}),
    # Blackwell Ultra trades int8 for fp4 and doubles the exponential unit.
    103: Architecture(
        "blackwell", 228, 2048, 32, 128, 128, 36.5, "H100, the next of kin",
        _FP8 | {"fp4_tflops": 6.0, "int8_tops": 1 / 16}, xu_per_clk_per_sm=32,
    ),
    120: Architecture("blackwell_rtx", 100, 1536, 24, 128, 64, 16.9, "RTX PRO 6000 Server", _FP8 | {"fp4_tflops": 4.0}),
}  # fmt: skip


def architecture_of(compute_capability: object) -> Architecture:
    """Return the facts of one compute capability, given as major·10 + minor (90 for 9.0).

    Raises:
        BadInput: no such capability is modelled.
    """
    found = ARCHITECTURES.get(compute_capability) if isinstance(compute_capability, int) else None
    if found is None:
        known = ", ".join(map(str, ARCHITECTURES))
        raise BadInput(
            f"compute_capability = {compute_capability!r} is not modelled: use one of {known} (9.0 is 90)",
            field="compute_capability",
        )
    return found
