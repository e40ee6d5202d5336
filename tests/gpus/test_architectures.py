"""Traits of compute capabilities: data with sources, asked for by name, never guessed for an unknown one."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import pipewave
from pipewave.errors import BadInput, UnknownArchitecture, UnsupportedDtype
from pipewave.gpus import all_gpus, architectures, find
from pipewave.gpus.architectures import Architecture, architecture_of, required, shipped
from pipewave.kernels.gemm.machine import MULTICAST as GEMM_MULTICAST
from pipewave.kernels.moe.software import MULTICAST as MOE_MULTICAST
from pipewave.physics.power import PRODUCT_FLOP_J

SOURCE = Path(pipewave.__file__).parent
RUBIN = {
    "name": "rubin", "smem_kb_per_sm": 256, "max_threads_per_sm": 2048, "max_ctas_per_sm": 32,
    "fma_per_clk_per_sm": 128, "pcie_gbps": 128, "l2_bytes_per_clk_per_sm": 40.0,
    "of_16bit": {"bf16_tflops": 1.0, "fp8_tflops": 2.0}, "mma": "tcgen05", "l2_partitions": 2, "joules_per_flop": 3e-13,
}  # fmt: skip
CARD = {
    "name": "R100", "compute_capability": 107, "sms": 224, "boost_clock_mhz": 2000, "dram_gb": 288, "dram_gbps": 13000,
    "l2_mb": 200, "tdp_w": 1800, "fp16_tflops": 4000,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "_REGISTERED", {})


def test_every_trait_has_a_source_and_every_gpu_its_traits() -> None:
    sources = json.loads((SOURCE / "gpus" / "architectures.json").read_text())["sources"]
    told = {name for names in sources for name in names.split(", ")}
    assert told == {trait.name for trait in fields(Architecture)} - {"name", "l2_note"}
    assert all(len(text) > 15 for text in sources.values())
    assert {gpu.architecture for gpu in all_gpus()} <= {row.name for row in shipped().values()}
    for gpu in all_gpus():
        assert gpu.traits.name == gpu.architecture


def test_four_bit_operands_run_where_the_instruction_scales_them() -> None:
    for name, runs in (("B200", {"nvfp4", "mxfp4"}), ("MI355X", {"mxfp4"}), ("H100", {"mxfp4"}), ("T4", set())):
        assert {dtype for dtype in ("nvfp4", "mxfp4") if find(name).supports(dtype)} == runs
    with pytest.raises(UnsupportedDtype, match="MI355X cannot run dtype 'nvfp4'"):
        find("MI355X").peak_flops("nvfp4")


def test_constants_by_tensor_instruction_name_every_one() -> None:
    kinds = {"mma", "wgmma", "tcgen05"}
    assert {row.mma for row in shipped().values()} == kinds
    assert all(set(table) == kinds for table in (GEMM_MULTICAST, MOE_MULTICAST, PRODUCT_FLOP_J))


def test_a_capability_without_traits_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitecture, match=r"compute_capability = 107 has no traits.*mma.*joules_per_flop") as e:
        architecture_of(107)
    assert e.value.field == "compute_capability"
    file = tmp_path / "r100.yaml"
    file.write_text(yaml.safe_dump(CARD))
    with pytest.raises(UnknownArchitecture, match="has no traits"):
        find(file)


def test_a_gpu_file_may_bring_a_new_architecture(tmp_path: Path) -> None:
    file = tmp_path / "r100.yaml"
    file.write_text(yaml.safe_dump(CARD | {"traits": RUBIN}))
    gpu = find(file)
    assert gpu.traits.mma == "tcgen05"
    assert gpu.fp8_tflops == 8000
    found = pipewave.predict([pipewave.gemm(4096, 4096, 4096), pipewave.attention([1024], [1024], 32, 8)], gpu)
    known = pipewave.predict([pipewave.gemm(4096, 4096, 4096), pipewave.attention([1024], [1024], 32, 8)], "B200")
    assert all(0 < ours < theirs for ours, theirs in zip(found.floor_us, known.floor_us, strict=True))
    assert found[0].basis == "new_architecture"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mma": "mfma"}, "mma = 'mfma'"),
        ({"joules_per_flop": -1.0}, "joules_per_flop = -1.0"),
        ({"joules_per_flop": "little"}, "joules_per_flop = 'little'"),
        ({"warp": 32}, "traits names 'warp'"),
    ],
)
def test_traits_are_checked(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        architectures.register(107, RUBIN | wrong)


def test_traits_that_miss_one_or_contradict_are_refused() -> None:
    with pytest.raises(BadInput, match="traits lacks mma"):
        architectures.register(107, {name: value for name, value in RUBIN.items() if name != "mma"})
    with pytest.raises(BadInput, match="has other traits already"):
        architectures.register(90, RUBIN)
    assert set(RUBIN) == set(required())
    assert architectures.register(107, RUBIN) == architectures.register(107, RUBIN)


@pytest.mark.slow
def test_formulas_ask_for_traits_and_not_for_names() -> None:
    """Outside `gpus`, no code compares a GPU's architecture or capability with a name or a number. `paper` is as published."""
    found = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0]
        if room == "gpus":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                asked = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                if asked & {"architecture", "compute_capability"}:
                    found.append(path.relative_to(SOURCE).as_posix())
    assert found == []
