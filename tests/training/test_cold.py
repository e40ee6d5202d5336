"""What cold GEMMs of our own ask for when their clock is not given."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pipewave as pw
from corpus.cases import held_out
from pipewave.calls.families import from_dict
from train.cold import BASIS, PROTOCOL, ROOT, WEIGHTS, asked, own

DATA = ROOT / "data" / "measured" / "h200"


def test_rows_that_weights_are_scored_on_are_left_out() -> None:
    found = own(DATA)
    assert {"gemm", "gemm_fp8"} <= set(found)
    assert not any(held_out(row["case"]) for rows in found.values() for row in rows)


@pytest.mark.parametrize("net", ["gemm", "gemm_fp8"])
def test_cards_hold_at_least_what_products_that_the_nets_know_ask_for(net: str) -> None:
    card = json.loads((WEIGHTS / f"{net}.json").read_text(encoding="utf-8"))
    multiple, shift = asked(card, own(DATA)[net])
    assert multiple <= card["intervals"][f"{BASIS}|{PROTOCOL}"]["multiple"] < 1.6 * multiple
    assert shift == pytest.approx(card["ceiling"]["shifts"][PROTOCOL], abs=0.005)


def test_unseen_cold_products_are_covered_and_four_in_five_are_slower() -> None:
    from qa.accuracy import own_rows

    rows = [row for row in own_rows() if row["case"]["kernel"] == "gemm" and row["protocol"] == PROTOCOL]
    calls = [from_dict(row["case"] | {"stack": row["stack"], "impl": row["impl"]}) for row in rows]
    answers, measured = pw.predict(calls, "H200"), np.array([row["latency_us"] for row in rows])
    assert 0.85 < np.mean((answers.low_us <= measured) & (measured <= answers.high_us)) < 0.95
    assert 0.75 < np.mean(measured > answers.ceiling_us) < 0.85
