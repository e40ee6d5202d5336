"""What is unknown of a server before anything is told of it: sizes of its causes, as logarithms of times.

A figure of a run is off by the causes that it hinges on, and by what no cause explains: a level of the machine, one of
its software, a trend with the load, and a part that like loads share. All are normal with mean zero; their standard
deviations were read off published servers (`python -m train.told_fit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.files import packaged
from pipewave.physics.demand import Array

FILE = Path(__file__).with_name("prior.json")
CAUSES = ("decode", "prompt", "host", "frontend")  # fields of `pipewave.simulate.pace.Pace`
# Figures that are off each for itself; those of closed loops follow from the first two (`figures.parts`).
LATENTS = ("ttft_ms", "tpot_ms", "rate", "energy")
PLACES = ("in_flight", "isl", "osl", "gpus", "ep", "dp")  # of a load: log2 of each
MIDDLE = np.array([5.0, 10.0, 9.0, 1.0, 0.0, 0.0])  # of the places of published runs
NORMAL = 1.6449  # half the 90 % interval of a normal law
SPREAD = np.array([2.0, 1.5, 1.5, 1.5, 2.0, 2.0])


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Standard deviations in log time, each an array; in order of `CAUSES`, `LATENTS` and `PLACES`."""

    causes: Array  # [cause]
    level: Array  # [latent] of the machine
    own_level: Array  # [latent] of one software and model on it
    local: Array  # [latent] of like loads
    lengths: Array  # [place] within which loads are alike, in powers of two
    trend: Array  # [latent, place] by `SPREAD` of a place
    noise: Array  # [latent] from run to run
    shared: Array  # [1] of like loads, all figures alike
    run: Array  # [1] of one run, all figures alike
    other_software: Array  # [2] share of variance that another version keeps: of causes, of what is unexplained
    other_model: Array  # [2] the same of another model
    spoiled: Array  # [latent] of a run that something else disturbed
    spoiled_share: Array  # [1] of runs
    width: Array  # [1] of the interval over the normal one

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Prior:
        """From a table of lists by name."""
        return cls(**{one.name: np.array(table[one.name], float) for one in fields(cls)})

    def to_dict(self) -> dict[str, Any]:
        """The table."""
        return {one.name: np.round(getattr(self, one.name), 4).tolist() for one in fields(self)}


@cache
def shipped() -> Prior:
    """The prior that comes with the package."""
    return Prior.of(packaged.document(FILE))
