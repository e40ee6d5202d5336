"""Rows of routed experts as their collector ran them, where that is not what they say (rules in `collected.json`).

Some collectors ran ungated experts with three matrices, gave a rank's experts all choices of its tokens, or scaled
whole matrices where their rows say blocks. Such rows are read as what they are, or flagged where no call describes
them, so that a call is answered as it is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.frame import gpu_name
from pipewave.kernels.moe.software import engine
from pipewave.software import rules
from pipewave.software.stacks import version_of

RULES = rules.read(Path(__file__).with_name("collected.json"))
SAID_BY = ["protocol", "framework", "version", "impl", "raw_gpu", "dtype"]


def as_run(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `fused_moe` with `gated` and `dtype` as measured; those that no call describes are flagged.

    Those of another type are `partial`: good for training, but no rows of that type's newest version.
    """
    out = rows.astype({"dtype": object})
    for key, at in rows.groupby(SAID_BY, observed=True).indices.items():
        facts, places = _facts(*map(str, key)), rows.index[at]
        if _answer("moe_ran_gated", facts):
            out.loc[places, "gated"] = True
        if ran := _answer("moe_ran_dtype", facts):
            out.loc[places, "dtype"] = ran
            kept = places[~out.loc[places, "flagged"]]
            out.loc[kept, ["flagged", "partial"]] = True
        unshared = _unshared(rows.loc[places], _answer("moe_ran_unshared", facts))
        out.loc[places[unshared], "flagged"] = True
    return out


def _answer(rule: str, facts: rules.Facts) -> Any:
    return rules.first(RULES[rule], facts, rule)


def _facts(protocol: str, framework: str, version: str, impl: str, raw_gpu: str, dtype: str) -> rules.Facts:
    software = {"framework": framework, "version": version_of(version), "dtype": dtype}
    return software | {"protocol": protocol, "engine": engine(impl), "gpu": gpu_name(raw_gpu)}


def _unshared(rows: pd.DataFrame, ran: Any) -> np.ndarray:
    """Rows whose tokens spent all their choices on experts of the rank, however many ranks there were."""
    if ran is None:
        return np.zeros(len(rows), bool)
    concerned = ran["all"] or (rows["experts"] <= ran["experts"]) | (rows["inter"] == ran["inter"])
    return np.asarray((rows["ep"] > 1) & concerned)
