"""Inductor's candidates cut to the few that the law ranks first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.own_kernels.space import space
from pipewave.tune import load_table
from pipewave.tune.inductor import NAMES, cut, fewer, ranked


def choice(**kwargs: int) -> Any:
    return SimpleNamespace(params=SimpleNamespace(to_kwargs=lambda: kwargs), extra_kwargs={})


def members(count: int) -> list[dict[str, int]]:
    of = space("gemm")
    return [of.as_dict(of.configs[i]) for i in np.random.default_rng(0).permutation(len(of.configs))[:count]]


def test_members_of_the_space_rank_as_the_table_predicts_them() -> None:
    table, some = load_table("gemm", env={}), members(20)
    order = ranked(some, 300, 4096, 4096, table)
    us = table.us({"m": np.array([300]), "n": np.array([4096]), "k": np.array([4096])})[0]
    every = [{name: int(values[i]) for name, values in table.config.items()} for i in range(len(us))]
    best = [min(us[i] for i, one in enumerate(every) if all(one[name] == c[name] for name in NAMES)) for c in some]
    assert [best[i] for i in order] == sorted(best)


def test_what_an_sm_cannot_hold_is_compiled_last() -> None:
    table = load_table("gemm", env={})
    deep = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 4}  # 256 KiB of operands
    some = [deep, *(deep | {"BLOCK_K": 64, "num_stages": stages} for stages in (4, 3)), deep | {"BLOCK_M": 16}]
    assert ranked(some, 4096, 4096, 4096, table)[-1] == 0


def test_library_calls_stay_and_only_the_first_few_tiles_do() -> None:
    table, some = load_table("gemm", env={}), members(20)
    choices = [choice(), *(choice(**one) for one in some), choice(alpha=1)]
    kept = cut(choices, 4096, 4096, 4096, table, keep=3)
    assert len(kept) == 5
    assert kept[0] is choices[0]
    assert kept[-1] is choices[-1]
    first = {order + 1 for order in ranked(some, 4096, 4096, 4096, table)[:3]}
    assert {choices.index(one) for one in kept} == first | {0, 21}
    assert cut(choices[:1], 1, 1, 1, table) == choices[:1]


@pytest.mark.slow
def test_inductors_own_handler_is_cut() -> None:
    pytest.importorskip("torch._inductor.choices")
    handler = fewer(keep=2, table=load_table("gemm", env={}))
    given = {"mm": (choice(**one) for one in members(9)), "aten": iter([choice()])}
    inputs = SimpleNamespace(mnk_hinted=lambda: (64, 4096, 4096))
    assert len(handler._finalize_template_configs(given, inputs, [], "mm")) == 3
    assert handler.uuid() != fewer(keep=3, table=load_table("gemm", env={})).uuid()
