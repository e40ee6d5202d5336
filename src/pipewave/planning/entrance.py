"""What a front end adds to a loaded engine, in closed form: requests queue there, tokens pass it.

N clients that each wait for their answer, C seconds of it elsewhere, and one server of S seconds a request: the mean
time at that server is R = S (1 + Q (N − 1) / N), with Q = N R / (C + R) requests there (approximate mean value
analysis: Schweitzer 1979), whose solution is a square root.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.physics.demand import Array
from pipewave.software.front import Front


@dataclass(frozen=True, slots=True)
class Entrance:
    """A front end before an engine whose prompts have so many tokens."""

    front: Front
    input_len: int

    def seconds(self, cycle: Array, held: Array) -> Array:
        """From a client's sending to the engine, where `held` requests are in flight and spend `cycle` seconds in the
        engine.
        """
        front = self.front
        work = 1e-6 * (front.request_us + front.token_us * self.input_len) / front.workers
        elsewhere = cycle + 1e-6 * (front.transit_us + front.think_us)
        half = 0.5 * (work * held - elsewhere)
        return np.asarray(half + np.sqrt(half**2 + work * elsewhere) + 1e-6 * front.transit_us)

    @property
    def late_s(self) -> float:
        """How far, in seconds, the times scatter after which requests that end together come again."""
        return 1e-6 * self.front.variation * (self.front.request_us + self.front.transit_us)

    def stream_s(self, held: Array) -> Array:
        """The least time between two tokens of a request while tokens of all go out."""
        return 1e-6 * self.front.stream_us * held / self.front.workers
