"""Shipped GPUs: complete, sane, agreeing with independent tables, and found by every name people use."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from pipewave.errors import BadInput, UnknownGPU, UnsupportedDtype
from pipewave.gpus import DTYPES, GPU, all_gpus, find, names
from pipewave.gpus.registry import SUMMARY_FIELDS, field_rows, summary_rows, unit_of
from pipewave.gpus.shipped import key_of, raw_specs
from pipewave.gpus.spec import VALUE_FIELDS

DATA = Path(os.environ.get("PIPEWAVE_DATA", Path(__file__).parents[3] / "shared" / "data"))
EVERY = pytest.mark.parametrize("gpu", all_gpus(), ids=str)

# Dense FLOP per clock and SM with fp32 accumulation, from the vendor's architecture whitepapers.
_GV100 = {"fp16": 1024, "fp32": 128}
_GA100 = {"bf16": 2048, "fp16": 2048, "tf32": 1024, "int8": 4096}
_GA102 = {"bf16": 1024, "fp16": 1024, "tf32": 512, "int8": 2048}
_AD102 = {"bf16": 1024, "fp16": 1024, "tf32": 512, "fp8": 2048, "int8": 2048}
_HALF_AD102 = {"bf16": 512, "fp16": 512, "tf32": 256, "fp8": 1024}
_GH100 = {"bf16": 4096, "fp16": 4096, "tf32": 2048, "fp8": 8192, "int8": 8192}
_GB100 = {"bf16": 8192, "fp16": 8192, "tf32": 4096, "fp8": 16384}
_GB202 = {"bf16": 1024, "fp16": 1024, "tf32": 512, "fp8": 2048, "int8": 2048, "nvfp4": 4096}
_CDNA3 = {"bf16": 2048, "fp16": 2048, "tf32": 1024, "fp8": 4096, "int8": 4096}
_CDNA4 = {"bf16": 4096, "fp16": 4096, "fp8": 8192, "int8": 8192, "mxfp4": 16384}
LANES = {
    **dict.fromkeys(("V100", "V100 PCIe"), _GV100),
    "T4": {"fp16": 1024, "int8": 2048, "fp32": 128},
    **dict.fromkeys(
        ("A100", "A800", "A100 SXM 40GB", "A100 PCIe 40GB", "A100 PCIe 80GB", "A30"), _GA100 | {"fp32": 128}
    ),
    **dict.fromkeys(("A10", "A40", "RTX A6000"), _GA102 | {"fp32": 256}),
    "RTX 3090": {"bf16": 512, "fp16": 512, "tf32": 256, "int8": 2048},
    **dict.fromkeys(("L4", "L40S", "RTX 6000 Ada"), _AD102 | {"fp32": 256}),
    **dict.fromkeys(("L20", "L40"), _HALF_AD102 | {"int8": 1024}),
    "RTX 4090": _HALF_AD102 | {"int8": 2048},
    **dict.fromkeys(("H100", "H100 PCIe", "H100 NVL", "H800", "H200", "GH200", "GH200 144GB"), _GH100 | {"fp32": 256}),
    "H20": {"bf16": 1024, "fp16": 1024, "tf32": 512, "fp8": 2048, "int8": 2048, "fp32": 256},
    **dict.fromkeys(("B200", "GB200"), _GB100 | {"int8": 16384, "nvfp4": 32768}),
    "B300": _GB100,  # its fp4 and bf16 figures are rounded apart: 14 PFLOP/s would be 3.7 % above 49152 a clock
    "GB300": _GB100 | {"nvfp4": 49152},
    "RTX 5090": {"bf16": 512, "fp16": 512, "tf32": 256, "fp8": 1024, "int8": 2048, "nvfp4": 4096},
    **dict.fromkeys(
        ("RTX PRO 6000 Server", "RTX PRO 6000 Workstation", "RTX PRO 6000 Max-Q", "DGX Spark"), _GB202 | {"fp32": 256}
    ),
    **dict.fromkeys(("MI300X", "MI325X"), _CDNA3 | {"fp32": 256}),
    **dict.fromkeys(("MI350X", "MI355X"), _CDNA4 | {"fp32": 256}),
}

SPELLINGS = {
    "V100": ["Tesla V100-SXM2-32GB", "Tesla_V100-SXM2-32GB"],
    "V100 PCIe": ["Tesla V100-PCIE-32GB", "Tesla_V100-PCIE-32GB"],
    "T4": ["Tesla T4", "NVIDIA T4", "Tesla-T4"],
    "A100": ["a100", "a100_sxm", "NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB", "a100-80gb", "a100_dgx"],
    "A100 SXM 40GB": ["NVIDIA A100-SXM4-40GB", "A100-40GB"],
    "A100 PCIe 40GB": ["NVIDIA_A100-PCIE-40GB"],
    "A100 PCIe 80GB": ["NVIDIA A100 80GB PCIe", "NVIDIA_A100_80GB_PCIe"],
    "A40": ["NVIDIA A40", "a40"],
    "RTX A6000": ["RTX_A6000", "A6000", "NVIDIA RTX A6000", "NVIDIA-RTX-A6000"],
    "RTX 3090": ["NVIDIA GeForce RTX 3090", "RTX3090"],
    "RTX 4090": ["NVIDIA_GeForce_RTX_4090", "RTX4090", "rtx-4090"],
    "RTX 6000 Ada": ["NVIDIA RTX 6000 Ada Generation", "RTX_6000_Ada", "NVIDIA_RTX_6000_Ada_Generation"],
    "L40S": ["l40s", "NVIDIA L40S", "NVIDIA-L40S-SHARED"],
    "H100": ["h100", "h100_sxm", "H100 SXM", "NVIDIA H100", "NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"],
    "H100 PCIe": ["NVIDIA H100 PCIe", "h100-pcie"],
    "H100 NVL": ["NVIDIA H100 NVL"],
    "H800": ["NVIDIA H800"],
    "H20": ["NVIDIA H20", "NVIDIA_H20"],
    "H200": ["h200", "h200_sxm", "NVIDIA H200", "nvidia-h200", "NVIDIA_H200", "GPU 0: NVIDIA H200 (UUID: GPU-5c1)"],
    "GH200": ["NVIDIA GH200 480GB", "NVIDIA_GH200_480GB"],
    "GH200 144GB": ["NVIDIA GH200 144G HBM3e"],
    "B200": ["b200_sxm", "NVIDIA B200"],
    "GB200": ["gb200", "NVIDIA GB200"],
    "B300": ["b300_sxm", "NVIDIA B300 SXM6 AC"],
    "GB300": ["gb300", "NVIDIA GB300"],
    "RTX 5090": ["NVIDIA GeForce RTX 5090", "NVIDIA_GeForce_RTX_5090"],
    "RTX PRO 6000 Server": [
        "RTX_PRO_6000_S",
        "PRO6000S",
        "RTXPRO6000",
        "rtx_pro_6000_server",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition",
    ],
    "RTX PRO 6000 Workstation": ["NVIDIA RTX PRO 6000 Blackwell Workstation Edition"],
    "RTX PRO 6000 Max-Q": ["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"],
    "DGX Spark": ["NVIDIA GB10", "gb10", "dgx-spark"],
    "A800": ["NVIDIA A800-SXM4-80GB"],
}


@EVERY
def test_every_field_is_valued_and_sourced(gpu: GPU) -> None:
    assert set(gpu.sources) == set(VALUE_FIELDS)
    for field in VALUE_FIELDS:
        source = gpu.sources[field]
        assert source.kind in ("datasheet", "measured", "derived", "unverified")
        assert source.note


@pytest.mark.parametrize(("name", "dtype", "lanes"), [(n, d, v) for n, row in LANES.items() for d, v in row.items()])
def test_peaks_agree_with_lanes_times_sms_times_clock(name: str, dtype: str, lanes: int) -> None:
    assert find(name).flops_per_clk_per_sm(dtype) == pytest.approx(lanes, rel=0.03)


def test_every_gpu_has_its_lanes_checked() -> None:
    assert set(LANES) == set(names())


@EVERY
def test_fp32_peak_is_what_the_lanes_give(gpu: GPU) -> None:
    lanes = 2 * gpu.fma_per_clk_per_sm * gpu.sms * 1e6
    clocks = (gpu.boost_clock_mhz, gpu.sustained_clock_mhz)  # data sheets quote it at either
    assert min(abs(gpu.peak_flops("fp32") / (lanes * clock) - 1) for clock in clocks) < 0.03


@EVERY
def test_numbers_keep_their_order(gpu: GPU) -> None:
    assert gpu.dram_gbps < gpu.l2_gbps <= gpu.l2_peak_gbps
    assert gpu.link_gbps < gpu.dram_gbps
    assert gpu.dram_gib <= gpu.dram_gb * 1.03
    assert gpu.l2_mb < 1024 * gpu.dram_gb
    assert gpu.sustained_clock_mhz <= gpu.boost_clock_mhz
    assert gpu.dram_gbps <= gpu.dram_peak_gbps < 1.05 * gpu.dram_gbps
    assert (gpu.dram_measured_gbps or 0.0) <= gpu.dram_peak_gbps


@EVERY
def test_narrower_types_are_not_slower(gpu: GPU) -> None:
    assert gpu.peak_flops("fp16") > gpu.peak_flops("fp32")
    for narrow, wide in (("fp8", "bf16"), ("nvfp4", "fp8"), ("bf16", "tf32")):
        if gpu.supports(narrow) and gpu.supports(wide):
            assert gpu.peak_flops(narrow) > gpu.peak_flops(wide)


@EVERY
def test_boost_peak_is_the_highest(gpu: GPU) -> None:
    for dtype in DTYPES:
        if gpu.supports(dtype):
            assert gpu.peak_flops(dtype, at="boost") >= gpu.peak_flops(dtype) > 0


def test_h100_boost_peak_by_hand() -> None:
    assert find("H100").peak_flops("bf16", at="boost") == pytest.approx(4096 * 132 * 1.98e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "dtype", "runs"),
    [
        ("V100", "bf16", False),
        ("T4", "bf16", False),
        ("A100", "fp8", False),
        ("A100", "int4", True),
        ("L40S", "fp8_block", True),
        ("H100", "nvfp4", False),
        ("H100", "mxfp4", True),
        ("T4", "mxfp4", False),
        ("B200", "nvfp4", True),
    ],
)
def test_what_a_gpu_can_run(name: str, dtype: str, runs: bool) -> None:
    gpu = find(name)
    assert gpu.supports(dtype) is runs
    if not runs:
        with pytest.raises(UnsupportedDtype, match=f"{name} cannot run dtype '{dtype}': it runs fp16|bf16"):
            gpu.peak_flops(dtype)


def test_weight_only_types_run_at_the_16_bit_rate() -> None:
    assert find("A100").peak_flops("int4") == find("A100").peak_flops("bf16")
    assert find("H200").peak_flops("mxfp4") == find("H200").peak_flops("bf16")


def test_unknown_dtype_and_clock_are_bad_input() -> None:
    with pytest.raises(BadInput, match="dtype = 'fp7' is not known: use one of bf16"):
        find("H100").supports("fp7")
    with pytest.raises(BadInput, match="'datasheet' or 'boost'"):
        find("H100").peak_flops("bf16", at="turbo")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in SPELLINGS.items() for word in words])
def test_spellings(name: str, word: str) -> None:
    assert find(word).name == name


def test_file_names_of_tuned_configurations() -> None:
    assert find("E=128,N=1024,device_name=NVIDIA_H200,dtype=fp8_w8a8.json").name == "H200"
    assert find("E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB.json").name == "A100"


def test_no_spelling_means_two_gpus() -> None:
    owner: dict[str, str] = {}
    for stem, raw in raw_specs().items():
        for word in (stem, raw["name"], *raw["aliases"]):
            assert owner.setdefault(key_of(word), raw["name"]) == raw["name"], word


def test_all_promised_parts_are_there() -> None:
    promised = (
        "V100,T4,A100,A100 SXM 40GB,A100 PCIe 40GB,A100 PCIe 80GB,A30,A10,A40,RTX A6000,L4,L20,L40,L40S,RTX 4090,"
        "RTX 6000 Ada,H100,H100 PCIe,H100 NVL,H800,H20,H200,GH200,B200,GB200,B300,GB300,RTX 5090,RTX PRO 6000 Server,"
        "RTX PRO 6000 Max-Q,DGX Spark,A800"
    )
    assert set(promised.split(",")) <= set(names())


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("H201", "H200"),
        ("H10", "H100"),
        ("B20", "B200"),
        ("h20O", "H200"),
        ("RTX 4080", "RTX 4090"),
        ("L400S", "L40S"),
        ("rtx_pro_6000_sever", "RTX PRO"),
        ("8xH200", "H200"),
        ("h100x8", "H100"),
        ("DGX B200", "B200"),
    ],
)
def test_unknown_names_say_what_would_work(word: str, meant: str) -> None:
    with pytest.raises(UnknownGPU, match=f"unknown GPU '{word}': did you mean {meant}.* or pass a spec file") as caught:
        find(word)
    assert caught.value.field == "gpu"


@pytest.mark.parametrize(
    "word", ["", " ", "NVIDIA", "AMD", "MI", "\0", "x" * 9999, "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"]
)
def test_what_is_no_gpu_is_never_taken_for_one(word: str) -> None:
    with pytest.raises(UnknownGPU, match="unknown GPU"):
        find(word)


@pytest.mark.parametrize("value", [None, 3, 1.5, ["H200"], b"H200"])
def test_wrong_types_are_bad_input(value: object) -> None:
    with pytest.raises(BadInput, match="give a name, a spec file or a GPU"):
        find(value)  # type: ignore[arg-type]


def test_a_gpu_is_found_by_itself_and_survives_a_process_boundary() -> None:
    gpu = find("L4")
    assert find(gpu) is gpu is find("l4")
    copy = pickle.loads(pickle.dumps(gpu))
    assert copy == gpu
    assert hash(copy) == hash(gpu)
    assert copy.sources["sms"] == gpu.sources["sms"]


def test_rows_for_people() -> None:
    rows = summary_rows()
    assert [row["name"] for row in rows] == list(names())
    assert all(tuple(row) == SUMMARY_FIELDS for row in rows)
    by_field = {row["field"]: row for row in field_rows("H200")}
    assert tuple(by_field) == VALUE_FIELDS
    assert by_field["dram_gbps"]["value"] == 4800
    assert by_field["dram_measured_gbps"]["kind"] == "measured"
    assert json.dumps(rows)


@pytest.mark.parametrize(
    ("field", "unit"),
    [
        ("dram_gbps", "GB/s"),
        ("l2_mb", "MiB"),
        ("smem_kb_per_sm", "KB/SM"),
        ("smem_bytes_per_clk_per_sm", "B/clk/SM"),
        ("bf16_tflops", "TFLOP/s"),
        ("sms", ""),
        ("fma_per_clk_per_sm", "/clk/SM"),
    ],
)
def test_units(field: str, unit: str) -> None:
    assert unit_of(field) == unit


@pytest.mark.skipif(not (DATA / "pipeweave" / "hardware").is_dir(), reason="public corpus absent")
def test_agrees_with_the_published_hardware_tables() -> None:
    tables = sorted((DATA / "pipeweave" / "hardware").glob("*.json"))
    assert len(tables) >= 11
    for path in tables:
        row = json.loads(path.read_text())
        gpu = find(path.stem)
        assert find(row["name"]) is gpu
        assert gpu.sms == row["numSms"]
        assert gpu.compute_capability == 10 * row["computeMajor"] + row["computeMinor"]
        assert gpu.l2_gbps == row["l2CacheBandwidth"]
        assert gpu.smem_kb_per_sm == row["sharedMemorySize"]
        assert gpu.fma_per_clk_per_sm == row["FmaFp32"]
        assert gpu.xu_per_clk_per_sm == row["xuFp32"]
        assert gpu.dram_peak_gbps == pytest.approx(row["memBandwidth"], rel=1e-3)
        assert gpu.flops_per_clk_per_sm("bf16") == pytest.approx(row["tcBf16"], rel=0.02)


@pytest.mark.skipif(not (DATA / "aiconfigurator" / "systems").is_dir(), reason="public corpus absent")
def test_agrees_with_the_published_system_files() -> None:
    import yaml

    systems = sorted((DATA / "aiconfigurator" / "systems").glob("*.yaml"))
    assert len(systems) >= 6
    for path in systems:
        system = yaml.safe_load(path.read_text())
        chip, node, gpu = system["gpu"], system["node"], find(path.stem)
        assert gpu.compute_capability == chip["sm_version"]
        assert gpu.dram_gbps == pytest.approx(chip["mem_bw"] / 1e9, rel=1e-3)
        assert gpu.peak_flops("bf16") == pytest.approx(chip["bfloat16_tc_flops"], rel=1e-3)
        assert gpu.peak_flops("int8") == pytest.approx(chip["int8_tc_flops"], rel=1e-3)
        assert gpu.supports("fp8") is ("fp8_tc_flops" in chip)
        assert gpu.tdp_w == chip["power"]
        assert gpu.link_gbps == pytest.approx(node["intra_node_bw"] / 1e9)
        assert gpu.gpus_per_node == node["num_gpus_per_node"]


@pytest.mark.skipif(not DATA.is_dir(), reason="public corpus absent")
def test_corpus_folders_are_names() -> None:
    folders = [path.name for path in (DATA / "aiconfigurator").iterdir() if path.is_dir() and path.name != "systems"]
    folders += [path.name for path in (DATA / "pipeweave" / "dataset" / "collective").iterdir()]
    folders += [path.name for path in (DATA / "llmservingsim" / "perf").iterdir()]
    folders += [path.name for path in (DATA / "vidur" / "profiling" / "compute").iterdir()]
    assert len(folders) >= 15
    for folder in folders:
        assert find(folder)
