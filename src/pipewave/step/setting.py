"""What an engine's rules look at, read off a deployment and its card."""

from __future__ import annotations

from collections import Counter

from pipewave.gpus import GPU
from pipewave.models.kernels import Deployment
from pipewave.models.spec import Mla, ModelSpec, Moe
from pipewave.software.rules import Setting


def setting_of(deployment: Deployment, gpu: GPU, dp: int = 1) -> Setting:
    """The setting of a deployment on a card; `dp`: data parallelism of attention."""
    model, split = deployment.model, deployment.parallel
    first = model.layers[0].attention
    experts = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    dense = _dense_dtype(model)
    return Setting(
        gpu=gpu.name,
        architecture=gpu.architecture,
        gib=gpu.dram_gib,
        tp=split.tp,
        pp=split.pp,
        ep=split.ep,
        dp=dp,
        attention="mla" if isinstance(first, Mla) else "gqa",
        experts=bool(experts),
        shared_experts=any(ffn.shared is not None for ffn in experts),
        dtype=experts[0].precision.dtype if experts else dense,
        dense_dtype=dense,
        sinks=bool(getattr(first, "sinks", False)),
    )


def _dense_dtype(model: ModelSpec) -> str:
    """The operand type of most matrices outside the experts."""
    counts = Counter(matrix.precision.dtype for layer, _ in model.grouped() for matrix in layer.attention.linears())
    return counts.most_common(1)[0][0]
