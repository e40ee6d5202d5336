"""Groups of near-duplicate rows and the tenth of the groups that shipped weights never saw.

The same rule as training uses (`train/splits.py`, `train/corpus/frame.py`); a test holds the two together.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

FOLDS = 10
HELD_OUT = 0  # shipped weights never see this fold

_ATTENTION = ("heads", "kv_heads", "head_dim", "window")
GROUP_FIELDS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("n", "k"),
    "attention": _ATTENTION,
    "mla": ("heads",),
    "fused_moe": ("hidden", "inter", "topk", "experts"),
    "rmsnorm": ("dim",),
    "silu_and_mul": ("dim",),
    "rope": ("heads", "kv_heads", "head_dim"),
    "kv_write": ("kv_heads", "head_dim"),
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"), ("bytes",)),
}


def group_of(case: Mapping[str, Any]) -> str:
    """Key of the group a case belongs to, for example `4096,14336` for a product; all of it is held out together."""
    fields = GROUP_FIELDS.get(case["kernel"])
    if fields is None:  # a kernel without rows in training: its own sizes
        fields = tuple(sorted(name for name, value in case.items() if type(value) is int))
    return ",".join(str(int(case.get(name) or 0)) for name in fields)


def fold(group: str) -> int:
    """Fold of a group key, 0 to 9."""
    return zlib.crc32(group.encode()) % FOLDS


def held_out(case: Mapping[str, Any]) -> bool:
    """Whether shipped weights never saw any row of the case's group."""
    return fold(group_of(case)) == HELD_OUT
