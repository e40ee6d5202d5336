"""Plans: which GPU, which split, which scheduler settings, at what cost, and what does not fit."""

from __future__ import annotations

from pipewave.planning.prices import Price, prices
from pipewave.planning.search import Plan, plan
from pipewave.planning.space import Question, Space, Split

__all__ = ["Plan", "Price", "Question", "Space", "Split", "plan", "prices"]
