"""Plans: which GPUs, how many, which split and settings, at what cost, and what does not fit."""

from __future__ import annotations

from pipewave.planning.fleet import Demand
from pipewave.planning.plan import Plan
from pipewave.planning.prices import Meter, Owned, Price, cost, prices
from pipewave.planning.search import plan
from pipewave.planning.space import Question, Space, Split
from pipewave.simulate.report import Limit

__all__ = ["Demand", "Limit", "Meter", "Owned", "Plan", "Price", "Question", "Space", "Split", "cost", "plan", "prices"]
