"""What tuning a kernel needs of a device, binaries of some configurations and their times at a launch; and how to tune.

A seam: tests and replays bring a device of their own. The real one is `user_kernels.gpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pipewave.tune.law.anchors import Peaks

BUDGET_S = 2.0  # of timing at first use


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
    """  # fmt: skip

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
