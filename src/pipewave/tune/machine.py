"""Which GPU this machine has, as far as that can be known without touching it.

Reading the driver's own files starts no process and no CUDA context, so it is safe before a fork and under capture.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DRIVER = Path("/proc/driver/nvidia")
_FLAT = {"driver": "driver_version", "sm_clock": "clocks.max.sm", "power_limit": "power.limit",
         "mig": "mig.mode.current"}  # fmt: skip


def current(driver: Path = DRIVER) -> dict[str, Any]:
    """Return what is known of this machine's GPU, empty without one: `gpu`, `driver`, `triton`, `sm_count`, `cc`.

    The last two need a process in which torch already runs on the GPU. GPUs of several kinds count as unknown,
    unless torch says which is in use.
    """
    found = _from_torch() or _from_driver(driver)
    if found:
        found |= {"driver": _driver_version(driver), "triton": _installed("triton")}
    return {name: value for name, value in found.items() if value is not None}


def flat(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment with what `nvidia-smi` said of it beside the rest."""
    smi = env.get("nvidia_smi") or {}
    named = {name: smi[field] for name, field in _FLAT.items() if field in smi}
    return {name: value for name, value in env.items() if name != "nvidia_smi"} | named


def _from_torch() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"gpu": card.name, "sm_count": card.multi_processor_count, "cc": card.major * 10 + card.minor,
            "cuda": torch.version.cuda}  # fmt: skip


def _from_driver(driver: Path) -> dict[str, Any]:
    names = set()
    for file in sorted(driver.glob("gpus/*/information")):
        lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        names.add(lines.get("Model", "").strip())
    return {"gpu": names.pop()} if len(names) == 1 else {}


def _driver_version(driver: Path) -> str | None:
    file = driver / "version"
    words = file.read_text().split() if file.exists() else []
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), None)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
