"""Profiles of a model as Vidur reads them: what its profiler would have measured, as predicted.

Vidur learns the time of each operator from CSV tables of one GPU: `mlp.csv` over tokens, `attention.csv` over batches,
`all_reduce.csv` and `send_recv.csv` over bytes, times in ms. Columns are those of the profiles that Vidur publishes.
The interval of a prediction fills `min` and `max`, and `std` as that of a normal law. A sum that an engine fuses into
the norm after it is 0 here. Vidur has no experts: all of a mixture of them stands in `mlp_up_proj`, the other products
of its layer are 0, and `n_expanded_embd` (`mlp_hidden_dim` of its model) is the width of one expert.

`predictor_class` makes an execution-time predictor for Vidur 0.0.26, whose simulator then asks pipewave in place of its
random forests, for each part of a layer in ms, for a batch of requests with new and cached tokens:

    from pipewave.export.vidur import predictor_class
    ExecutionTimePredictorRegistry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
    mine = predictor_class("Llama-3.1-8B", "H200")
    ExecutionTimePredictorRegistry.register(ExecutionTimePredictorType.RANDOM_FORREST, mine)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.calls.collective import AllReduce, SendRecv
from pipewave.calls.families import Call, Collective
from pipewave.errors import BadInput
from pipewave.export.tables import Row, check_equal_layers, csv_table, names_of
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import Gqa, Mlp, ModelSpec, Moe, load
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.models.shard import Parallel
from pipewave.physics.demand import Array
from pipewave.prediction.api import predict

OPERATORS: Mapping[str, str] = names_of("vidur_operators")
TOKENS = tuple(sorted({1, *range(8, 257, 8), *range(288, 1025, 32), *range(1152, 4097, 128), *range(4608, 16385, 512)}))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CACHED = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHUNKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
SIZES = tuple(2048 * 2**i for i in range(18))
BLOCK, SIGMAS = 16, 3.29  # page of the cache; standard deviations across a 90 % interval
STATS = ("min", "max", "mean", "median", "std")
KEPT = 65_536  # batches whose times a predictor keeps


def export(model: ModelSpec, gpu: GPU, folder: Path, *, tps: Sequence[int] = (1,)) -> tuple[Path, ...]:
    """Write the tables of a model on a GPU, for each degree. BadInput for what Vidur cannot describe, CannotShard."""
    check(model)
    for tp in tps:
        Parallel(tp).check(model)
    tables = {
        "mlp": [row for tp in tps for row in mlp(model, gpu, tp)],
        "attention": [row for tp in tps for row in attention(model, gpu, tp)],
        "all_reduce": [row for tp in tps if tp > 1 for row in collective("all_reduce", gpu, tp)],
        "send_recv": list(collective("send_recv", gpu, 2)),
    }
    return tuple(csv_table(folder / f"{name}.csv", rows) for name, rows in tables.items() if rows)


def check(model: ModelSpec) -> tuple[Gqa, Mlp | Moe]:
    """The parts of a layer. BadInput for models that are not of equal layers of grouped attention and a gated part."""
    mixer, ffn = check_equal_layers(model, "Vidur"), model.layers[0].ffn
    if not isinstance(ffn, (Mlp, Moe)) or not ffn.gated:
        raise BadInput(f"model = {model.name}: Vidur describes gated layers only", field="model")
    return mixer, ffn


def parts(uses: Sequence[Use]) -> dict[str, list[Call]]:
    """Kernels of a layer and the embedding by Vidur's operators."""
    named = {use.name: use.call for use in uses}
    if "fused_moe" not in named:
        return {op: [named[ours]] for op, ours in OPERATORS.items()}
    names = list(named)
    experts = [named[name] for name in names[names.index("ffn_norm") + 1 : names.index("final_norm")]]
    found = {op: [named[ours]] if ours in named else [] for op, ours in OPERATORS.items()}
    return found | {"mlp_up_proj": [call for call in experts if not isinstance(call, Collective)]}


def mlp(model: ModelSpec, gpu: GPU, tp: int) -> Iterator[Row]:
    """One row a number of tokens: every operator but attention."""
    mixer, ffn = check(model)
    deployment = Deployment(model, Parallel(tp), None, BLOCK)
    steps = [parts(deployment.kernels(Batch.of([n], [n]))) for n in TOKENS]
    found = {op: _together([step[op] for step in steps], gpu) for op in OPERATORS}
    for at, tokens in enumerate(TOKENS):
        times = {name: value for op in OPERATORS for name, value in _stats(op, found[op][:, at]).items()}
        yield times | _stats("add", np.zeros(3)) | {
            "n_head": mixer.heads, "n_kv_head": mixer.kv_heads, "n_embd": model.hidden, "n_expanded_embd": ffn.inter,
            "vocab_size": model.vocab, "use_gated_mlp": ffn.gated, "num_tokens": tokens,
            "num_tensor_parallel_workers": tp,
        }  # fmt: skip


