"""pipewave: how long a kernel, a model or a fleet takes on a GPU.

    import pipewave as pw
    pw.predict(pw.gemm(4096, 4096, 4096), "H200").latency_us

Importing costs numpy only; training, measuring and tuning live behind extras.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pipewave.version import VERSION

if TYPE_CHECKING:
    from pipewave.calls.families import (
        all_gather,
        all_reduce,
        all_to_all,
        attention,
        elementwise,
        fused_moe,
        gemm,
        mla,
        reduce_scatter,
        rmsnorm,
        send_recv,
        silu_and_mul,
    )
    from pipewave.errors import PipewaveError
    from pipewave.face import Model, estimate, find_rate, load_model, plan, serve, step_time, tell, trace
    from pipewave.gpus import GPU, find
    from pipewave.planning.prices import cost
    from pipewave.prediction.answers import Prediction, Predictions
    from pipewave.prediction.api import predict

__version__ = VERSION

__all__ = [
    "GPU", "Model", "PipewaveError", "Prediction", "Predictions", "all_gather", "all_reduce", "all_to_all",
    "attention", "cost", "elementwise", "estimate", "find", "find_rate", "fused_moe", "gemm", "load_model",
    "mla", "plan", "predict", "reduce_scatter", "rmsnorm", "send_recv", "serve", "silu_and_mul", "step_time",
    "tell", "trace",
]  # fmt: skip

_HOMES = {
    "PipewaveError": "errors", "GPU": "gpus", "find": "gpus", "Prediction": "prediction.answers",
    "Predictions": "prediction.answers", "predict": "prediction.api", "cost": "planning.prices", "Model": "face",
    "estimate": "face", "find_rate": "face", "load_model": "face", "plan": "face", "serve": "face",
    "step_time": "face", "tell": "face", "trace": "face",
}  # fmt: skip


def __dir__() -> list[str]:
    """What completion offers: the public names, before any was used."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import the room of a public name on first use, so that the command line starts without numpy."""
    if name not in __all__:
        raise AttributeError(f"module 'pipewave' has no attribute {name!r}")
    home = _HOMES.get(name, "calls.families")
    value: object = getattr(import_module(f"pipewave.{home}"), name)
    globals()[name] = value
    return value
