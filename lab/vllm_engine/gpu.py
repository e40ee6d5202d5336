"""The GPU's state right after timed steps, by NVML; nothing is ever set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def sampler() -> Callable[[], dict[str, Any]]:
    """A function that reads clocks (MHz), power (W), temperature (°C) and throttle reasons of the first GPU."""
    try:
        import pynvml
    except ImportError:
        return dict
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except (pynvml.NVMLError, AttributeError):
        return dict

    def sample() -> dict[str, Any]:
        try:
            return {
                "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                "mem_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
                "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
                "throttle": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            }
        except (pynvml.NVMLError, AttributeError) as error:
            return {"nvml": str(error)}

    return sample
