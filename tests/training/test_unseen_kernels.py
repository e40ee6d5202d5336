"""How wide answers are whose kernel nobody measured: laws of the quantile over kernels that are left out whole."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from train.cards import TABLES
from train.unseen_kernels import FILE, Kernel, half_width, table


def kernel(net: str, error: float, *, rows: int = 10, known: bool = False, half: float = 0.0) -> Kernel:
    """A kernel all rows of which are off by as much."""
    return Kernel(
        net, "logo:B200", f"vllm|{net}", known, np.full(rows, error), np.full(rows, half), np.full(rows, "B200|bf16")
    )


@given(st.lists(st.floats(0.01, 3.0), min_size=3, max_size=12))
def test_it_lies_among_the_errors_and_above_most(errors: list[float]) -> None:
    """At least the level of kernels is inside the half-width, and none is wider than the worst."""
    found = half_width([kernel(f"net{i}", error) for i, error in enumerate(errors)])
    assert min(errors) <= found <= max(errors)
    assert np.mean(np.array(errors) <= found + 1e-9) >= 0.9


def test_a_kernel_counts_once_however_many_rows_it_has() -> None:
    """Ten thousand rows of one kernel do not outvote nine others."""
    few = [kernel(f"net{i}", 0.1 * (i + 1)) for i in range(10)]
    many = [*few[:-1], kernel("net9", 1.0, rows=10_000)]
    assert half_width(few) == pytest.approx(half_width(many))


def test_a_net_is_judged_by_others_kernels_alone() -> None:
    """A net whose unseen kernel is far off is not covered by its own error; its known kernels keep their intervals."""
    found = {f"net{i}": [kernel(f"net{i}", 0.2)] for i in range(4)}
    found["far"] = [kernel("far", 2.0), kernel("far", 0.1, known=True, half=0.15)]
    nets = table(found)["nets"]
    assert nets["far"]["unseen"]["covered"] == 0.0
    assert nets["far"]["known"] == {"kernels": 1, "mape": 10.5, "covered": 100.0}
    assert nets["net0"]["unseen"]["covered"] == 100.0
    assert nets["far"]["all"] == {"mape": 324.7, "covered": 50.0}  # two kernels of one GPU and type are one cell


def test_an_implementation_without_rows_is_answered_as_widely_as_such_kernels_were_off() -> None:
    """A kernel that nobody measured, on a GPU that was: the interval is that of kernels left out whole, and a note says it."""
    case = {
        "kernel": "attention_module",
        "kind": "msa",
        "phase": "generation",
        "q_lens": [1] * 16,
        "kv_lens": [4096] * 16,
    }
    case |= {"heads": 16, "stack": "vllm-0.24.0"}
    known, strange = (
        pw.predict([case | more], "B200", protocol="graph")[0] for more in ({}, {"impl": "some_new_kernel"})
    )
    assert strange.software == "other_framework"
    assert any("some_new_kernel" in note for note in strange.notes)
    half = json.loads((TABLES / FILE).read_text("utf-8"))["half_width"]
    assert strange.high_us / strange.latency_us == pytest.approx(np.exp(half), rel=0.01)
    assert known.high_us / known.latency_us < 1.5
