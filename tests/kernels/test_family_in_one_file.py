"""A family declared in one file works through every face: predictions, cases, commands, profiles, plans, pages."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import pipewave as pw
from pipewave.calls import families as calls
from pipewave.calls.families import class_of
from pipewave.calls.fields import Call, of
from pipewave.cli import build
from pipewave.errors import UnknownKernel
from pipewave.files import packaged
from pipewave.kernels import Analysis, Columns, Context, Family, base, families, family_of, group_of, register
from pipewave.kernels.family_metadata import FamilyMetadata, KernelName, Measurements, Page, Profile, Runner
from pipewave.kernels.profiler import Given, Kernel, Launched, Op
from pipewave.measure import plan
from pipewave.measure.impls import runner
from pipewave.measure.plan import rough_us
from pipewave.physics.demand import demand
from pipewave.physics.overlap import launch_s
from pipewave.prediction.jsonl import answer_stream
from pipewave.traces.group import group, recorded_call
from pipewave.traces.kernel_names import kind_of
from tests.command_line import CliRunner
from tests.registered import withdraw

NAME = "void toy::prefix_scan_kernel<float>(float*)"


@dataclass(frozen=True, slots=True)
class PrefixScan(Call):
    """Running sums of so many values."""

    kernel: ClassVar[str] = "prefix_scan"
    values: int = of("int")
    dtype: str = of("str", "bf16", choices=("bf16", "fp16"))


def analyse(cols: Columns, ctx: Context) -> Analysis:
    moved = 4.0 * cols["values"]
    work = demand(len(moved), dram=moved, l2=moved, fma=cols["values"], launch=1.0)
    return Analysis(work, launch_s(ctx.gpu) + moved / (0.8e9 * ctx.gpu.dram_gbps), {}, "")


def from_operator(op: Op, launched: Launched) -> Call | None:
    dtype = op.dtype(0, launched)
    return PrefixScan(op.shape(0)[0], dtype=dtype) if op.shape(0) and dtype else None


METADATA = FamilyMetadata(
    Profile((KernelName(95, r"toy::prefix_scan", "scan", "cub"),), operators={"toy::scan": from_operator}),
    {
        "prefix_scan": Measurements(
            runners={"cub": Runner("torch_scan", "cub", "torch")},
            usual={"": "cub"},
            work=lambda case: (0.0, 4.0 * case["values"]),
            group=("values",),
        )
    },
    Page({}, {"field": "values", "from": 1, "to": 1 << 20}),
)
FAMILY = Family(
    "prefix_scan",
    PrefixScan,
    analyse,
    dtypes=("bf16", "fp16"),
    reads="activations",
    example="pipewave predict prefix_scan 1048576",
    metadata=METADATA,
)


@pytest.fixture
def family() -> Iterator[Family]:
    yield register(FAMILY)
    withdraw(FAMILY.name)


def test_predictions_and_cases(family: Family) -> None:
    answers = pw.predict([PrefixScan(1 << power) for power in (10, 20, 28)], "H200")
    assert list(answers.latency_us) == sorted(answers.latency_us)
    assert answers[2].bound == "dram"
    out = io.StringIO()
    answer_stream(['{"id": 1, "kernel": "prefix_scan", "values": 1048576}'], out, gpu="H200")
    assert json.loads(out.getvalue())["latency_us"] == round(answers[1].latency_us, 6)


def test_command_line(family: Family) -> None:
    found = CliRunner().invoke(build(), ["predict", "prefix_scan", "1048576", "--gpu", "H200", "--format", "json"])
    assert found.exit_code == 0, found.output
    assert (
        json.loads(found.output)["predictions"][0]["latency_us"] == pw.predict(PrefixScan(1 << 20), "H200").latency_us
    )
    shown = CliRunner().invoke(build(), ["predict", "prefix_scan", "--help"])
    assert "Running sums" in shown.output and family.example.split()[-1] in shown.output


def test_profiles(family: Family) -> None:
    assert (kind_of(NAME).family, kind_of(NAME).role) == ("prefix_scan", "scan")
    op = Op(1, "toy::scan", ((4096,),), ("c10::BFloat16",))
    (launched,) = group([Kernel(NAME, 0.0, 5.0, ops=(op,))])
    shaped = recorded_call(launched, None, Given())
    assert shaped is not None and shaped.call == PrefixScan(4096)


@pytest.mark.slow
def test_plans(family: Family, tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"kernel": "prefix_scan", "values": 4096, "dtype": "bf16"}\n')
    (found,) = plan.from_file(file)
    assert (found.impl, runner(found).library) == ("cub", "torch")
    assert rough_us(found.case) > 0 and group_of(found.case) == str(found.case["values"])


def test_pages(family: Family) -> None:
    pytest.importorskip("pydantic")
    from pipewave.web.catalogue import kernels

    (found,) = [one for one in kernels() if one["kernel"] == "prefix_scan"]
    assert found["example"] == {"case": {}, "sweep": {"field": "values", "from": 1, "to": 1 << 20}}
    assert next(f for f in found["fields"] if f["name"] == "dtype")["choices"] == ["bf16", "fp16"]


def test_a_withdrawn_family_leaves_nothing_behind() -> None:
    register(FAMILY)
    withdraw(FAMILY.name)
    assert kind_of(NAME).family == "elementwise"  # a general pattern, which the family's own came before
    assert "prefix_scan" not in families()
    with pytest.raises(UnknownKernel):
        class_of("prefix_scan")


def test_built_in_families_and_call_classes_agree() -> None:
    known = {name: family_of(name) for name in packaged.shared(base.FAMILIES)}
    assert {family.call for family in known.values()} == set(calls.BUILT_IN)
    assert all(name == family.name == family.call.kernel for name, family in known.items())


def test_a_command_about_a_kernel_loads_no_other_family() -> None:
    asked = ["predict", "gemm", "4096", "4096", "4096"]
    code = f"import sys; from pipewave.cli import build; build().run({asked}); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    loaded = {name.split(".")[2] for name in shown.split() if name.startswith("pipewave.kernels.")}
    assert "gemm" in loaded and not loaded & {"attention", "moe", "recurrent", "collective", "operators"}


def test_built_in_faces_are_whole() -> None:
    for family in map(family_of, packaged.shared(base.FAMILIES)):
        assert not family.metadata or (family.profile.names and family.rows and family.page), family.name
