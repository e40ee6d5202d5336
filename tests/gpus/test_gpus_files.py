"""Users' spec files: fifteen lines are enough, and every bad one is refused by field."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pipewave.errors import BadFile, BadInput, MissingField, PipewaveError, UnknownField, UnknownGPU
from pipewave.gpus import all_gpus, find
from pipewave.gpus.shipped import REQUIRED
from pipewave.gpus.spec import LIMITS, VALUE_FIELDS
from pipewave.gpus.userfile import RATIOS
from tests.sampled import examples

MINIMAL: dict[str, Any] = {
    "name": "My H100",
    "compute_capability": 90,
    "sms": 132,
    "boost_clock_mhz": 1980,
    "bf16_tflops": 989.4,
    "dram_gb": 80,
    "dram_gbps": 3350,
    "l2_mb": 50,
    "tdp_w": 700,
}
DOC = Path(__file__).parents[2] / "docs" / "add-a-gpu.md"


def _write(folder: Path, content: object, name: str = "my.yaml") -> Path:
    path = folder / name
    dump = json.dumps if path.suffix == ".json" else yaml.safe_dump
    path.write_text(content if isinstance(content, str) else dump(content))
    return path


@pytest.mark.parametrize("name", ["my.yaml", "my.yml", "my.json"])
def test_a_datasheets_numbers_are_enough(tmp_path: Path, name: str) -> None:
    gpu = find(str(_write(tmp_path, MINIMAL, name)))
    assert gpu.name == "My H100"
    assert set(gpu.sources) == set(VALUE_FIELDS)
    assert gpu.sources["dram_gbps"].kind == "unverified"
    assert gpu.sources["l2_gbps"].kind == "derived"
    assert find(tmp_path / name) == gpu


def test_what_is_derived_comes_near_the_real_part(tmp_path: Path) -> None:
    gpu, real = find(_write(tmp_path, MINIMAL)), find("H100")
    for field in ("fp16_tflops", "fp8_tflops", "tf32_tflops", "int8_tops", "fp32_tflops", "smem_kb_per_sm"):
        assert getattr(gpu, field) == pytest.approx(getattr(real, field), rel=0.01), field
    assert gpu.l2_gbps == pytest.approx(real.l2_gbps, rel=0.15)
    assert gpu.dram_gib == pytest.approx(real.dram_gib, rel=0.06)
    assert not gpu.supports("nvfp4")


def test_a_base_with_changes(tmp_path: Path) -> None:
    gpu = find(_write(tmp_path, {"base": "H100", "dram_gbps": 2400, "sources": {"dram_gbps": "the seller's page"}}))
    assert gpu.name == "H100 (my)"
    assert gpu.dram_gbps == 2400
    assert gpu.bf16_tflops == find("H100").bf16_tflops
    assert (gpu.sources["dram_gbps"].kind, gpu.sources["dram_gbps"].note) == ("datasheet", "the seller's page")


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    path = _write(tmp_path, MINIMAL)
    assert find(path).dram_gbps == 3350
    _write(tmp_path, MINIMAL | {"dram_gbps": 12345})
    assert find(path).dram_gbps == 12345


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_number_is_named(tmp_path: Path, field: str) -> None:
    content = {key: value for key, value in MINIMAL.items() if key != field}
    with pytest.raises(MissingField, match=f"my.yaml: {field} is missing") as caught:
        find(_write(tmp_path, content))
    assert caught.value.field == field


BAD = st.one_of(
    st.sampled_from([0, -1, math.nan, math.inf, 1e12, 10**400, True, "fast", "", [], {}, [1, 2], None]),
    st.floats(max_value=0),
    st.text(max_size=4),
)


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(set(LIMITS) - {"compute_capability"})), BAD, st.booleans())
def test_bad_values_name_file_field_and_range(tmp_path: Path, field: str, value: object, with_base: bool) -> None:
    if value is None and LIMITS[field].optional:
        return
    content = {"base": "H100"} if with_base else MINIMAL
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**content, field: value}))
    with pytest.raises(PipewaveError) as caught:
        find(path)
    assert "bad.json" in str(caught.value)
    if isinstance(caught.value, BadInput):  # else the JSON parser itself refused a number of 400 digits
        assert caught.value.field == field
        assert isinstance(caught.value, MissingField) or str(LIMITS[field]) in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"dram_gpbs": 1}, UnknownField, "unknown GPU field 'dram_gpbs': did you mean dram_gbps"),
        ({"name": "H100"}, BadInput, "name = 'H100' is taken by H100"),
        ({"name": 7}, BadInput, "name = 7"),
        ({"name": " "}, BadInput, "name = ' '"),
        ({"base": "H999X"}, BadInput, "base = 'H999X' is not possible"),
        ({"base": ["H100"]}, BadInput, "base = "),
        ({"base": None}, BadInput, "base = None"),
        ({"compute_capability": 99}, BadInput, "compute_capability = 99 has no traits: use one of 70, 75"),
        ({"sources": ["x"]}, BadInput, "sources = "),
        ({"sources": {"nothing": "x"}}, UnknownField, "sources names 'nothing'"),
        ({"sources": {"sms": {"kind": "rumour"}}}, BadInput, "sources.sms = "),
        ({"sustained_clock_mhz": 2500}, BadInput, "above boost_clock_mhz"),
        ({"architecture": "hopper"}, UnknownField, "unknown GPU field 'architecture'"),
    ],
)
def test_bad_content(tmp_path: Path, extra: dict[str, Any], error: type[BadInput], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        find(_write(tmp_path, MINIMAL | extra))
    assert str(caught.value).startswith("my.yaml: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.json", ""),
        ("a.json", "[1, 2]"),
        ("a.json", "[" * 100_000),
        ("a.yaml", "a: [1,"),
        ("a.yaml", "just text"),
        ("a.yaml", ""),
        ("a.yaml", "1: 2"),
        ("a.yaml", "a: !!python/object:os.system {}"),
        ("a.yaml", "\x07: 1"),
        ("a.yaml", "name: x\n" * 200_000),
    ],
)
def test_unreadable_content_is_a_bad_file(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(BadFile, match=re.escape(name)) as caught:
        find(_write(tmp_path, text, name))
    assert caught.value.field == "gpu"


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(BadFile, match="is no GPU file"):
        find(tmp_path / "folder.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match="cannot read"):
        find(tmp_path / "bytes.yaml")
    with pytest.raises(UnknownGPU, match=r"absent\.yaml': no such file"):
        find(tmp_path / "absent.yaml")


def test_examples_of_the_documentation(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml[^\n]*\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        assert len(block.splitlines()) <= 15
        assert find(_write(tmp_path, block, f"example{number}.yaml")).sms > 0


def test_finding_a_shipped_gpu_needs_neither_yaml_nor_pydantic() -> None:
    code = "import sys; from pipewave.gpus import find; find('H200'); print({'yaml', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "line",
    ['sms: !!int ""', "sms: !!bool maybe", "sms: !!timestamp 2020", "sms: !!python/name:os.system", "sms: 2020-99-99"],
)
def test_tags_and_dates_are_refused_as_a_bad_value(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"base: H200\nname: Mine\n{line}\n")
    with pytest.raises(PipewaveError):
        find(path)


def test_aliases_are_refused_before_they_grow(tmp_path: Path) -> None:
    bomb = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    bomb += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(bomb))
    with pytest.raises(BadFile, match="aliases"):
        find(path)


@pytest.mark.parametrize("base", ["H200", "T4", "MI300X"])
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_slip_of_a_thousand_is_refused_by_field(tmp_path: Path, base: str, factor: float) -> None:
    gpu = find(base)
    for field, limit in LIMITS.items():
        value = getattr(gpu, field)
        if value is None or field == "compute_capability":
            continue
        slipped = value * factor
        slipped = int(slipped) if limit.whole and slipped == int(slipped) else slipped
        with pytest.raises(BadInput, match=field):
            find(_write(tmp_path, {"base": base, field: slipped}, f"{field}.json"))


def test_shipped_gpus_are_plausible_with_room() -> None:
    for gpu in all_gpus():
        for field, beside, low, high in RATIOS:
            value, other = getattr(gpu, field), getattr(gpu, beside)
            assert None in (value, other) or low <= value / other <= high, (gpu.name, field)
