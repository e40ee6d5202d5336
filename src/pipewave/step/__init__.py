"""One engine iteration: kernels, collectives and named gaps, with shares and an interval."""

from __future__ import annotations

from pipewave.software.engines import Engine
from pipewave.software.engines import find as find_engine
from pipewave.software.loads import Load, Regime
from pipewave.step.predict import Priced, Runner, Steps

__all__ = ["Engine", "Load", "Priced", "Regime", "Runner", "Steps", "find_engine"]
