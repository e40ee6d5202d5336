"""What an estimate hands to the learned residual, and what is the same for a whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipewave.demand import Array
from pipewave.kernels.attention_engines import ENGINES, Engine
from pipewave.kernels.attention_shape import Shape
from pipewave.kernels.base import Context

LEAST, MOST = 2.0**-12, 2.0**40


@dataclass(frozen=True, slots=True)
class Estimate:
    """Base seconds, quantities that a net sees as logarithms, and those it sees as they are."""

    base_s: Array
    sizes: Mapping[str, Array]
    plain: Mapping[str, Array]

    def features(self) -> dict[str, Array]:
        """All features by name; one logarithm for all sizes."""
        logs = np.log2(np.clip(np.array(list(self.sizes.values())), LEAST, MOST))
        return dict(zip(self.sizes, logs, strict=True)) | dict(self.plain)


def setting(ctx: Context, engine: Engine, shape: Shape, calls: int) -> dict[str, Array]:
    """Flags of the batch: which engine, which arithmetic."""
    zeros, ones = np.zeros(calls), np.ones(calls)
    flags = {f"engine_{name}": engine.name == name for name in ENGINES}
    flags |= {"fp8_math": engine.fp8, "fp8_cache": shape.layout.kv_bytes == 1.0, "causal": shape.layout.causal}
    flags |= {"sinks": bool(ctx.option("sinks", False)), "cold": ctx.protocol in ("cold", "serving")}
    return {name: ones if flag else zeros for name, flag in flags.items()}
