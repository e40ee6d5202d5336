"""The paper's collectives: a random forest per GPU and primitive, answered as the step function that it is.

A forest over (bytes, workers) is constant between thresholds, so at a given number of workers it is exactly a sorted
list of sizes with a latency for each interval: no trees are needed at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import safe_open

from paper.demand import Array
from paper.hardware import Hardware, find
from pipewave.errors import BadInput
from pipewave.files import packaged

if TYPE_CHECKING:
    from pipewave.gpus import GPU


@dataclass(frozen=True, slots=True)
class Steps:
    """`latency_us[i]` for sizes up to and including `edges[i]` bytes, the last beyond all edges."""

    edges: NDArray[np.float32]
    latency_us: NDArray[np.float32]

    def at(self, size_bytes: ArrayLike) -> Array:
        """Latency in µs of messages of these sizes, rounded to float32 as the forest does."""
        size = np.asarray(size_bytes, dtype=np.float32)
        return self.latency_us[np.searchsorted(self.edges, size, side="left")].astype(np.float64)


def predict_collective(primitive: str, hardware: str | Hardware | GPU, *, size_bytes: ArrayLike, workers: int) -> Array:
    """Latency in µs of `all_reduce` or `send_recv` between GPUs of one node.

    Answers only where the paper measured: raises BadInput for other GPUs, primitives or numbers of workers.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    if not np.all((size > 0) & np.isfinite(size)):
        raise BadInput(f"size_bytes={size_bytes!r} must be positive", field="size_bytes")
    key = f"{primitive}/{find(hardware).name}/{workers}"
    table = _tables()
    if key not in table:
        raise BadInput(f"no published measurements of {key}; there are {', '.join(sorted(table))}", field="workers")
    return table[key].at(size)


@lru_cache(maxsize=1)
def _tables() -> dict[str, Steps]:
    """Steps by "primitive/GPU/workers"."""
    path = Path(__file__).parent / "weights" / "collectives.safetensors"
    packaged.check(path)
    with safe_open(path, framework="numpy") as archive:
        names = {key.rpartition(":")[0] for key in archive.keys()}  # noqa: SIM118  no iterator
        return {
            name: Steps(archive.get_tensor(f"{name}:edges"), archive.get_tensor(f"{name}:latency_us")) for name in names
        }
