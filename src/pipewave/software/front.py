"""What the process between clients and engine costs, by engine, as constants with a source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipewave.files import packaged
from pipewave.software.stacks import framework

FILE = Path(__file__).with_name("front.json")


@dataclass(frozen=True, slots=True)
class Front:
    """Mean service times in µs: of a request (HTTP, chat template, hand-over), of each prompt token (tokenising) and of
    each token streamed out (detokenising, serialising), of which copied_us more for each thousand tokens that its
    request has been sent before: servers keep and copy all of them.

    transit_us: a request is under way this long without keeping the process busy. workers: processes side by side.
    think_us: a client that has its answer sends the next request after this long. variation: standard deviation of a
    service time over its mean. host: times of the engine's own host, over those of the host they were measured on;
    launch: the same of steps with prompts, whose kernels it launches one by one; message_us: µs more of that host for
    each message of tokens that it hands out, which engines that are asked for whole answers do not pay. jitter:
    standard deviation of a step's time over its mean (`python -m studies.step_jitter`).
    """

    request_us: float = 0.0
    token_us: float = 0.0
    stream_us: float = 0.0
    copied_us: float = 0.0
    transit_us: float = 0.0
    think_us: float = 0.0
    workers: float = 1.0
    variation: float = 0.0
    host: float = 1.0
    launch: float = 1.0
    message_us: float = 0.0
    jitter: float = 0.0
    source: str = ""


INSIDE = Front(source="the engine called from the same process: nothing stands before it")


@cache
def _fronts() -> dict[str, Front]:
    return {name: Front(**row) for name, row in packaged.document(FILE).items()}


def of(engine: str) -> Front:
    """The front end of an engine by name; one that is not known has that of vLLM."""
    known = _fronts()
    return known.get(framework(engine), known["vllm"])
