"""Prefill and decode sweeps of a worker as Dynamo's planner reads them (`profile_results_dir`), predicted.

    <folder>/selected_prefill_interpolation/raw_data.npz   prefill_isl, prefill_ttft (ms), prefill_thpt_per_gpu
            /selected_decode_interpolation/raw_data.npz    x_kv_usage, y_context_length, z_itl (ms), z_thpt_per_gpu,
                                                           max_kv_tokens
            /prefill_raw_data.json, decode_raw_data.json   the same, of which it takes these where no .npz lies

Names are those of `dynamo.planner.monitoring.perf_metrics` and `dynamo.profiler` in ai-dynamo 1.6.1.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipewave.export.tables import json_file
from pipewave.files.whole import write
from pipewave.gpus import GPU
from pipewave.models import ModelSpec
from pipewave.physics.demand import Array
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.step_time import StepTime

PROMPTS, CONTEXTS = 24, 12  # lengths of each sweep, in equal ratios
SHORTEST, LONGEST = 64, 131_072  # tokens; the latter of models that state no longest
USAGE = tuple(np.linspace(0.05, 0.95, 10).round(2).tolist())  # of the cache
Table = dict[str, Array]


def export(model: ModelSpec, gpu: GPU, folder: Path, *, tps: Sequence[int] = (1,)) -> tuple[Path, ...]:
    """Write the sweeps of one worker, of several degrees each into `tp<N>`. Raises CannotShard, DoesNotFit."""
    files = []
    for tp in tps:
        server = Server.of(model, gpu, Setup(tp=tp), model.max_length or LONGEST)
        root = folder if len(tps) == 1 else folder / f"tp{tp}"
        for phase, table in (("prefill", prefill(server, tp)), ("decode", decode(server, tp))):
            npz = io.BytesIO()
            np.savez(npz, **table)  # type: ignore[arg-type]
            files.append(root / f"selected_{phase}_interpolation" / "raw_data.npz")
            write(files[-1], npz.getvalue())
            plain = {name: values.tolist() for name, values in table.items()}
            plain |= {"max_kv_tokens": server.memory.kv_tokens} if phase == "decode" else {}
            files.append(json_file(root / f"{phase}_raw_data.json", plain))
    return tuple(files)


def _lengths(server: Server, most: int, count: int) -> list[int]:
    longest = min(server.runner.deployment.model.max_length or LONGEST, most)
    return sorted(set(np.geomspace(SHORTEST, max(longest, SHORTEST), count).round().astype(int).tolist()))


def prefill(server: Server, tp: int) -> Table:
    """Seconds of lone prompts, in the pieces that the engine's budget cuts them into."""
    step, most = StepTime(server.runner), server.policy.max_batched_tokens
    lengths = _lengths(server, server.memory.kv_tokens, PROMPTS)
    took = [sum(step([min(most, n - at)], [min(n, at + most)]) for at in range(0, n, most)) for n in lengths]
    isl, seconds = np.array(lengths), np.array(took)
    return {"prefill_isl": isl, "prefill_ttft": 1e3 * seconds, "prefill_thpt_per_gpu": isl / seconds / tp}


def decode(server: Server, tp: int) -> Table:
    """Steps of equal requests that fill a share of the cache."""
    step, tokens = StepTime(server.runner), server.memory.kv_tokens
    asked = []
    for context in _lengths(server, tokens // 2, CONTEXTS):
        batches = {min(int(share * tokens / context), server.policy.max_requests) for share in USAGE}
        asked += [(batch, context) for batch in sorted(batches) if batch]
    batch, context = np.array(asked).T
    seconds = np.array([step([1] * n, [held] * n) for n, held in asked])
    return {"x_kv_usage": batch * context / tokens, "y_context_length": context, "z_itl": 1e3 * seconds,
            "z_thpt_per_gpu": batch / seconds / tp, "max_kv_tokens": np.array([tokens])}  # fmt: skip
