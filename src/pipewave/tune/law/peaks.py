"""A GPU as far as the laws of any kernel need it: its SMs, its peaks, and how another GPU's laws carry over."""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.errors import PipewaveError
from pipewave.gpus import GPU, find

UNKNOWN = "NVIDIA H200"  # stands in for a GPU without a specification; measured launches soon outweigh it


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
    return _of(name, spec, sms or spec.sms)


def _of(name: str, spec: GPU, sms: int) -> Peaks:
    flops = spec.peak_flops("bf16" if spec.bf16_tflops else "fp16", "boost")
    return Peaks(name, sms, flops / spec.sms * 1e-6, spec.l2_peak_gbps / spec.sms * 1e3, spec.dram_peak_gbps * 1e3,
                int(spec.smem_kb_per_sm * 1024), spec.registers_per_sm, spec.max_threads_per_sm,
                spec.l2_mb * 1e6)  # fmt: skip
