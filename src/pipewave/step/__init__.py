"""One engine iteration: kernels, collectives and named gaps, with shares and an interval."""

from __future__ import annotations

from pipewave.software.engine import Engine, StepGaps, StepLoad
from pipewave.software.engine import find as find_engine
from pipewave.step.predict import Priced, Runner, Steps

__all__ = ["Engine", "Priced", "Runner", "StepGaps", "StepLoad", "Steps", "find_engine"]
