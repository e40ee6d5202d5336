"""Rows of the public corpus as the shipped weights met them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# Tables that the corpus took in after the weights were trained: whole versions, and modules measured again.
LATER = ("vllm-0.25.0", "vllm-0.27.1", "vllm-0.31.0", "sglang-0.5.17", "sglang-0.5.20")
AGAIN = {f"dsa_{phase}_module": ("vllm-0.24.0",) for phase in ("context", "generation")}


@pytest.fixture
def trained_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators' tables without what came later: their groups, and with them who is held out, are those of training."""
    operators = pytest.importorskip("corpus.operators")
    whole = operators.table

    def table(name: str, data: Path | str | None = None) -> Any:
        rows = whole(name, data)
        return rows[~rows["stack"].isin((*LATER, *AGAIN.get(name, ())))].reset_index(drop=True)

    monkeypatch.setattr(operators, "table", table)
