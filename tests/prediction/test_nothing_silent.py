"""An answer whose inputs, software, GPU or calibration were changed says so: `make chaos` asks every GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import pipewave as pw
from pipewave.errors import UnknownGPU
from qa.chaos import silent

LAST = json.loads((Path(__file__).parents[2] / "qa" / "results" / "chaos.json").read_text())


@pytest.mark.slow
def test_calls_that_are_answered_by_other_software_say_so() -> None:
    found = list(silent.kernels(("H200", "RTX 4090", "MI300X")))
    changed = [(what, says) for what, moved, says in found if moved]
    assert 300 < len(changed) < len(found)
    assert [what for what, says in changed if not says] == []


@pytest.mark.slow
def test_whole_models_and_calibrations_say_so() -> None:
    calibrated = list(silent.calibrated())  # calls, estimates, served traffic, plans, steps and traces
    assert len(calibrated) == 6
    found = [*silent.models(), *calibrated]
    assert all(moved and says for _, moved, says in found), found


def test_the_last_run_over_every_gpu_found_none() -> None:
    assert LAST["silent"]["silent"] == 0
    assert LAST["silent"]["changed"] > 5_000


def test_a_gpu_in_the_case_is_the_one_that_answers_and_an_unknown_one_is_refused() -> None:
    case = {"kernel": "gemm", "m": 4096, "n": 4096, "k": 4096}
    on = {gpu: pw.predict(pw.gemm(4096, 4096, 4096), gpu).latency_us for gpu in ("H200", "L40S")}
    for asked in ([case | {"gpu": "L40S"}], pd.DataFrame([case | {"gpu": "L40S"}])):
        assert pw.predict(asked, "H200").latency_us[0] == pytest.approx(on["L40S"], rel=1e-5)
    assert on["L40S"] != on["H200"]
    for asked in ([case | {"gpu": "NOPE"}], pd.DataFrame([case | {"gpu": "NOPE"}])):
        with pytest.raises(UnknownGPU):
            pw.predict(asked, "H200")


def test_a_basis_that_differs_between_protocols_says_why() -> None:
    call = pw.gemm(4096, 4096, 4096)
    cold, graph = (pw.predict(call, "B200", protocol=protocol) for protocol in ("cold", "graph"))
    assert (cold.basis, graph.basis) == ("new_architecture", "measured_gpu")
    assert any("of protocol graph" in note for note in cold.notes)
    assert not graph.notes
