"""A short list written as one function, beside working out each candidate's counts and law alone."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from lab.own_kernels.kernels import gemm, prefill  # noqa: E402
from pipewave.tune import compiled_chooser as deciding  # noqa: E402
from pipewave.tune.chooser import Chooser  # noqa: E402
from pipewave.tune.compiled_chooser import (  # noqa: E402
    CELL_BITS,
    Candidate,
    compiled_chooser,
    factors_at,
    short,
)
from pipewave.tune.law import wave  # noqa: E402
from pipewave.tune.law.anchors import Floats  # noqa: E402
from pipewave.tune.source.formula import constants_of, formula, inputs_of, values_of  # noqa: E402
from pipewave.tune.source.inspect import Shaped  # noqa: E402
from tests.with_triton.launches import dense, two_ways  # noqa: E402

SMS = 132


def causal(batch: int, q_len: int, heads: int) -> tuple[Any, Any, dict[str, Any]]:
    q = Shaped(batch * q_len * heads * 64, 2)
    named = {"q": q, "k": q, "v": q, "o": q, "scale": 0.1, "HEAD_DIM": 64, "CAUSAL": True, "q_len": q_len,
             "kv_len": q_len, "heads": heads, "kv_heads": heads}  # fmt: skip
    return prefill.prefill, lambda c: (batch * heads * -(-q_len // c["BLOCK_M"]), 1, 1), named


def drawn_law(pick: random.Random) -> Floats:
    """A law with a few of its terms, as a fit leaves it."""
    return np.array([pick.uniform(0.1, 2.0) if pick.random() < 0.6 else 0.0
                     for _ in range(len(wave.TERMS))])  # fmt: skip


def drawn_dense(pick: random.Random) -> tuple[Any, Any, dict[str, Any]]:
    return gemm.gemm, *dense(*(round(math.exp(pick.uniform(0, 10))) for _ in range(3)))


def drawn_causal(pick: random.Random) -> tuple[Any, Any, dict[str, Any]]:
    return causal(pick.randint(1, 64), round(math.exp(pick.uniform(0, 9))), pick.choice((1, 8, 32)))


needs_compiler = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang")), reason="no C compiler")


def chooser(every: Sequence[Candidate], by: Sequence[float]) -> tuple[tuple[str, ...], Any]:
    """The inputs of a key, and a function of keys: all launches lie in one cell, whose list has all candidates."""
    inputs = tuple(dict.fromkeys(name for one in every for way in one.counted for name in way.inputs))
    lists = {0: short(np.arange(len(every)), np.array([by]))}
    return inputs, compiled_chooser(every, inputs, (), {1: lists}, SMS)


@needs_compiler
@pytest.mark.parametrize(("draw", "blocks"), [(drawn_dense, ("M", "N", "K")), (drawn_causal, ("M", "N"))])
@pytest.mark.parametrize("seed", range(4))
def test_a_written_short_list_chooses_as_its_laws_do_one_by_one(draw: Any, blocks: tuple[str, ...], seed: int) -> None:
    pick = random.Random(seed)
    kernel, grid, named = draw(pick)
    every = []
    for index in range(4):
        config = {f"BLOCK_{name}": pick.choice((16, 32, 64, 128)) for name in blocks}
        made = formula(kernel, grid, named, config, constants_of(kernel))
        every.append(Candidate(index, [made], drawn_law(pick), pick.choice((1, 2, 3, 8))))
    by = [pick.uniform(0.8, 1.2) for _ in every]
    inputs, choose = chooser(every, by)
    for _ in range(40):
        _, grid, named = draw(pick)
        numbers = inputs_of(grid, named, constants_of(kernel))
        works = [one.counted[0].one(*values_of(one.counted[0].inputs, numbers)) for one in every]
        found = choose(tuple(values_of(inputs, numbers)))
        if any(work is None for work in works):
            assert found is None
            continue
        us = [factor * np.dot(wave.terms(wave.LaunchCounts(*work[:5]), SMS, one.resident), one.law)
              for factor, work, one in zip(by, works, every, strict=True)]  # fmt: skip
        assert us[found] == pytest.approx(min(us), rel=1e-9)


@needs_compiler
def test_a_launch_that_takes_another_turn_has_no_answer() -> None:
    named = {"x": Shaped(4096, 2), "n": 4096}
    every = [Candidate(i, [formula(two_ways, lambda c: (1,), named, {"BLOCK": block}, ())], np.ones(len(wave.TERMS)), 1)
             for i, block in enumerate((64, 128))]  # fmt: skip
    inputs, choose = chooser(every, (1.0, 1.0))
    assert choose(tuple(values_of(inputs, {"n": 200, "numel:x": 4096}))) == 1
    assert choose(tuple(values_of(inputs, {"n": 50, "numel:x": 4096}))) is None
    assert choose(("no number",) * len(inputs)) is None
    assert choose(()) is None
    both = [replace(one, counted=[*one.counted, formula(two_ways, lambda c: (1,), {**named, "n": 50}, {"BLOCK": block}, ())])
            for one, block in zip(every, (64, 128), strict=True)]  # fmt: skip
    inputs, choose = chooser(both, (1.0, 1.5))
    ways = [one.counted[1].one(*values_of(one.counted[1].inputs, {"n": 50, "numel:x": 4096})) for one in both]
    assert all(ways) and choose(tuple(values_of(inputs, {"n": 50, "numel:x": 4096}))) == 0, "read that way, too"
    assert choose(tuple(values_of(inputs, {"n": 200, "numel:x": 4096}))) == 1


@needs_compiler
def test_the_narrowest_cell_that_has_a_list_answers() -> None:
    every = [Candidate(i, [formula(gemm.gemm, *dense(64, 64, 64), {f"BLOCK_{name}": 16 for name in "MNK"},
                                   constants_of(gemm.gemm))], np.ones(len(wave.TERMS)), 1) for i in range(3)]  # fmt: skip
    inputs = every[0].counted[0].inputs
    at = [inputs.index(name) for name in ("grid:m", "K")]
    cells: tuple[dict[int, bytes], ...] = ({}, {}, {})
    choose = compiled_chooser(every, inputs, at, dict(zip((1, 2, 4), cells, strict=True)), SMS)

    def chosen(m: int, k: int) -> Any:
        return choose(tuple(m if name == "grid:m" else k if name == "K" else 4096 for name in inputs))

    assert chosen(96, 1000) is None
    for level, (bits_m, bits_k) in reversed(list(enumerate(((7, 10), (3, 5), (1, 2))))):
        cells[level][bits_m << CELL_BITS | bits_k] = short(np.array([level]), np.ones((1, 1)))
        assert chosen(96, 1000) == level
    assert chosen(80, 1000) == 0, "of the same octave"
    assert chosen(64, 1000) == 1, "63 has a bit less, and so 6 // 2 = 3"
    assert chosen(96, 1025) == 1
    assert chosen(16, 1000) == 2


@needs_compiler
def test_factors_are_those_of_the_nearest_launches_in_c_as_in_python() -> None:
    pick = random.Random(3)
    every = [Candidate(i, [formula(gemm.gemm, *dense(64, 64, 64), {f"BLOCK_{name}": 16 for name in "MNK"},
                                   constants_of(gemm.gemm))], np.ones(len(wave.TERMS)), 1) for i in range(3)]  # fmt: skip
    inputs = every[0].counted[0].inputs
    at = [inputs.index(name) for name in ("grid:m", "K")]
    logs = np.log([[pick.randint(65, 128), pick.randint(513, 1024)] for _ in range(9)])
    listed = short(np.arange(3), np.array([[pick.uniform(0.5, 2.0) for _ in range(3)] for _ in logs]), logs)
    choose = compiled_chooser(every, inputs, at, {1: {7 << CELL_BITS | 10: listed}}, SMS)
    for _ in range(50):
        m, k = pick.randint(65, 128), pick.randint(513, 1024)
        _, factors = factors_at(listed, np.log([m, k]))
        key = tuple(m if name == "grid:m" else k if name == "K" else 4096 for name in inputs)
        assert choose(key) == factors.argmin(), "their laws are alike"
    exact = factors_at(listed, logs[4])[1]
    assert abs(np.log(exact / np.frombuffer(listed)[5 + 3 * 4 : 5 + 3 * 5])).max() < 0.7, "mostly its own"


@pytest.mark.parametrize("missing", [RuntimeError("Failed to find C compiler"), OSError(2, "gcc"),
                                     subprocess.CalledProcessError(1, "gcc")])  # fmt: skip
def test_where_nothing_compiles_there_is_no_function(missing: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: str, name: str) -> None:
        raise missing

    monkeypatch.setattr("triton.runtime.build.compile_module_from_src", fails)
    monkeypatch.setattr(deciding, "module", deciding.module.__wrapped__)
    every = [Candidate(0, [formula(gemm.gemm, *dense(64, 64, 64), {f"BLOCK_{name}": 16 for name in "MNK"},
                                   constants_of(gemm.gemm))], np.ones(len(wave.TERMS)), 1)]  # fmt: skip
    assert chooser(every, (1.0,))[1] is None


def test_what_would_win_with_every_sm_filled_is_a_candidate() -> None:
    of = SimpleNamespace(usable=np.array([3, 5, 7, 8]), model=SimpleNamespace(peaks=SimpleNamespace(sms=SMS)))
    lost = np.log([[1.0, 1.5, 1.5, 1.1], [1.0, 1.2, 1.5, 1.1]])
    blocks = np.array([[SMS, SMS + 1, 2 * SMS, 1], [SMS, 2 * SMS, 2 * SMS, 1]])
    found = Chooser._bounded(of, lost, blocks)  # type: ignore[arg-type]
    assert found == [5, 3], "the second runs a wave for one block; the third and the fourth have no wave to fill"
