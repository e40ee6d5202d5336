"""Which GPU this machine has, as far as that can be known without touching it.

Reading the driver's own files starts no process and no CUDA context, so it is safe before a fork and under capture.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
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
    found = _from_torch()
    if not found:
        texts = [file.read_text() for file in sorted(driver.glob("gpus/*/information"))]
        names = {line.partition(":")[2].strip() for text in texts for line in text.splitlines()
                 if line.startswith("Model:")}  # fmt: skip
        found = {"gpu": names.pop()} if len(names) == 1 else {}
    if found:
        words = (driver / "version").read_text().split() if (driver / "version").exists() else []
        found["driver"] = next((word for word in words if "." in word and word.replace(".", "").isdigit()), None)
        found["triton"] = version("triton") if find_spec("triton") else None
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
