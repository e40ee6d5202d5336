"""What tuning a kernel needs of a device, binaries of some configurations and their times at a launch; and how to tune.

`Device` is a seam: tests and replays bring one of their own. The real one is `user_kernels.gpu`. Which GPU a machine
has is read from the driver's own files: that starts no process and no CUDA context, so it is safe before a fork and
under capture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from pipewave.tune.law.anchors import Peaks

BUDGET_S = 2.0  # of timing at first use
DRIVER = Path("/proc/driver/nvidia")


@dataclass(frozen=True, slots=True)
class Built:
    """Shared memory bytes of a block and registers of a thread; `error` where there is no binary."""

    smem_bytes: int = 0
    registers: int = 32
    error: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a user's kernel. `before` and `after` run around every timed one, outside its time, with all
    arguments by name (`reset_to_zero`, `restore_value`, `pre_hook`), `after` with what failed; `prepare` before one is
    compiled: the configuration's own `pre_hook` may set what the binary depends on, such as a descriptor's block.
    """

    fn: Any
    grid: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    configs: Sequence[Mapping[str, Any]]
    before: Callable[[int], None] = field(default=lambda _index: None)
    after: Callable[..., None] = field(default=lambda _index, _failed=None: None)
    prepare: Callable[[int], None] = field(default=lambda _index: None)


class Device(Protocol):
    """A GPU that can compile and time."""

    peaks: Peaks
    env: Mapping[str, Any]

    def idle(self) -> bool:
        """Whether measuring is allowed now: not while a CUDA graph is captured."""

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        """Compile configurations, all at once."""

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        """µs of one launch of each configuration, in this order."""


@dataclass(frozen=True, slots=True)
class Options:
    """`budget_s`: seconds of timing at first use, in all; `trips`: loop trips where the source does not tell them;
    `table`: a table to choose by, which is never written (another GPU's is a start, and launches are measured);
    `cache`: a folder instead of the user's, False for none; `device`: what measures, default: the GPU in use.
    """

    budget_s: float = BUDGET_S
    trips: Any = None
    table: str | Path | None = None
    cache: str | Path | bool = True
    device: Device | None = None


def this_machine(driver: Path = DRIVER) -> dict[str, Any]:
    """`gpu`, `driver` and `triton` of this machine, empty without a GPU or with several kinds; where torch runs on one
    already, that one with `sm_count`, `cc` and `cuda`.
    """
    torch, found = sys.modules.get("torch"), dict[str, Any]()
    if torch is not None and torch.cuda.is_initialized():
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        found = {"gpu": card.name, "sm_count": card.multi_processor_count, "cc": card.major * 10 + card.minor,
                 "cuda": torch.version.cuda}  # fmt: skip
    else:
        texts = [file.read_text() for file in sorted(driver.glob("gpus/*/information"))]
        names = {line.partition(":")[2].strip() for text in texts for line in text.splitlines()
                 if line.startswith("Model:")}  # fmt: skip
        found = {"gpu": names.pop()} if len(names) == 1 else {}
    if found:
        words = (driver / "version").read_text().split() if (driver / "version").exists() else []
        found["driver"] = next((word for word in words if "." in word and word.replace(".", "").isdigit()), None)
        found["triton"] = version("triton") if find_spec("triton") else None
    return {name: value for name, value in found.items() if value is not None}
