"""Plans: which GPUs, how many, which split and settings, at what cost, and what does not fit."""

from __future__ import annotations

from pipewave.planning.fleet import Demand
from pipewave.planning.plan import Plan
from pipewave.planning.prices import Price, prices
from pipewave.planning.search import plan
from pipewave.planning.space import Question, Space, Split
from pipewave.simulate.report import Limit

__all__ = ["Demand", "Limit", "Plan", "Price", "Question", "Space", "Split", "plan", "prices"]
