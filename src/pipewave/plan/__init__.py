"""Plans: which GPU, which split, which scheduler settings, at what cost, and what does not fit."""

from __future__ import annotations

from pipewave.plan.prices import Price, prices
from pipewave.plan.search import Plan, plan
from pipewave.plan.space import Question, Space, Split

__all__ = ["Plan", "Price", "Question", "Space", "Split", "plan", "prices"]
