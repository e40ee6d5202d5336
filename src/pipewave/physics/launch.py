"""Starting kernels: what each start costs beyond the work, as one law with a row a kind of kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pipewave.gpus import GPU
from pipewave.physics.arith import ARRAY, Arith


@dataclass(frozen=True, slots=True)
class Launch:
    """Seconds whatever the clock, and SM cycles, of one kernel's start and retirement."""

    fixed_s: float
    cycles: float
    source: str


# A kernel in a stream of kernels costs a fixed time and a number of SM cycles. Kinds differ by how soon their blocks
# have work: products are waited for least, rows of norms need their parameters first.
LAUNCHES: Mapping[str, Launch] = MappingProxyType(
    {
        "stream": Launch(1.2e-6, 2500.0, "empty and small kernels of the public rows, all GPUs"),
        "product": Launch(
            0.95e-6, 1250.0, "robust fit of GEMM rows of five architectures (python -m studies.gemm_base)"
        ),
        "grouped": Launch(1.0e-6, 1500.0, "robust fit of MoE rows of Ampere, Ada and Hopper"),
        "copy": Launch(0.8e-6, 1500.0, "static fp8 quantisation of six GPUs, fused norms of two"),
    }
)


def launch_s(gpu: GPU, kind: str = "stream") -> float:
    """Seconds of start-up and retirement of one kernel of a kind."""
    row = LAUNCHES[kind]
    return row.fixed_s + row.cycles / (gpu.sustained_clock_mhz * 1e6)


def log2(values: Any, xp: Arith = ARRAY) -> Any:
    """Base-2 logarithm, clipped away from zero."""
    return xp.log2(xp.maximum(values, 1e-12))
