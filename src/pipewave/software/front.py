"""What the process between clients and engine costs, as constants with a source, and the host that it runs on.

A server keeps one process a GPU, one scheduler an engine and its API servers busy: they poll shared memory. With fewer
cores than such processes they take turns, and everything the host does takes as many times longer. API servers share
the front end's requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pipewave.calls.fields import words_of
from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.software.stacks import framework

FILE = Path(__file__).with_name("front.json")
LIKE = "cores=16,speed=0.8,api_servers=2, all above 0; or, of serve alone, none: no server"


@dataclass(frozen=True, slots=True)
class Front:
    """Mean service times in µs, and what else a server puts between a client and the engine."""

    request_us: float = 0.0  # HTTP, chat template, hand-over
    token_us: float = 0.0  # of each prompt token: tokenising
    stream_us: float = 0.0  # of each token streamed out: detokenising, serialising
    copied_us: float = 0.0  # more for each thousand tokens sent before, which servers keep and copy
    transit_us: float = 0.0  # a request is under way, without keeping the process busy
    think_us: float = 0.0  # after which a client that has its answer sends the next request
    workers: float = 1.0  # processes side by side
    variation: float = 0.0  # standard deviation of a service time over its mean
    host: float = 1.0  # times of the engine's own host, over those of the host they were measured on
    launch: float = 1.0  # the same of steps with prompts, whose kernels it launches one by one
    message_us: float = 0.0  # more of that host for each message of tokens, unless whole answers are asked for
    jitter: float = 0.0  # standard deviation of a step's time over its mean (`python -m studies.step_jitter`)
    source: str = ""


INSIDE = Front(source="the engine called from the same process: nothing stands before it")


@cache
def of(engine: str) -> Front:
    """The front end of an engine by name; one that is not known has that of vLLM."""
    known = packaged.shared(FILE)
    return Front(**known.get(framework(engine), known["vllm"]))


@dataclass(frozen=True, slots=True)
class Host:
    """The host that a server runs on."""

    cores: int | None = None  # of the CPU, None for enough
    speed: float = 1.0  # of a core, over the host that times were measured on
    api_servers: int = 1  # vLLM's `--api-server-count`, SGLang's `--tokenizer-worker-num`

    def slower(self, gpus: int, engines: int) -> float:
        """How many times longer host work takes beside so many GPUs and engines on this host."""
        busy = gpus + engines + self.api_servers
        return max(busy / self.cores, 1.0) / self.speed if self.cores else 1.0 / self.speed

    def front(self, front: Front, gpus: int, engines: int = 1) -> Front:
        """The front end, and the engine's own host times, on this host."""
        factor = self.slower(gpus, engines)
        named = ("request_us", "token_us", "stream_us", "copied_us", "host", "launch", "message_us")
        return replace(
            front, workers=front.workers * self.api_servers, **{name: factor * getattr(front, name) for name in named}
        )


def host_of(text: str | Host) -> Host:
    """From `cores=16,speed=0.8,api_servers=2`. Raises BadInput."""
    if isinstance(text, Host):
        return text
    found = Host(**words_of(str(text), {"cores": int, "speed": float, "api_servers": int}, "host", LIKE))
    if 0.01 <= found.speed <= 100 and 1 <= found.api_servers <= 4096 and (found.cores is None or found.cores >= 1):
        return found
    raise BadInput(f"host = {text!r}: must look like {LIKE}", field="host")
