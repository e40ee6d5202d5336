"""The kernels of `studies.any_kernel`: read from their source without surprises, and compiled for a card nobody needs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from lab import in_turns, vllm_block_files  # noqa: E402
from lab.any_kernel import record, spaces  # noqa: E402
from lab.any_kernel.listed import subjects  # noqa: E402
from lab.any_kernel.subjects import Subject  # noqa: E402
from lab.any_kernel.wheels import CACHE  # noqa: E402
from pipewave.tune.law.anchors import peaks_of  # noqa: E402
from pipewave.tune.source.formula import inputs_of, unwrapped  # noqa: E402
from pipewave.tune.user_kernels import measuring  # noqa: E402
from pipewave.tune.user_kernels.device import Built, Launch  # noqa: E402
from pipewave.tune.user_kernels.kernel import described  # noqa: E402
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas  # noqa: E402
from studies.any_kernel import first_use  # noqa: E402
from studies.any_kernel.__main__ import scored, table  # noqa: E402
from studies.any_kernel.paper import on_paper  # noqa: E402

TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
}


OVER_DATA = "sglang_decode", "cut_cross_entropy"  # loops over lengths on the device, and over a lock


def here() -> list[Subject]:
    return [one for one in subjects() if one.project == "tutorials" or (CACHE / "vllm_block_fp8.py").is_file()]


def launch_of(subject: Subject, seed: int) -> tuple[Any, dict[str, Any], dict[str, int]]:
    shape = subject.shapes(6, seed)[seed]
    if subject.name == "vllm_fused_moe":
        shape["m"] = min(shape["m"], 256)
    grid, args, kwargs = subject.launch(on_paper(), shape)
    names = unwrapped(subject.kernel())[0].arg_names
    return grid, {**dict(zip(names, args, strict=False)), **kwargs}, shape


@pytest.mark.parametrize("subject", here(), ids=lambda one: one.name)
def test_every_kernel_is_read_and_its_work_is_plausible(subject: Subject) -> None:
    of = described(subject.kernel(), subject.configs, subject.key, subject.trips)
    works = LaunchFormulas(of)
    for seed in range(3):
        grid, named, _ = launch_of(subject, seed)
        numbers = inputs_of(grid, named, of.flags)
        works.read(grid, named, numbers)
        counts = works.counts(numbers)
        assert (counts[:, 0] >= 1).all()
        assert (counts[:, 1] > 0).all()
        assert (counts[:, 2] >= counts[:, 1] * (1 - 1e-9)).all()
        assert (counts[:, 3] > 0).all()
    loops = [why for why in works.unknown if "loop" in why]
    assert subject.trips is not None or bool(loops) == (subject.name in OVER_DATA)


def test_a_products_flops_are_those_of_its_formula() -> None:
    products = ("matmul", "flag_gems_mm", "vllm_block_fp8", "persistent_matmul")
    assert {"matmul", "persistent_matmul"} <= {subject.name for subject in here()}
    for subject in here():
        if subject.name in products:
            of = described(subject.kernel(), subject.configs, subject.key, subject.trips)
            grid, named, s = launch_of(subject, 1)
            works = LaunchFormulas(of)
            numbers = inputs_of(grid, named, of.flags)
            works.read(grid, named, numbers)
            flops = works.counts(numbers)[:, 5]
            assert (flops >= 2 * s["m"] * s["n"] * s["k"] * 0.99).all(), subject.name
            padded = [
                math.prod(
                    -(-s[x] // c.get(f"BLOCK_{x.upper()}", c.get(f"BLOCK_SIZE_{x.upper()}")))
                    * c.get(f"BLOCK_{x.upper()}", c.get(f"BLOCK_SIZE_{x.upper()}"))
                    for x in "mnk"
                )
                for c in subject.configs
            ]  # type: ignore[arg-type,operator]
            assert flops == pytest.approx([2 * each for each in padded], rel=0.1), subject.name


@pytest.mark.parametrize("subject", here(), ids=lambda one: one.name)
def test_every_kernel_compiles(subject: Subject) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    code = unwrapped(subject.kernel())[0]
    if not hasattr(code, "params"):
        pytest.skip("kernels run in the interpreter here; TRITON_INTERPRET=0 compiles them")
    _, named, _ = launch_of(subject, 0)
    config = dict(subject.configs[0])
    options = {name: config.pop(name) for name in ("num_warps", "num_stages") if name in config}
    named |= config
    if hasattr(subject.kernel(), "values"):
        named |= {name: of(named) for name, of in subject.kernel().values.items()}
    constants = {p.name: named[p.name] for p in code.params if p.is_constexpr or named.get(p.name) is None}
    signature = {
        name: "constexpr"
        if name in constants
        else TYPES.get(getattr(named[name], "dtype", None)) or ("fp32" if isinstance(named[name], float) else "i32")
        for name in code.arg_names
    }
    made = triton.compile(ASTSource(code, signature, constants, {}), target=GPUTarget("cuda", 90, 32), options=options)
    assert made.metadata.shared < 232_448


class MadeUp:
    """A card whose times grow with a configuration's number; one configuration does not compile."""

    def __init__(self) -> None:
        self.peaks, self.env = (
            peaks_of("NVIDIA H200"),
            {"gpu": "NVIDIA H200", "driver": "1", "triton": "3", "sm_count": 132},
        )

    def idle(self) -> bool:
        return True

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        return {index: Built(1000, 64, "no" if index == 1 else "") for index in configs}

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        return [10.0 + index for index in order]


