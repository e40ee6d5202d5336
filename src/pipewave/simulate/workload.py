"""`workload`: a replayable workload from a model and a table of requests, in the format of the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.models import Gqa, Mlp, ModelSpec, load
from pipewave.models.shard import Parallel
from pipewave.simulate.replay import MODEL_TYPES
from pipewave.simulate.traffic import Traffic

MOST_LENGTHS = 20_000_000  # list entries of all iterations together
ARCHITECTURES = {model_type: name for name, model_type in MODEL_TYPES.items()}


def workload(
    model: str | Path | Mapping[str, Any] | ModelSpec, requests: Traffic, *, tp: int = 1, pp: int = 1, ep: int = 1
) -> dict[str, Any]:
    """One prefill of the whole batch, then decode steps until the last request is done, each leaving in its turn."""
    spec, parallel = load(model), Parallel(tp, pp, ep)
    parallel.check(spec)
    entries = int(requests.output_len.sum())
    if entries > MOST_LENGTHS:
        raise BadInput(
            f"output_len: {entries} decode steps of single requests, at most {MOST_LENGTHS}", field="output_len"
        )
    prompts = requests.input_len.tolist()
    iterations = [_iteration(1, "prefill", prompts, prompts)]
    for step in range(1, int(requests.output_len.max())):
        lengths = (requests.input_len + step)[requests.output_len > step].tolist()
        iterations.append(_iteration(step + 1, "decode", [1] * len(lengths), lengths))
    return {**_identity(spec, model), "tp_size": tp, "pp_size": pp, "ep_size": ep, "iterations": iterations}


def _iteration(number: int, phase: str, q_lens: list[int], kv_lens: list[int]) -> dict[str, Any]:
    return {
        "iteration": number,
        "phase": phase,
        "batch_size": len(q_lens),
        "q_lengths": q_lens,
        "kv_lengths": kv_lens,
        "num_tokens": int(np.sum(q_lens)),
    }


def _identity(spec: ModelSpec, source: object) -> dict[str, Any]:
    """The model as recorded workloads name it, or, for layers they cannot describe, where its config is."""
    layer, architecture = spec.layers[0], ARCHITECTURES.get(spec.model_type)
    plain = isinstance(layer.mixer, Gqa) and isinstance(layer.ffn, Mlp) and len(spec.grouped()) == 1
    if architecture and plain and not spec.tied and all(linear.precision.full for linear in layer.linears()):
        return {"model": architecture, "model_params": _shape(spec)}
    config = dict(source) if isinstance(source, Mapping) else str(source)
    return {"model": spec.model_type, "model_source": config}


def _shape(spec: ModelSpec) -> dict[str, int]:
    layer = spec.layers[0]
    assert isinstance(layer.mixer, Gqa)
    assert isinstance(layer.ffn, Mlp)
    return {
        "hidden_size": spec.hidden,
        "num_attention_heads": layer.mixer.heads,
        "num_key_value_heads": layer.mixer.kv_heads,
        "head_dim": layer.mixer.head_dim,
        "intermediate_size": layer.ffn.inter,
        "vocab_size": spec.vocab,
        "num_hidden_layers": len(spec.layers),
    }