def attention(model: ModelSpec, gpu: GPU, tp: int) -> Iterator[Row]:
    """One row a batch: a chunk of one prompt over cached tokens, or decodes of equal caches."""
    mixer = check_equal_layers(model, "Vidur")
    chunks = [(1, chunk, cached) for chunk in CHUNKS for cached in (0, *CACHED)]
    steps = [*chunks, *((batch, 0, cached) for batch in BATCHES for cached in CACHED)]
    deployment = Deployment(model, Parallel(tp), None, BLOCK)
    new = [(batch, chunk or 1, cached) for batch, chunk, cached in steps]
    kernels = (deployment.kernels(Batch.of([count] * batch, [cached + count] * batch)) for batch, count, cached in new)
    uses = [{use.name: [use.call] for use in each} for each in kernels]
    ran, saved = (_together([use[name] for use in uses], gpu) for name in ("attention", "kv_write"))
    for at, (batch, chunk, cached) in enumerate(steps):
        kinds = {"attn_prefill": chunk > 0, "attn_decode": chunk == 0}
        times = {k: v for op, is_it in kinds.items() for k, v in _stats(op, ran[:, at] if is_it else None).items()}
        yield times | _stats("attn_kv_cache_save", saved[:, at]) | {
            "n_embd": model.hidden, "n_q_head": mixer.heads, "n_kv_head": mixer.kv_heads, "block_size": BLOCK,
            "num_tensor_parallel_workers": tp, "max_model_len": model.max_length, "batch_size": batch,
            "prefill_chunk_size": chunk, "kv_cache_size": cached, "is_prefill": chunk > 0,
            "attention_backend": "predicted",
        }  # fmt: skip


def collective(name: str, gpu: GPU, workers: int) -> Iterator[Row]:
    """One row a message size."""
    call = {"all_reduce": AllReduce, "send_recv": SendRecv}[name]
    found = _together([[call(size, workers)] for size in SIZES], gpu)
    for at, size in enumerate(SIZES):
        yield _stats(name, found[:, at]) | {
            "rank": 0, "num_workers": workers, "size": size, "collective": name, "devices_per_node": workers,
            "max_devices_per_node": gpu.gpus_per_node,
        }  # fmt: skip


def _together(steps: Sequence[Sequence[Call]], gpu: GPU) -> Array:
    """[low, high, mean] ms of the calls of each step, one after another; 0 of none."""
    if not any(steps):
        return np.zeros((3, len(steps)))
    found = predict([call for step in steps for call in step], gpu, protocol="serving")
    of_step = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    ends = (found.low_us, found.high_us, found.latency_us)
    return np.array([np.bincount(of_step, us, len(steps)) / 1e3 for us in ends])


def _stats(op: str, times: Array | None) -> Row:
    """The five columns of an operator, ms; empty where it does not run."""
    values: Sequence[float | str] = [""] * len(STATS)
    if times is not None:
        low, high, mean = np.round(times, 6).tolist()
        values = (low, high, mean, mean, round((high - low) / SIGMAS, 6))
    return {f"time_stats.{op}.{stat}": value for stat, value in zip(STATS, values, strict=True)}


class LayerTimes:
    """ms of each part of one layer, for any batch; answers are kept."""

    def __init__(self, model: ModelSpec, gpu: GPU, tp: int) -> None:
        check(model)
        Parallel(tp).check(model)
        self._deployment, self._gpu, self._tp = Deployment(model, Parallel(tp), None, BLOCK), gpu, tp
        self.of = lru_cache(maxsize=KEPT)(self._of)

    def _of(self, q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Mapping[str, float]:
        """By Vidur's operators, with `attention_prefill`, `attention_decode` and `kv_write`."""
        uses = self._deployment.kernels(Batch.of(q_lens, kv_lens))
        wanted = parts(uses) | {"kv_write": [use.call for use in uses if use.name == "kv_write"]}
        kinds = {"attention_prefill": [q > 1 for q in q_lens], "attention_decode": [q == 1 for q in q_lens]}
        for kind, chosen in kinds.items():
            if any(chosen):
                q, kv = ([n for n, mine in zip(lens, chosen, strict=True) if mine] for lens in (q_lens, kv_lens))
                alone = self._deployment.kernels(Batch.of(q, kv))
                wanted[kind] = [use.call for use in alone if use.name == "attention"]
        size = sum(q_lens) * 2 * self._deployment.model.hidden
        wanted |= {"all_reduce": [AllReduce(size, self._tp)] if self._tp > 1 else [], "send_recv": [SendRecv(size, 2)]}
        return dict(zip(wanted, _together(list(wanted.values()), self._gpu)[2].tolist(), strict=True))


def predictor_class(model: str | Path | ModelSpec, gpu: str | GPU) -> type[Any]:
    """The class to register with Vidur. ImportError without Vidur; what `load` and `find` raise."""
    from vidur.execution_time_predictor.base_execution_time_predictor import BaseExecutionTimePredictor

    spec, card = load(model), find_gpu(gpu)

    def part(name: str) -> Any:
        def asked(self: Any, batch: Any) -> float:
            """`num_kv_tokens` are those before the new ones."""
            both = zip(batch.num_q_tokens, batch.num_kv_tokens, strict=True)
            lens = [(q, kv + q) for q, kv in both if q]
            found: Mapping[str, float] = self.pipewave.of(tuple(q for q, _ in lens), tuple(kv for _, kv in lens))
            return found.get(name, 0.0)

        return asked

    def start(self: Any, predictor_config: Any, replica_config: Any, cache_config: Any) -> None:
        BaseExecutionTimePredictor.__init__(self, predictor_config, replica_config, cache_config)
        self.pipewave = LayerTimes(spec, card, replica_config.tensor_parallel_size)
        self._config.use_native_execution_time_predictor = False

    methods = {method: part(name) for method, name in names_of("vidur_methods").items()}
    return type("PipewavePredictor", (BaseExecutionTimePredictor,), {"__init__": start, **methods})
