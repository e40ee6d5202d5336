"""Serving: static batches, replayed iterations, and requests arriving over time."""

from __future__ import annotations

from pipewave.simulate.estimate import Estimate, estimate
from pipewave.simulate.replay import Replay, Workload, read_workload, replay

__all__ = ["Estimate", "Replay", "Workload", "estimate", "read_workload", "replay"]
