"""How far one machine is from its prediction: what its own measurements can tell of the parts of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipewave.software.front import Front


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of the parts of a run on this machine, over predicted ones."""

    decode: float = 1.0  # kernels of steps that only decode: mostly the rate of memory
    prompt: float = 1.0  # kernels of steps with prompts: mostly the rate of tensor cores
    host: float = 1.0  # what the engine's host does in a step, launches among it
    frontend: float = 1.0  # what a request waits for on its way in, and a token on its way out

    def entrance(self, front: Front) -> Front:
        """A front end at this pace."""
        slower = {name: self.frontend * getattr(front, name) for name in ("request_us", "token_us", "transit_us")}
        return replace(front, **slower)


AS_PREDICTED = Pace()
