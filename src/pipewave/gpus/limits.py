"""What a number of a GPU may be, by itself and beside the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipewave.errors import BadInput


@dataclass(frozen=True, slots=True)
class Limit:
    """Closed range of a number; wide enough for any what-if, narrow enough to catch a wrong unit."""

    low: float
    high: float
    whole: bool = False
    optional: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}" + (" or null" if self.optional else "")


def limited(low: float, high: float, *, whole: bool = False, optional: bool = False) -> Any:
    """Declare a field of a dataclass with what it may hold; None is the default where it may be None."""
    limit = {"limit": Limit(low, high, whole, optional)}
    return field(default=None, metadata=limit) if optional else field(metadata=limit)


# Ratios between fields of one GPU, wide enough for every part since V100 ten times over and narrow enough for a slip
# of a thousand. A user's file that leaves them is refused, since no answer would say what is wrong.
RATIOS: tuple[tuple[str, str, float, float], ...] = (
    ("dram_gbps", "fp16_tflops", 0.3, 100.0),
    ("fp16_tflops", "sms", 0.05, 300.0),
    ("fp32_tflops", "fp16_tflops", 0.002, 2.0),
    ("tf32_tflops", "fp16_tflops", 0.02, 2.0),
    ("bf16_tflops", "fp16_tflops", 0.02, 20.0),
    ("fp8_tflops", "fp16_tflops", 0.05, 20.0),
    ("int8_tops", "fp16_tflops", 0.01, 20.0),
    ("fp4_tflops", "fp16_tflops", 0.05, 60.0),
    ("dram_gb", "dram_gbps", 0.002, 1.0),
    ("dram_gib", "dram_gb", 0.5, 1.1),
    ("dram_pin_gbps", "dram_gbps", 0.3, 3.0),
    ("dram_measured_gbps", "dram_gbps", 0.3, 3.0),
    ("l2_mb", "sms", 0.01, 30.0),
    ("l2_gbps", "dram_gbps", 0.1, 100.0),
    ("link_gbps", "dram_gbps", 0.0005, 3.0),
    ("pcie_gbps", "dram_gbps", 0.0002, 1.0),
    ("sustained_clock_mhz", "boost_clock_mhz", 0.1, 1.001),
    ("tdp_w", "fp16_tflops", 0.03, 30.0),
    ("xu_per_clk_per_sm", "fma_per_clk_per_sm", 0.01, 2.0),
    ("smem_bytes_per_clk_per_sm", "fma_per_clk_per_sm", 0.05, 20.0),
    ("smem_kb_per_sm", "max_threads_per_sm", 0.005, 5.0),
    ("max_ctas_per_sm", "max_threads_per_sm", 0.001, 0.2),
)


def check_plausible(values: Mapping[str, Any], given: Collection[str]) -> None:
    """Raise BadInput where a field that a user gave stands to another as on no GPU, as after a slip of a unit.

    `values`: all fields of the GPU; `given`: names of those that the user gave.
    """
    for name, beside, low, high in RATIOS:
        value, other = values[name], values[beside]
        if {name, beside}.isdisjoint(given) or value is None or other is None or low <= value / other <= high:
            continue
        named, least, most = name, low * other, high * other
        if name not in given:
            named, beside, least, most, value, other = beside, name, value / high, value / low, other, value
        raise BadInput(
            f"{named} = {value:g} is not plausible beside {beside} = {other:g}: {least:.3g} to {most:.3g} would be; "
            "mend the unit, or give the other field as well",
            field=named,
        )
