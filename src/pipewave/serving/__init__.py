"""Serving: static batches, replayed iterations, and requests arriving over time."""

from __future__ import annotations

from pipewave.serving.estimate import Estimate, estimate
from pipewave.serving.replay import Replay, Workload, read_workload, replay

__all__ = ["Estimate", "Replay", "Workload", "estimate", "read_workload", "replay"]