@pytest.mark.parametrize("name", ["matmul", "layer_norm"])
def test_recording_and_scoring_run_through(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "ANCHORS", 9)
    monkeypatch.setattr(record, "TESTS", 4)
    monkeypatch.setattr(measuring, "SHARE", np.inf)  # of the budget: all are timed at the one launch that it pays for
    subject = next(one for one in subjects() if one.name == name)
    made = record.record(subject, MadeUp(), on_paper(), 60.0)
    assert (len(made.shapes), sum(made.is_test)) == (13, 4)
    assert np.isnan(made.us()[:, 1]).all()
    assert np.isfinite(np.delete(made.us(), 1, axis=1)).all()
    spaces.write(made, tmp_path / f"{name}{spaces.SUFFIX}")
    used = record.first_use(subject, MadeUp(), on_paper(), made, budget_s=1e-4)
    assert not used["upstream"]
    assert used["measured"] >= 1
    assert used["measured_regret"] == 0
    found = scored(tmp_path, None, 20)
    assert found[name]["selectors"]["pipewave"]["mean_regret"] < 0.05
    assert name in table(found)


def test_first_use_is_replayed_from_a_recording(tmp_path: Path) -> None:
    subject = next(one for one in subjects() if one.name == "softmax")
    space = spaces.read(first_use.SPACES / f"softmax{spaces.SUFFIX}")
    used = first_use.replayed(subject, space)
    assert not used["upstream"]
    assert used["measured"] == len(space.shapes)  # two seconds are enough for all of them
    assert used["measured_regret"] <= 0.05


class Answering:
    """An engine that answers each batch with the next of its times."""

    def __init__(self, name: str, times: list[float], asked: list[str]) -> None:
        self.name, self._times, self._asked = name, iter(times), asked

    def ask(self, what: int) -> dict[str, float]:
        self._asked.append(self.name)
        taken = next(self._times)
        return {"ms": taken, "generate_ms": taken + what}


def test_engines_with_and_without_files_take_turns_and_the_first_batch_does_not_count() -> None:
    asked: list[str] = []
    engines: Any = [Answering("default", [99.0, *[12.0] * 7], asked), Answering("ours", [99.0, *[10.0] * 7], asked)]
    row = in_turns.compared(engines, 512, 7)
    assert row["ms"] == {"default": 12.0, "ours": 10.0}
    assert row["generate_ms"] == {"default": 524.0, "ours": 522.0}
    assert row["speed_up"] == {"ours": pytest.approx(1.2)}
    assert row["speed_up_rounds"]["ours"] == pytest.approx([1.2, 1.2])
    assert asked[:4] == ["ours", "default", "default", "ours"]


def test_an_engine_is_asked_over_its_own_process_and_says_when_it_has_ended(tmp_path: Path) -> None:
    twice = "import sys, json\nfor line in sys.stdin: print(json.dumps({'ms': 2 * json.loads(line)}), flush=True)"
    engine = in_turns.Served("twice", [sys.executable, "-c", twice], {}, tmp_path / "log")
    assert engine.ask(21) == {"ms": 42}
    engine.close()
    with pytest.raises(RuntimeError, match="twice"):
        engine.line()


def test_files_are_laid_over_an_installation_where_its_reader_looks_for_them(tmp_path: Path) -> None:
    here = tmp_path / "site" / "vllm" / vllm_block_files.FOLDER
    (here / "configs").mkdir(parents=True)
    (here / vllm_block_files.READER).write_text("here = __file__")
    (here / "configs" / "a.json").write_text("installed")
    files = tmp_path / "files" / "vllm"
    files.mkdir(parents=True)
    (files / "a.json").write_text("ours")
    over = vllm_block_files.overlaid(tmp_path / "site" / "vllm", files, tmp_path / "over")
    reader = (over / "vllm" / vllm_block_files.FOLDER / vllm_block_files.READER).resolve()
    assert (reader.parent / "configs" / "a.json").read_text() == "ours"
    assert (here / "configs" / "a.json").read_text() == "installed"
