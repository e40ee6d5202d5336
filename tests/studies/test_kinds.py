"""Measured kinds of model: every model's rows are read, and of a point measured twice the quicker counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from studies.kinds import points, quickest


def test_every_kind_was_measured_in_both_phases() -> None:
    found = points()
    models = {p.model for p in found}
    assert len(models) == 10
    assert {(p.model, p.phase) for p in found} == {(m, phase) for m in models for phase in ("prefill", "decode")}
    assert max(Counter((p.model, p.phase, p.batch, p.input_len, p.context) for p in found).values()) == 1


def test_the_quicker_of_two_counts_wherever_it_stands() -> None:
    point = points()[0]
    slow, other = replace(point, measured_ms=2 * point.measured_ms), replace(point, batch=point.batch + 1)
    assert quickest([slow, other, point]) == quickest([point, other, slow]) == [point, other]
