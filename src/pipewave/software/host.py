"""The host that serves: how fast its cores are, and whether there is one for every process that never sleeps.

A server keeps one process a GPU, one scheduler an engine and its API servers busy: they poll shared memory. With fewer
cores than such processes they take turns, and everything the host does takes as many times longer. API servers share
the front end's requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipewave.errors import BadInput
from pipewave.software.front import Front

NAMES = ("cores", "speed", "api_servers")


@dataclass(frozen=True, slots=True)
class Host:
    """cores: of the CPU, None for enough. speed: of a core, over the host that times were measured on. api_servers:
    processes that take requests and stream tokens (vLLM's `--api-server-count`, SGLang's `--tokenizer-worker-num`).
    """

    cores: int | None = None
    speed: float = 1.0
    api_servers: int = 1

    def slower(self, gpus: int, engines: int) -> float:
        """How many times longer host work takes beside so many GPUs and engines on this host."""
        busy = gpus + engines + self.api_servers
        return max(busy / self.cores, 1.0) / self.speed if self.cores else 1.0 / self.speed

    def front(self, front: Front, gpus: int, engines: int = 1) -> Front:
        """The front end, and the engine's own host times, on this host."""
        factor = self.slower(gpus, engines)
        named = ("request_us", "token_us", "stream_us", "copied_us", "host", "launch", "message_us")
        return replace(
            front,
            workers=front.workers * self.api_servers,
            **{name: factor * getattr(front, name) for name in named},
        )


def host_of(text: str | Host) -> Host:
    """From `cores=16,speed=0.8,api_servers=2`. Raises BadInput."""
    if isinstance(text, Host):
        return text
    said = dict(part.partition("=")[::2] for part in text.split(",") if part.strip())
    try:
        speed, servers = float(said.get("speed", 1.0)), int(said.get("api_servers", 1))
        cores = int(said["cores"]) if "cores" in said else None
    except ValueError as problem:
        raise _bad(text) from problem
    within = 0.01 <= speed <= 100 and 1 <= servers <= 4096 and (cores is None or 1 <= cores <= 1 << 16)
    if not (set(said) <= set(NAMES) and within):
        raise _bad(text)
    return Host(cores, speed, servers)


def _bad(text: str) -> BadInput:
    wanted = "must look like cores=16,speed=0.8,api_servers=2, all above 0; or, of serve alone, none: no server"
    return BadInput(f"host = {text!r}: {wanted}", field="host")
