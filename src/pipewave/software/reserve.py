"""The memory that SGLang keeps out of weights and cache."""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.software.rules import DeploymentFacts


@dataclass(frozen=True, slots=True)
class Reserve:
    """MiB that SGLang keeps out of weights and cache: fixed, by token of a chunk, by request of the largest graph, by
    GPU of a replica, by request and rank under data-parallel attention; at least `least`."""

    fixed: float
    chunk_token: float = 0.0
    graph_request: float = 0.0
    rank: float = 0.0
    dp_request: float = 0.0
    least: float = 0.0


def static_share(reserve: Reserve, setting: DeploymentFacts, *, chunk: int, graph: int) -> float:
    """Share of the GPU that weights and cache get, from what must stay free for everything else (SGLang's rule)."""
    kept = reserve.fixed + reserve.chunk_token * max(chunk, 2048)
    kept += reserve.graph_request * graph + reserve.rank * setting.tp * setting.dp * setting.pp
    kept += reserve.dp_request * graph * setting.dp if setting.dp > 1 else 0.0
    total = setting.gib * 1024
    return round((total - max(kept, reserve.least)) / total, 3)
