"""Loops of products: what `lab.board_energy --products` runs is what the measured file holds, in its order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corpus.watts import FITTED_PRODUCTS, own_rows
from lab.energy_subjects import gemm, products

MEASURED = Path(__file__).parents[2] / "data" / "measured" / "h200" / "energy" / "2026-11-29-8889a620.json"


def rows() -> list[dict[str, Any]]:
    """As measured."""
    return list(json.loads(MEASURED.read_text(encoding="utf-8"))["rows"])


def test_the_measured_loops_are_those_that_the_tool_lists() -> None:
    asked, found = list(products()), rows()
    assert len(asked) == len(found) == 86
    for make, row in zip(asked, found, strict=True):
        if make.func is gemm:
            shape = tuple(row["case"][name] for name in ("m", "n", "k"))
            assert make.args == shape and make.keywords.get("dtype", "bf16") == row["case"]["dtype"]
            assert (row["data"] == "resident") == (make.keywords.get("sets") == 1)


def test_weights_that_stay_in_the_l2_are_no_rows_of_watts() -> None:
    """Their cases are answered as if weights came from DRAM."""
    mine = [row for row in own_rows() if row["loops"] == "products of served models"]
    assert len(mine) == sum(row["data"] == "random" for row in rows()) == 82
    shapes = {True: set[tuple[int, int]](), False: set[tuple[int, int]]()}
    for row in mine:
        shapes[row["fitted"]].add((row["case"].get("n"), row["case"].get("k")))
    assert shapes[True] == set(FITTED_PRODUCTS["8889a620"])
    assert not shapes[True] & shapes[False]  # those of other models say how far off the fit is


def test_tiles_read_operands_again_as_the_counters_say() -> None:
    """Never fewer bytes than each operand once, and up to 21 times as many."""
    products = [row for row in rows() if row["case"]["kernel"] == "gemm"]
    assert len(products) > 50
    for row in products:
        m, n, k = (row["case"][name] for name in ("m", "n", "k"))
        once = (1 if row["case"]["dtype"] == "fp8" else 2) * (m + n) * k
        assert 1.0 <= row["counters"]["to_sm_bytes"] / once < 22.0


def test_a_product_at_the_limit_is_timed_before_its_clocks_are_held_back() -> None:
    capped = [row for row in rows() if row["case"]["kernel"] == "gemm" and int(row["reasons"]) & 4]
    found = {row["latency_us"] for row in own_rows() if row["loops"] == "products of served models"}
    assert capped and all(row["burst_us"] in found for row in capped if row["data"] == "random")
    assert sum(row["burst_us"] < 0.97 * row["latency_us"] for row in capped) > len(capped) / 4
