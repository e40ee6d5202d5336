"""A latency predictor for SGLang's simulator, which runs its own scheduler and caches and asks how long a batch takes.

    from pipewave.export.sglang_simulator import install
    install("Llama-3.1-8B", "H200")  # before the scheduler starts: SGLangBenchmarkRunner(server_args)

Its predictors are named in its code, so that `predictor.name` of the simulator's file chooses none of others; `install`
puts ours in their place. The interface is that of `tools/sglang-simulator` in sgl-project/sglang (2f070b1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipewave.gpus import GPU
from pipewave.models import ModelSpec
from pipewave.simulate.step_time import step_time


def predictor_class(model: str | Path | ModelSpec, gpu: str | GPU) -> type[Any]:
    """A predictor of a model on a GPU, sharded as the simulator's scheduler says. ImportError without the simulator."""
    from sglang_simulator.time_predictor.base import InferTimePredictor

    class PipewaveTimePredictor(InferTimePredictor):  # type: ignore[misc]
        """Seconds of a batch by its requests' new and cached tokens."""

        def __init__(self, described: Any, hw: Any, config: Any, **kwargs: Any) -> None:
            super().__init__(described, hw, config, **kwargs)
            tp, pp, ep = (getattr(config, f"{name}_size", None) or 1 for name in ("tp", "pp", "ep"))
            self._step = step_time(model, gpu, engine="sglang", tp=tp, pp=pp, ep=ep)

        def predict_infer_time(self, batch: Any) -> float:
            """Seconds; 0 of an empty batch."""
            new, held = [one.extend_length for one in batch.reqs], [one.past_kv_length for one in batch.reqs]
            return self._step(new, [a + b for a, b in zip(new, held, strict=True)]) if new else 0.0

    return PipewaveTimePredictor


def install(model: str | Path | ModelSpec, gpu: str | GPU) -> None:
    """Have the simulator ask pipewave, whatever its file says. ImportError without the simulator."""
    from sglang_simulator.simulation.manager import ConfigManager

    predictor = predictor_class(model, gpu)
    ConfigManager.get_inference_time_predictor = classmethod(
        lambda _, described, hw, sched_config: predictor(described, hw, sched_config)
    )
