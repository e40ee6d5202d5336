"""What a serving engine adds to its kernels, as constants with a source: gaps, host time, graph sizes, memory share."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadInput, did_you_mean
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.demand import Array
from pipewave.physics.energy import limited_us

FILE = Path(__file__).with_name("engines.json")


@dataclass(frozen=True, slots=True)
class Engine:
    """Constants of one engine. Times in µs, memory in GiB.

    node_us, stream_us: idle time between two kernels of a CUDA graph, and of a stream the host keeps filled.
    step_us: host time of a step that runs beside the GPU; launch_us: more for each kernel launched one by one;
    layer_us: more for each layer of a step that replays a graph for all but attention.
    decode_host_us, prefill_host_us, request_host_us: what the GPU waits for in a step, and for each of its requests:
    copies of inputs, sampling, scheduling when nothing runs beside it.
    backends: (tensor instruction, implementation of attention) pairs where most measured rows of the engine are of
    another one than it runs.
    apart: tensor instructions (`Architecture.mma`) of GPUs on which attention runs the prompts and the decodes of one
    step as two kernels.
    mixes_phases: decode tokens ride along with prompt chunks in one step.
    compiled: a compiler fuses the norms of heads with RoPE, and steps of few rows replay graphs between attentions.
    graph_stride: [from, step] pairs of the batch sizes captured as CUDA graphs, up to graph_limit.
    """

    name: str
    stack: str
    page_size: int
    graph_limit: int
    graph_stride: tuple[tuple[int, int], ...]
    node_us: float
    stream_us: float
    step_us: float
    launch_us: float
    layer_us: float
    decode_host_us: float
    prefill_host_us: float
    request_host_us: float
    memory_share: float
    max_batched_tokens: int
    max_requests: int
    runtime_gib: float
    graph_gib: float
    mixes_phases: bool
    compiled: bool
    backends: tuple[tuple[str, str], ...] = ()
    apart: tuple[str, ...] = ()
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

    def regime(self, *, graph: bool, rows: float, nodes: float, launches: float, layers: float) -> Regime:
        """What `gaps_us` adds to a step of one kind, for loops over millions of such steps."""
        return self._regime(graph, rows <= self.graph_limit, nodes, launches, layers, SCALAR)

    def _regime(self, graph: Any, few: Any, nodes: Any, launches: Any, layers: Any, xp: Arith) -> Regime:
        """Of one kind of step, or of many steps as arrays. `few`: rows that fit the captured sizes."""
        replayed = graph | few if self.compiled else graph  # compiled steps of few rows replay graphs in pieces
        pieces = xp.where(replayed, layers * self.layer_us, launches * self.launch_us)
        return Regime(
            nodes * xp.where(replayed, self.node_us, self.stream_us),
            self.step_us + xp.where(graph, 0.0, pieces),
            xp.where(graph, self.decode_host_us, self.prefill_host_us),
        )

    def gaps_us(self, load: Load) -> dict[str, Array]:
        """Named additions to the kernels of steps: waits between kernels, waits for a host that cannot keep ahead, what
        the GPU always waits for, and slower clocks where the whole step, waits included, needs more than the board's
        power."""
        few = load.rows <= self.graph_limit
        kind = self._regime(load.graph, few, load.nodes, load.launches, load.layers, ARRAY)
        launch = np.maximum(kind.beside_us - load.kernel_us - kind.between_us, 0.0)
        host = kind.after_us + load.requests * self.request_host_us
        whole = load.kernel_us + kind.between_us + launch + host
        under_load = limited_us(whole, load.heat_us) - whole
        return {"under_load": under_load, "between_kernels": kind.between_us, "launch": launch, "host": host}


@dataclass(frozen=True, slots=True)
class Regime:
    """µs of a kind of step, or arrays over steps: waits between their kernels, host work beside the GPU, and what comes
    on top of both."""

    between_us: Any
    beside_us: Any
    after_us: Any


@dataclass(frozen=True, slots=True)
class Load:
    """Steps as an engine sees them, arrays over steps: µs of kernels and of their energy at the power limit, kernels,
    launches by the host, requests, rows of the dense kernels, whether a step replays one CUDA graph, the layers."""

    kernel_us: Array
    heat_us: Array
    nodes: Array
    launches: Array
    requests: Array
    rows: Array
    graph: NDArray[np.bool_]
    layers: Array


@cache
def _engines() -> dict[str, Engine]:
    table = json.loads(FILE.read_text("utf-8"))
    rows = {name: {key: _frozen(value) for key, value in row.items()} for name, row in table.items()}
    return {name: Engine(name=name, **row) for name, row in rows.items()}


def _frozen(value: Any) -> Any:
    """Lists of JSON as tuples, so that an engine can be a key."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def find(engine: str | Engine) -> Engine:
    """The engine of a name (vllm, sglang), or the Engine itself; BadInput otherwise."""
    if isinstance(engine, Engine):
        return engine
    if engine not in _engines():
        raise BadInput(
            f"engine = {engine!r}: must be one of {', '.join(_engines())};"
            f"{did_you_mean(str(engine), _engines())}".rstrip(";"),
            field="engine",
        )
    return _engines()[engine]
