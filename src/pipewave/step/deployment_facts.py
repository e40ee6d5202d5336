"""Facts of a deployment and its GPU that rules of engines are conditional on."""

from __future__ import annotations

from collections import Counter

from pipewave.gpus import GPU
from pipewave.models.attention_spec import Mla, Recurrent
from pipewave.models.kernels import Deployment
from pipewave.models.spec import ModelSpec
from pipewave.software.engine_parts import DeploymentFacts


def deployment_facts(deployment: Deployment, gpu: GPU) -> DeploymentFacts:
    """The setting of a deployment on a GPU."""
    model, split = deployment.model, deployment.parallel
    experts = [moe for layer, _ in model.grouped() for moe in layer.moes]
    dense = _dense_dtype(model)
    return DeploymentFacts(
        gpu=gpu.name,
        vendor=gpu.vendor,
        mma=gpu.traits.mma,
        gib=gpu.dram_gib,
        tp=split.tp,
        pp=split.pp,
        ep=split.ep,
        dp=split.dp,
        attention="mla" if model.has(Mla) else "gqa",
        experts=bool(experts),
        shared_experts=any(moe.shared is not None for moe in experts),
        dtype=experts[0].precision.dtype if experts else dense,
        dense_dtype=dense,
        sinks=any(getattr(mixer, "sinks", False) for layer, _ in model.grouped() for mixer in layer.mixers),
        model_type=model.model_type,
        hidden=model.hidden,
        states=_recurrence(model),
    )


def _recurrence(model: ModelSpec) -> str:
    """The kind of the model's recurrent layers; empty without."""
    mixers = (mixer for layer, _ in model.grouped() for mixer in layer.mixers)
    return next((mixer.kind for mixer in mixers if isinstance(mixer, Recurrent)), "")


def _dense_dtype(model: ModelSpec) -> str:
    """The operand type of most matrices outside the experts."""
    mixers = [mixer for layer, _ in model.grouped() for mixer in layer.mixers]
    counts = Counter(matrix.precision.dtype for mixer in mixers for matrix in mixer.linears())
    return counts.most_common(1)[0][0] if counts else model.dtype
