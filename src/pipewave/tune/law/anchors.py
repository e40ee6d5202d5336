"""What was measured of a kernel: launches as counts, µs of configurations there, and the GPU as laws see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import PipewaveError
from pipewave.gpus import find
from pipewave.physics.cache import l2_bytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
UNKNOWN = "NVIDIA H200"  # stands in for a GPU without a specification; measured launches soon outweigh it


@dataclass(frozen=True, slots=True)
class Anchors:
    """`at` [s, d] sizes of the key; `counts` [s, c, 6]; `us` [s, c] µs, NaN where not timed; `config` name → [c];
    `resident` [c] blocks an SM holds at once; [s, c] where binaries of the launches differ.
    """

    at: Floats
    counts: Floats
    us: Floats
    config: Mapping[str, Ints]
    resident: Ints

    def take(self, index: Ints) -> Anchors:
        """Keep some launches."""
        held = self.resident[index] if self.resident.ndim > 1 and len(index) else self.usual
        return Anchors(self.at[index], self.counts[index], self.us[index], self.config, held)

    @property
    def usual(self) -> Ints:
        """Blocks [c] that an SM holds of most launches' binaries."""
        return np.asarray(np.median(np.atleast_2d(self.resident), axis=0), np.int64)

    @property
    def logs(self) -> Floats:
        """Logarithms of the sizes [s, d]."""
        return np.asarray(np.log(np.maximum(self.at, 1.0)))


def columns(configs: Sequence[Mapping[str, Any]]) -> dict[str, Ints]:
    """Parameters of configurations as numbers [c]: words count by their first use, what is absent as 0."""
    found: dict[str, Ints] = {}
    for name in dict.fromkeys(name for config in configs for name in config):
        words: dict[str, int] = {}
        values = [config.get(name) or 0 for config in configs]
        found[name] = np.array([one if isinstance(one, int) else words.setdefault(str(one), len(words) + 1)
                                for one in values], np.int64)  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class Peaks:
    """`sms`; peaks of one SM in FLOPs (bf16) and bytes of the L2 a µs; of the GPU in bytes of memory a µs."""

    gpu: str
    sms: int
    sm_flops_us: float
    sm_bytes_us: float
    bytes_us: float
    smem_bytes: int = 233_472
    registers: int = 65_536
    threads: int = 2_048
    l2_bytes: float = 50e6


def peaks_of(name: str, sms: int | None = None) -> Peaks:
    """The GPU of a name, as the driver spells it. One without a specification is taken as an H200 with its SMs."""
    try:
        spec = find(name)
    except PipewaveError:
        spec = find(UNKNOWN)
    flops = spec.peak_flops("bf16" if spec.bf16_tflops else "fp16", "boost")
    return Peaks(name, sms or spec.sms, flops / spec.sms * 1e-6, spec.l2_peak_gbps / spec.sms * 1e3,
                 spec.dram_peak_gbps * 1e3, int(spec.smem_kb_per_sm * 1024), spec.registers_per_sm,
                 spec.max_threads_per_sm, l2_bytes(spec))  # fmt: skip
