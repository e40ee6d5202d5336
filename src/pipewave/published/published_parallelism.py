"""How published tables write attention data parallelism: one group of GPUs counted twice.

A group of G GPUs whose attention is data parallel and whose experts lie on all of them is dp = G, ep = G. Tables
made from launch arguments that hold G in one field and "attention DP: yes" in another write dp = G², ep = G (the same
measurements stand in the corpus once as dp = 8 and once as dp = 64), or tp = G, dp = G, ep = G² (only G GPUs explain
when the caches of those runs fill). A group of G GPUs whose attention is tensor parallel and whose experts lie on all
of them is tp = G, ep = G; some tables write tp = G² (the same launches stand in the corpus as tp = 4 and as tp = 16,
both with ep = 4). A case that says `gpus` is taken by its word.
"""

from __future__ import annotations

from typing import NamedTuple

SQUARED = ("trtllm",)  # engines whose published rows square dp
SQUARED_TP = ("sglang",)  # and tp
TWICE = ("vllm",)  # engines whose published rows state the group as tp, too


class Degrees(NamedTuple):
    """Parallel degrees, and how they were read where that is not as written."""

    tp: int
    ep: int
    dp: int
    note: str = ""


def read(engine: str, tp: int, ep: int, dp: int, gpus: int | None) -> Degrees:
    """The degrees of one group; `gpus`: its size, where given."""
    if gpus == tp * dp:
        return Degrees(tp, ep, dp)
    if engine in SQUARED and tp == 1 and ep > 1 and dp == ep**2:
        return Degrees(1, ep, ep, _note(f"dp {dp} with ep {ep}", ep, dp))
    if engine in SQUARED_TP and dp == 1 and ep > 1 and tp == ep**2:
        return Degrees(ep, ep, 1, _note(f"tp {tp} with ep {ep}", ep, tp))
    if engine in TWICE and tp > 1 and dp == tp and ep == tp * dp:
        return Degrees(1, dp, dp, _note(f"tp {tp}, dp {dp} with ep {ep}", dp, tp * dp))
    return Degrees(tp, ep, dp)


def _note(written: str, group: int, literal: int) -> str:
    return (
        f"{written} read as one group of {group} GPUs, as published tables count it twice; "
        f"give gpus = {literal} to have it literally"
    )
