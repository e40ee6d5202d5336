"""What each field of a GPU may hold: the one place where a value is judged, whoever gave it."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from pipewave.errors import BadInput, UnknownField, meant_or_known


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


_TFLOPS = Limit(0.01, 1e6, optional=True)
_CLOCK = Limit(100, 10_000)
_GBPS = Limit(1, 1e6)

LIMITS: Mapping[str, Limit] = {
    "compute_capability": Limit(70, 999, whole=True),
    "sms": Limit(1, 4096, whole=True),
    "boost_clock_mhz": _CLOCK,
    "sustained_clock_mhz": _CLOCK,
    "fp32_tflops": Limit(0.01, 1e6),
    "tf32_tflops": _TFLOPS,
    "fp16_tflops": Limit(0.01, 1e6),
    "bf16_tflops": _TFLOPS,
    "fp8_tflops": _TFLOPS,
    "int8_tops": _TFLOPS,
    "fp4_tflops": _TFLOPS,
    "dram_gb": Limit(0.5, 100_000),
    "dram_gib": Limit(0.25, 100_000),
    "dram_gbps": _GBPS,
    "dram_pin_gbps": Limit(1, 1e6, optional=True),
    "dram_measured_gbps": Limit(1, 1e6, optional=True),
    "l2_mb": Limit(0.1, 100_000),
    "l2_gbps": Limit(1, 1e7),
    "smem_kb_per_sm": Limit(16, 65_536),
    "smem_bytes_per_clk_per_sm": Limit(1, 65_536),
    "registers_per_sm": Limit(1024, 1 << 24, whole=True),
    "max_threads_per_sm": Limit(32, 1 << 20, whole=True),
    "max_ctas_per_sm": Limit(1, 1 << 16, whole=True),
    "fma_per_clk_per_sm": Limit(1, 65_536),
    "xu_per_clk_per_sm": Limit(1, 65_536),
    "link_gbps": Limit(0.1, 1e6),
    "pcie_gbps": Limit(0.1, 1e5),
    "tdp_w": Limit(1, 1e6),
    "gpus_per_node": Limit(1, 2048, whole=True),
}
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
LINKS = ("nvlink", "xgmi", "pcie")


def checked(field: str, value: Any) -> Any:
    """Return `value` as the field's own type.

    Raises:
        UnknownField: no GPU has such a field.
        BadInput: wrong type, NaN, infinite or out of range; the message gives the permitted range.
    """
    if field == "link":
        return _checked_link(value)
    limit = LIMITS.get(field)
    if limit is None:
        raise UnknownField(f"unknown GPU field {field!r}:{meant_or_known(field, [*LIMITS, 'link'])}", field=field)
    if value is None and limit.optional:
        return None
    if not _is_inside(value, limit):
        raise BadInput(f"{field} = {_short(value)} is not possible: give {limit}", field=field)
    return int(value) if limit.whole else float(value)


def check_plausible(values: Mapping[str, Any], given: Collection[str]) -> None:
    """Raise BadInput where a field that a user gave stands to another as on no GPU, as after a slip of a unit.

    `values`: all fields of the GPU; `given`: names of those that the user gave.
    """
    for field, beside, low, high in RATIOS:
        value, other = values[field], values[beside]
        if {field, beside}.isdisjoint(given) or value is None or other is None or low <= value / other <= high:
            continue
        named, least, most = field, low * other, high * other
        if field not in given:
            named, beside, least, most, value, other = beside, field, value / high, value / low, other, value
        raise BadInput(
            f"{named} = {value:g} is not plausible beside {beside} = {other:g}: {least:.3g} to {most:.3g} would be; "
            "mend the unit, or give the other field as well",
            field=named,
        )


def _is_inside(value: Any, limit: Limit) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number: Any = value  # compared as it is: NaN fails, an int too big for a float does not overflow
    return bool(limit.low <= number <= limit.high) and (not limit.whole or int(number) == number)


def _short(value: Any) -> str:
    # Python refuses to print integers of thousands of digits.
    return "a huge number" if isinstance(value, int) and abs(value) > 10**18 else reprlib.repr(value)


def _checked_link(value: Any) -> str:
    if value not in LINKS:
        raise BadInput(f"link = {_short(value)} is not possible: give one of {', '.join(LINKS)}", field="link")
    return str(value)
