"""Groups of near-duplicate rows and the tenth of the groups that shipped weights never saw.

The same rule as training uses (`train/splits.py`, `train/corpus/frame.py`); a test holds the two together.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from pipewave.kernels import rows_of

FOLDS = 10
HELD_OUT = 0  # shipped weights never see this fold


def group_of(case: Mapping[str, Any]) -> str:
    """Key of the group a case belongs to, for example `4096,14336` for a product; all of it is held out together."""
    rows = rows_of().get(case["kernel"])
    fields = rows.group if rows else ()
    if not fields:  # a kernel without rows in training: its own sizes
        fields = tuple(sorted(name for name, value in case.items() if type(value) is int))
    return ",".join(str(int(case.get(name) or 0)) for name in fields)


def fold(group: str) -> int:
    """Fold of a group key, 0 to 9."""
    return zlib.crc32(group.encode()) % FOLDS


def held_out(case: Mapping[str, Any]) -> bool:
    """Whether shipped weights never saw any row of the case's group."""
    return fold(group_of(case)) == HELD_OUT
