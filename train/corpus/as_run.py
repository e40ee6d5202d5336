"""Rows of routed experts as their collector ran them, where that is not what they say (rules in `collected.json`).

Some collectors ran ungated experts with three matrices, or gave a rank's experts all choices of its tokens. Such rows
are read as what they are, or flagged where no call describes them, so that a call is answered as it is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipewave.kernels.moe.machine import engine
from pipewave.software import stack_rules
from pipewave.software.stacks import version_of
from train.corpus.frame import gpu_name

RULES = stack_rules.read(Path(__file__).with_name("collected.json"))
SAID_BY = ["protocol", "framework", "version", "impl", "raw_gpu"]


def as_run(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `fused_moe` with `gated` as measured; those that no call describes are flagged."""
    out = rows.copy()
    for key, at in rows.groupby(SAID_BY, observed=True).indices.items():
        facts, places = _facts(*map(str, key)), rows.index[at]
        if _answer("moe_ran_gated", facts):
            out.loc[places, "gated"] = True
        unshared = _unshared(rows.loc[places], _answer("moe_ran_unshared", facts))
        out.loc[places[unshared], "flagged"] = True
    return out


def _answer(rule: str, facts: stack_rules.Facts) -> Any:
    return stack_rules.first(RULES[rule], facts, rule)


def _facts(protocol: str, framework: str, version: str, impl: str, raw_gpu: str) -> stack_rules.Facts:
    software = {"framework": framework, "version": version_of(version)}
    return software | {"protocol": protocol, "engine": engine(impl), "gpu": gpu_name(raw_gpu)}


def _unshared(rows: pd.DataFrame, ran: Any) -> np.ndarray:
    """Rows whose tokens spent all their choices on experts of the rank, however many ranks there were."""
    if ran is None:
        return np.zeros(len(rows), bool)
    concerned = ran["all"] or (rows["experts"] <= ran["experts"]) | (rows["inter"] == ran["inter"])
    return np.asarray((rows["ep"] > 1) & concerned)
