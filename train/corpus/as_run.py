"""Rows of routed experts as their collector ran them, where that is not what they say.

The rules `moe_ran_gated` and `moe_ran_unshared` of `pipewave.software` say which. Shipped nets were trained on the rows
as they are, with the same rules applied to every call that is predicted; nets that are trained on the rows as they ran
need neither, and a call is then answered as it is named.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pipewave.kernels.moe.machine import engine
from pipewave.software import stack_rules, stacks

SAID_BY = ["protocol", "stack", "impl"]


def as_run(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `fused_moe` with `gated` as measured; those that no call describes are flagged."""
    out = rows.copy()
    for (protocol, stack, impl), at in rows.groupby(SAID_BY, observed=True).indices.items():
        facts = _facts(str(protocol), str(stack), str(impl))
        places = rows.index[at]
        if stack_rules.answer("moe_ran_gated", facts):
            out.loc[places, "gated"] = True
        unshared = _unshared(rows.loc[places], stack_rules.answer("moe_ran_unshared", facts))
        out.loc[places[unshared], "flagged"] = True
    return out


def _facts(protocol: str, stack: str, impl: str) -> stack_rules.Facts:
    software = {"framework": stacks.framework(stack), "version": stacks.version(stack)}
    return software | {"protocol": protocol, "engine": engine(impl)}


def _unshared(rows: pd.DataFrame, ran: Any) -> np.ndarray:
    """Rows whose tokens spent all their choices on experts of the rank, however many ranks there were."""
    if ran is None:
        return np.zeros(len(rows), bool)
    concerned = ran["all"] or (rows["experts"] <= ran["experts"]) | (rows["inter"] == ran["inter"])
    return np.asarray((rows["ep"] > 1) & concerned)
