"""The list of layers of the MoE loop covers what it says; `test_moe_report` holds it to the measured rows."""

from __future__ import annotations

from lab.own_kernels import moe_layers as shapes


def test_the_list_covers_models_octaves_and_both_kinds_of_routing() -> None:
    rows = shapes.layers()
    assert len(rows) >= 300
    assert {row["model"] for row in rows} == set(shapes.MODELS)
    assert {row["m"].bit_length() for row in rows} >= set(range(1, 15))
    assert all(sum(row["skew"] == skew for row in rows) > 50 for skew in (0, 50, 100))
    assert all(shapes.fits(*(row[name] for name in ("m", "e", "top_k", "hidden", "inter"))) for row in rows)
