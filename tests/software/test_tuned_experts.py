"""Tuned block sizes that frameworks ship: which layers have a file, and what that is worth."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pipewave as pw
from pipewave.gpus import find
from pipewave.software.recorded import TUNED, tuned
from pipewave.software.stacks import version_of

FILES = json.loads(TUNED.read_text(encoding="utf-8"))["files"]


def known(framework: str, version: str, gpu: str, dtype: str, experts: float, width: float) -> bool:
    found = tuned(framework, version_of(version), gpu, dtype, np.array([experts]), np.array([width]))
    return bool(found[0])


def test_a_file_counts_from_the_version_that_brought_it_and_for_its_gpu_and_type_alone() -> None:
    by_version = FILES["sglang"]["H200"]["bf16"]
    later = next(version for version in by_version if version != "0.5.6.post2")
    experts, width = by_version[later][0]
    assert known("sglang", later, "H200", "bf16", experts, width)
    assert not known("sglang", "0.5.6", "H200", "bf16", experts, width)
    assert not known("sglang", later, "H200", "bf16", experts, width + 8)
    assert not known("sglang", later, "A40", "bf16", experts, width)
    assert not known("sglang", later, "H200", "nvfp4", experts, width)


def test_every_gpu_and_type_of_the_files_exists() -> None:
    for gpus in FILES.values():
        for gpu, types in gpus.items():
            assert find(gpu).name == gpu
            assert set(types) <= {"bf16", "fp8", "fp8_block"}


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_many_tokens_of_a_layer_without_a_file_take_longer(dtype: str) -> None:
    """vLLM 0.14 has a file for eight experts of 14336 on the H200, and none for those of 16384."""
    with_file, without = (
        pw.predict(
            pw.fused_moe(8192, 8, 2, 4096, inter, dtype=dtype, stack="vllm-0.14.0", routing="balanced"),
            "H200",
            protocol="graph",
        )
        for inter in (14336, 16384)
    )
    assert without.latency_us / with_file.latency_us > 1.5 * 16384 / 14336
