"""An execution-time predictor for Vidur (0.0.26): its simulator asks pipewave in the place of its random forests.

    from pipewave.simulate.vidur_predictor import predictor_class
    ExecutionTimePredictorRegistry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
    mine = predictor_class("Llama-3.1-8B", "H200")
    ExecutionTimePredictorRegistry.register(ExecutionTimePredictorType.RANDOM_FORREST, mine)

Vidur asks for each part of a layer in ms, for a batch of requests with new and cached tokens. `bench/vidur_run.py` runs
its simulator so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipewave.calls.collective import AllReduce, SendRecv
from pipewave.gpus import GPU, find
from pipewave.models import ModelSpec, load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.prediction.api import predict
from pipewave.simulate.vidur import BLOCK, OPERATORS, PROTOCOL, check

KEPT = 65_536  # batches


class LayerTimes:
    """ms of each part of one layer, for any batch; answers are kept."""

    def __init__(self, model: ModelSpec, gpu: GPU, tp: int) -> None:
        check(model)
        Parallel(tp).check(model)
        self._deployment, self._gpu, self._tp = Deployment(model, Parallel(tp), None, BLOCK), gpu, tp
        self.of = lru_cache(maxsize=KEPT)(self._of)

    def _of(self, q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Mapping[str, float]:
        """By the names of our kernels, with `attention_prefill` and `attention_decode` apart."""
        uses = {use.name: use.call for use in self._deployment.kernels(Batch.of(q_lens, kv_lens))}
        wanted = {name: uses[name] for name in (*OPERATORS.values(), "kv_write")}
        kinds = {"attention_prefill": [q > 1 for q in q_lens], "attention_decode": [q == 1 for q in q_lens]}
        for kind, chosen in kinds.items():
            if any(chosen):
                q, kv = ([n for n, mine in zip(lens, chosen, strict=True) if mine] for lens in (q_lens, kv_lens))
                alone = self._deployment.kernels(Batch.of(q, kv))
                wanted[kind] = next(use.call for use in alone if use.name == "attention")
        size = sum(q_lens) * 2 * self._deployment.model.hidden
        wanted |= {"all_reduce": AllReduce(size, self._tp)} if self._tp > 1 else {}
        wanted["send_recv"] = SendRecv(size, 2)
        found = predict(list(wanted.values()), self._gpu, protocol=PROTOCOL)
        return dict(zip(wanted, (found.latency_us / 1e3).tolist(), strict=True))


def predictor_class(model: str | Path | ModelSpec, gpu: str | GPU) -> type[Any]:
    """The class to register with Vidur. ImportError without Vidur; what `load` and `find` raise."""
    from vidur.execution_time_predictor.base_execution_time_predictor import BaseExecutionTimePredictor

    spec, card = load(model), find(gpu)

    def part(name: str) -> Any:
        def asked(self: Any, batch: Any) -> float:
            return _times(self, batch).get(name, 0.0)

        return asked

    def start(self: Any, predictor_config: Any, replica_config: Any, cache_config: Any) -> None:
        BaseExecutionTimePredictor.__init__(self, predictor_config, replica_config, cache_config)
        self.pipewave = LayerTimes(spec, card, replica_config.tensor_parallel_size)
        self._config.use_native_execution_time_predictor = False

    names = {
        "_get_attention_layer_pre_proj_execution_time": "qkv_proj",
        "_get_attention_layer_post_proj_execution_time": "o_proj",
        "_get_attention_rope_execution_time": "rope",
        "_get_attention_kv_cache_save_execution_time": "kv_write",
        "_get_attention_decode_execution_time": "attention_decode",
        "_get_attention_prefill_execution_time": "attention_prefill",
        "_get_mlp_layer_up_proj_execution_time": "gate_up_proj",
        "_get_mlp_layer_down_proj_execution_time": "down_proj",
        "_get_mlp_layer_act_execution_time": "silu_and_mul",
        "_get_attn_norm_layer_act_execution_time": "input_norm",
        "_get_mlp_norm_layer_act_execution_time": "ffn_norm",
        "_get_add_layer_act_execution_time": "fused into the norm after it",
        "_get_tensor_parallel_communication_time": "all_reduce",
        "_get_pipeline_parallel_communication_time": "send_recv",
        "_get_kv_parallel_communication_time": "not modelled",
    }
    methods = {method: part(name) for method, name in names.items()}
    return type("PipewavePredictor", (BaseExecutionTimePredictor,), {"__init__": start, **methods})


def _times(predictor: Any, batch: Any) -> Mapping[str, float]:
    """Times of a batch of Vidur's: `num_kv_tokens` are those before the new ones."""
    both = zip(batch.num_q_tokens, batch.num_kv_tokens, strict=True)
    asked: Sequence[tuple[int, int]] = [(q, kv + q) for q, kv in both if q]
    found: Mapping[str, float] = predictor.pipewave.of(tuple(q for q, _ in asked), tuple(kv for _, kv in asked))
    return found
