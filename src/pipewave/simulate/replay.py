"""Recorded engine iterations: replayed in one batch of predictions, and made from a table of requests (`workload`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput, MissingField
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import Gqa, Mlp, ModelSource, ModelSpec, load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.load import read_json
from pipewave.models.shard import Parallel
from pipewave.results import Shown
from pipewave.simulate.traffic import Traffic
from pipewave.step import Engine, Runner, Steps, find_engine

PHASES = ("prefill", "decode")
# The recorded format names an architecture and its shape, not a model.
SHAPE = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size")
MODEL_TYPES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
MOST_LENGTHS = 20_000_000  # list entries of all iterations together
ARCHITECTURES = {model_type: name for name, model_type in MODEL_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Workload:
    """Recorded iterations of one model under one split."""

    model: ModelSpec
    parallel: Parallel
    phases: tuple[str, ...]
    batches: tuple[Batch, ...]

    def deployment(self) -> Deployment:
        """The model as the workload ran it."""
        return Deployment(self.model, self.parallel)


@dataclass(frozen=True, slots=True)
class Replay(Shown):
    """Times of a replayed workload in ms: `prefill_ms` summed, `decode_ms_mean` a step, each with its interval."""

    gpu: str
    engine: str
    iterations: int
    prefill_ms: float
    prefill_ms_low: float
    prefill_ms_high: float
    decode_ms_mean: float
    decode_ms_mean_low: float
    decode_ms_mean_high: float
    total_ms: float
    total_ms_low: float
    total_ms_high: float
    breakdown: Mapping[str, Mapping[str, float]]
    basis: Mapping[str, float]


def read_workload(source: str | Path | Mapping[str, Any], model: ModelSpec | None = None) -> Workload:
    """Read a workload file (or its decoded content); `model` overrides the shape recorded in it.

    Raises BadFile, MissingField or BadInput naming the iteration and the field that is wrong.
    """
    raw = source if isinstance(source, Mapping) else read_json(Path(source), "workload")
    iterations = raw.get("iterations")
    if not isinstance(iterations, list) or not iterations:
        raise MissingField("workload has no 'iterations': a non-empty list is needed", field="iterations")
    parallel = Parallel(raw.get("tp_size", 1), raw.get("pp_size", 1), raw.get("ep_size", 1))
    spec = model or _recorded_model(raw)
    parallel.check(spec)
    phases, batches = zip(*(_iteration(i, entry) for i, entry in enumerate(iterations)), strict=True)
    return Workload(spec, parallel, phases, batches)


def _iteration(index: int, entry: Any) -> tuple[str, Batch]:
    where = f"iterations[{index}]"
    if not isinstance(entry, Mapping):
        raise BadInput(f"{where}: must be an object", field=where)
    q_lens, kv_lens = (_lengths(entry, where, name) for name in ("q_lengths", "kv_lengths"))
    if len(q_lens) != len(kv_lens):
        raise BadInput(
            f"{where}: kv_lengths has {len(kv_lens)} entries, q_lengths {len(q_lens)}; one pair a request is needed",
            field=f"{where}.kv_lengths",
        )
    phase = entry.get("phase") or ("decode" if max(q_lens) == 1 else "prefill")
    if phase not in PHASES:
        raise BadInput(f"{where}.phase = {phase!r}: must be prefill or decode", field=f"{where}.phase")
    try:
        return phase, Batch(q_lens, kv_lens)
    except BadInput as problem:
        raise BadInput(f"{where}: {problem.message}", field=f"{where}.{problem.field}") from problem


def _lengths(entry: Mapping[str, Any], where: str, name: str) -> tuple[int, ...]:
    values = entry.get(name)
    if values is None:
        raise MissingField(f"{where} has no {name!r}", field=f"{where}.{name}")
    good = isinstance(values, list) and values and all(type(v) is int and 0 < v < 1 << 31 for v in values)
    if not good:
        raise BadInput(f"{where}.{name}: must be a non-empty list of positive integers", field=f"{where}.{name}")
    return tuple(values)


def _recorded_model(raw: Mapping[str, Any]) -> ModelSpec:
    if "model_source" in raw:
        return load(raw["model_source"])
    name, shape = raw.get("model"), raw.get("model_params")
    if not isinstance(shape, Mapping):
        raise MissingField("workload has no 'model_params': pass --model or record them", field="model_params")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        raise BadInput(f"model = {name!r}: must be one of {', '.join(MODEL_TYPES)}, or pass --model", field="model")
    # Recorded shapes leave out what no kernel depends on; Qwen2's q/k/v biases follow from its type.
    return load({"model_type": MODEL_TYPES[name], "_name_or_path": name, "tie_word_embeddings": False, **shape})


def replay(
    workload: str | Path | Mapping[str, Any] | Workload,
    gpu: str | GPU,
    engine: str | Engine = "sglang",
    *,
    model: ModelSpec | None = None,
) -> Replay:
    """Predict every recorded iteration on a GPU under an engine.

    Raises BadFile, BadInput, CannotShard, UnknownGPU or UnsupportedDtype.
    """
    work = workload if isinstance(workload, Workload) else read_workload(workload, model)
    hardware, program = find_gpu(gpu), find_engine(engine)
    runner = Runner.of(work.deployment(), hardware, program)
    padded = runner.engine.graphs.padded
    steps = runner.steps([replace(b, padded=padded(b.requests)) if b.is_decode else b for b in work.batches])
    return _summary(work, steps, hardware.name, program.name)


def _summary(work: Workload, steps: Steps, gpu: str, engine: str) -> Replay:
    prefill = np.array([phase == "prefill" for phase in work.phases])
    decode = ~prefill
    count = max(int(decode.sum()), 1)
    times: dict[str, float] = {}
    for side, column in {"": steps.total_us, "_low": steps.low_us, "_high": steps.high_us}.items():
        parts = [float(column[chosen].sum()) / 1e3 for chosen in (prefill, decode)]
        times |= {f"prefill_ms{side}": parts[0], f"decode_ms_mean{side}": parts[1] / count}
        times[f"total_ms{side}"] = sum(parts)
    breakdown = {
        phase: {name: float(values[chosen].sum()) / 1e3 for name, values in (steps.families | steps.gaps).items()}
        for phase, chosen in (("prefill_ms", prefill), ("decode_ms", decode))
    }
    weight = steps.total_us / steps.total_us.sum()
    basis = {name: float(share @ weight) for name, share in steps.basis.items()}
    return Replay(gpu=gpu, engine=engine, iterations=len(work.batches), **times, breakdown=breakdown, basis=basis)


def workload(model: ModelSource, requests: Traffic, *, tp: int = 1, pp: int = 1, ep: int = 1) -> dict[str, Any]:
    """One prefill of the whole batch, then decode steps until the last request is done, each leaving in its turn."""
    spec, parallel = load(model), Parallel(tp, pp, ep)
    parallel.check(spec)
    entries = int(requests.output_len.sum())
    if entries > MOST_LENGTHS:
        raise BadInput(
            f"output_len: {entries} decode steps of single requests, at most {MOST_LENGTHS}", field="output_len"
        )
    prompts = requests.input_len.tolist()
    iterations = [_recorded(1, "prefill", prompts, prompts)]
    for step in range(1, int(requests.output_len.max())):
        lengths = (requests.input_len + step)[requests.output_len > step].tolist()
        iterations.append(_recorded(step + 1, "decode", [1] * len(lengths), lengths))
    return {**_identity(spec, model), "tp_size": tp, "pp_size": pp, "ep_size": ep, "iterations": iterations}


def _recorded(number: int, phase: str, q_lens: list[int], kv_lens: list[int]) -> dict[str, Any]:
    sizes = {"batch_size": len(q_lens), "q_lengths": q_lens, "kv_lengths": kv_lens, "num_tokens": int(np.sum(q_lens))}
    return {"iteration": number, "phase": phase, **sizes}


def _identity(spec: ModelSpec, source: object) -> dict[str, Any]:
    """The model as recorded workloads name it, or, for layers they cannot describe, where its config is."""
    layer, architecture = spec.layers[0], ARCHITECTURES.get(spec.model_type)
    mixer, ffn, config = layer.mixer, layer.ffn, dict(source) if isinstance(source, Mapping) else str(source)
    alike = len(spec.grouped()) == 1 and not spec.tied and all(linear.precision.full for linear in layer.linears())
    if not (architecture and alike and isinstance(mixer, Gqa) and isinstance(ffn, Mlp)):
        return {"model": spec.model_type, "model_source": config}
    shape = (spec.hidden, mixer.heads, mixer.kv_heads, mixer.head_dim, ffn.inter, spec.vocab)
    params = dict(zip(SHAPE, shape, strict=True)) | {"num_hidden_layers": len(spec.layers)}
    return {"model": architecture, "model_params": params}
