"""The SM clock of a measured row, from the spin kernel that closes its bracket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of a spin kernel beside its clocks, as `lab.microbench` finds it (`spin_overhead_us`); the first for other GPUs.
SPIN_LAUNCH_US = {"NVIDIA H200": 0.613, "NVIDIA H100 80GB HBM3": 0.870}
OTHER_SPIN_LAUNCH_US = SPIN_LAUNCH_US["NVIDIA H200"]


def clock_mhz(row: Mapping[str, Any]) -> float | None:
    """SM clock right after the call, from a spin of a known number of clocks; None where the row has no spin."""
    spin_us, launch_us = row.get("spin_us"), SPIN_LAUNCH_US.get(row.get("gpu", ""), OTHER_SPIN_LAUNCH_US)
    return row["spin_clocks"] / (spin_us - launch_us) if spin_us else None
