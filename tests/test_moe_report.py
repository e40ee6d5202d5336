"""The report of the MoE loop, on made-up times whose figures are known."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench.moe_loop import report
from bench.moe_loop.shapes import load


def way(first: float, second: float, rest: float, names: tuple[str, str]) -> dict[str, Any]:
    kernels = [["moe_align", rest], [names[0], first], [names[1], second]]
    return {"us": first + second + rest, "kernels": kernels}


def made(scale: float, index: int) -> dict[str, Any]:
    """A layer that vLLM runs in 1000 · scale µs, its kernel tuned in 800 · scale, ours in 500 µs."""
    shape = load()[index]
    counts = [shape["m"] * shape["top_k"] // shape["e"]] * shape["e"]
    counts[0] += shape["m"] * shape["top_k"] - sum(counts)
    grouped = ("fused_moe_kernel", "fused_moe_kernel")
    return {"shape": shape, "few": False, "counts": counts, "errors": {"ours_sorted": 0.003},
            "ways": {"vllm_default": way(600 * scale, 300 * scale, 100 * scale, grouped),
                     "vllm_tuned": way(500 * scale, 200 * scale, 100 * scale, grouped),
                     "ours_sorted": way(300, 150, 50, ("up", "down"))}}  # fmt: skip


def test_figures_of_a_known_loop() -> None:
    of = report.layers([made(1.0, 3), made(4.0, 17)])
    found = report.summary(of)["all"]
    assert found["ours_over_default"]["geomean"] == pytest.approx(math.sqrt(2.0 * 8.0))
    assert found["ours_over_default"]["max"] == pytest.approx(8.0)
    assert found["products_over_default"]["min"] == pytest.approx(2.0)
    assert found["tuned_over_served"]["median"] == pytest.approx(1.25)
    assert all(layer.flagged == (layer.served > layer.ceiling) for layer in of)
    assert found["layers"] == report.summary(of)["flagged"]["layers"] + report.summary(of)["unflagged"]["layers"]


def test_a_file_of_vllm_is_what_it_serves_with() -> None:
    row = made(1.0, 3)
    row["ways"]["vllm_file"] = row["ways"]["vllm_tuned"]
    layer = report.layers([row])[0]
    assert (layer.served, layer.default, layer.has_file) == (800.0, 1000.0, True)


def test_gain_follows_the_gap_where_it_does() -> None:
    of = report.layers([made(scale, 5) for scale in (1.0, 2.0, 4.0, 8.0)])
    assert report.separation(of)["ours"]["gap"] == pytest.approx(1.0)
    assert report.separation(of)["ours"]["gap_rank"] == pytest.approx(1.0)


def test_the_page_has_a_line_for_every_group() -> None:
    page = report.markdown(report.summary(report.layers([made(1.0, i) for i in range(14)])))
    assert page.count("\n") >= 2 + 3
    assert "nan" not in page
