"""Measured rows of latent attention: near duplicates and the corpus table."""

from __future__ import annotations

from typing import Any

from pipewave.kernels.attention.rows import lens
from pipewave.kernels.faces import Case, Rows, table_case

_plain = table_case("mla", "heads")


def _case(row: Case) -> dict[str, Any]:
    return _plain(row) | lens(row) | {"phase": str(row["phase"]), "kv_dtype": str(row["kv_dtype"])}


ROWS = {"mla": Rows(group=("heads",), table="mla", case=_case, phase=lambda case: str(case["phase"]))}
