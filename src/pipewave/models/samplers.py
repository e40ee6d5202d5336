"""How engines draw tokens where not just the likeliest is taken: kernels over all logits, and work of the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipewave.calls.families import Elementwise
from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.kernels.streaming.sampling import rounds_of
from pipewave.models.stage import Use

FILE = Path(__file__).with_name("samplers.json")


@dataclass(frozen=True, slots=True)
class Sampler:
    """A way to draw tokens from logits. Penalties count the tokens of all answers anew in every step, as rows of one
    length, on the host, which begins the next step late, as it needs the tokens of the step before.
    """

    kernels: tuple[tuple[str, str, int, int], ...]  # name, operation, bytes read and written of each logit
    request_us: float  # of the host for each request, beside the GPU
    token_us: float  # more for each token of the longest answer
    wait_us: float  # that the GPU waits for at each request
    source: str

    def drawn(self, rows: int, vocabulary: int) -> Iterator[Use]:
        """The kernels for so many rows of float32 logits."""
        logits, rounds = rows * vocabulary, rounds_of(vocabulary)
        for name, op, read, written in self.kernels:
            yield Use(name, Elementwise(read * logits, written * logits, op=op, rounds=rounds if op != "copy" else 0))

    def host(self, longest: int) -> dict[str, float]:
        """Host times of an engine (`HostTimes`) whose answers have at most so many tokens."""
        return {"draw_request_us": self.request_us + self.token_us * longest, "draw_wait_us": self.wait_us}


@cache
def sampler(name: str) -> Sampler:
    """The sampler of a name. Raises BadInput."""
    known = packaged.shared(FILE)
    if name not in known:
        raise BadInput(f"sampler = {name!r}: must be one of {', '.join(known)}", field="sampler")
    return Sampler(**{**known[name], "kernels": tuple(map(tuple, known[name]["kernels"]))})
