"""What a serving engine adds to its kernels, as constants with a source: gaps, host time, graph sizes, memory share."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.demand import Array
from pipewave.errors import BadInput, did_you_mean

FILE = Path(__file__).with_name("engines.json")


@dataclass(frozen=True, slots=True)
class Engine:
    """Constants of one engine. Times in µs, memory in GiB.

    node_us: idle time between two kernels of a stream or graph. launch_us: host time to launch one kernel eagerly.
    decode_host_us, prefill_host_us: host time of a step that the GPU waits for. request_host_us: the same per request.
    prompt_scale, decode_scale: GPU time of a step over the sum of its kernels measured apart (clocks under load).
    mixes_phases: decode tokens ride along with prompt chunks in one step.
    graph_stride: [from, step] pairs of the batch sizes captured as CUDA graphs, up to graph_limit.
    """

    name: str
    stack: str
    page_size: int
    graph_limit: int
    graph_stride: tuple[tuple[int, int], ...]
    node_us: float
    launch_us: float
    decode_host_us: float
    prefill_host_us: float
    request_host_us: float
    memory_share: float
    max_batched_tokens: int
    max_requests: int
    runtime_gib: float
    graph_gib: float
    mixes_phases: bool
    prompt_scale: float
    decode_scale: float
    source: str = ""

    def what_if(self, **changes: Any) -> Engine:
        """A copy with other constants."""
        return replace(self, **changes)

    def padded(self, requests: int) -> int:
        """Rows a decode batch is padded to: the next captured graph size, or its own size beyond the last."""
        if requests > self.graph_limit:
            return requests
        step = next(step for start, step in reversed(self.graph_stride) if requests >= start)
        size = -(-requests // step) * step
        return min(size, self.graph_limit) if self.graph_limit >= requests else size

    def gaps_us(self, kernel_us: Array, nodes: Array, requests: Array, graph: NDArray[np.bool_]) -> dict[str, Array]:
        """Named additions to the kernels of steps: slower clocks under load, waits between kernels, for launches the
        host cannot keep ahead of, and for the host itself.

        All arguments are arrays over steps: GPU time of the kernels, kernels launched, requests, and whether the
        step replays a CUDA graph.
        """
        between = nodes * self.node_us
        behind = np.maximum(nodes * self.launch_us - kernel_us - between, 0.0)
        host = np.where(graph, self.decode_host_us, self.prefill_host_us) + requests * self.request_host_us
        load = kernel_us * (np.where(graph, self.decode_scale, self.prompt_scale) - 1.0)
        return {"under_load": load, "between_kernels": between, "launch": np.where(graph, 0.0, behind), "host": host}


@cache
def _engines() -> dict[str, Engine]:
    table = json.loads(FILE.read_text("utf-8"))
    return {
        name: Engine(name=name, **row | {"graph_stride": tuple(map(tuple, row["graph_stride"]))})
        for name, row in table.items()
    }


def find(engine: str | Engine) -> Engine:
    """The engine of a name (vllm, sglang), or the Engine itself; BadInput otherwise."""
    if isinstance(engine, Engine):
        return engine
    if engine not in _engines():
        raise BadInput(
            f"engine = {engine!r}: must be one of {', '.join(_engines())};{did_you_mean(str(engine), _engines())}",
            field="engine",
        )
    return _engines()[engine]
