"""Vidur's simulator with pipewave's times in it: `python lab/vidur_run.py`, where `pip install vidur==0.0.26` and
pipewave are installed together.

64 requests arrive at a Llama-3-8B on an H100, scheduled by Vidur's own scheduler. It prints what Vidur reports, and how
far each batch's time is from the sum of our kernels asked for directly: nothing is lost on the way.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from vidur import config
from vidur.execution_time_predictor.execution_time_predictor_registry import ExecutionTimePredictorRegistry as Registry
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType as Kind

from pipewave.export.vidur import predictor_class

REQUESTS, MODEL, GPU = 64, "Llama-3.1-8B", "H100"
APART = ("send_recv", "embedding", "kv_write")  # between stages; the others Vidur does not add up


def settings(folder: str) -> config.SimulationConfig:
    """Poisson arrivals of prompts of 512 tokens that generate 64."""
    replica = config.ReplicaConfig(
        "meta-llama/Llama-3-8B", tensor_parallel_size=1, num_pipeline_stages=1, device="h100"
    )
    scheduler = config.VllmV1SchedulerConfig() if hasattr(config, "VllmV1SchedulerConfig") else None
    cluster = config.ClusterConfig(num_replicas=1, replica_config=replica)
    if scheduler is not None:
        cluster.replica_scheduler_config = scheduler
    lengths = config.FixedRequestLengthGeneratorConfig(prefill_tokens=512, decode_tokens=64)
    arrivals = config.PoissonRequestIntervalGeneratorConfig(qps=8.0)
    requests = config.SyntheticRequestGeneratorConfig(
        length_generator_config=lengths, interval_generator_config=arrivals, num_requests=REQUESTS
    )
    metrics = config.MetricsConfig(output_dir=folder, write_metrics=False, store_plots=False, enable_chrome_trace=False)
    asked = config.RandomForrestExecutionTimePredictorConfig(
        cache_dir=folder, use_native_execution_time_predictor=False
    )
    return config.SimulationConfig(
        cluster_config=cluster, request_generator_config=requests, execution_time_predictor_config=asked,
        metrics_config=metrics, log_level="warning",
    )  # fmt: skip


def main() -> int:
    """Run it; 1 where a batch's time is not the sum of its parts."""
    mine, seen = predictor_class(MODEL, GPU), []
    ask = mine.get_execution_time

    def kept(self: Any, batch: Any, stage: Any) -> Any:
        found = ask(self, batch, stage)
        if hasattr(batch, "batch_mapping"):  # it asks again for each group of it
            return found
        parts = self.pipewave.of(*_lengths(batch))
        seen.append((found.total_time, sum(ms for name, ms in parts.items() if name not in APART)))
        return found

    mine.get_execution_time = kept
    Registry.unregister(Kind.RANDOM_FORREST)
    Registry.register(Kind.RANDOM_FORREST, mine)
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(settings(folder))
        simulator.run()
    layers = simulator._config.cluster_config.replica_config.num_layers_per_pipeline_stage
    off = max(abs(total / (1e-3 * layers * one) - 1) for total, one in seen)
    print(
        json.dumps({"batches": len(seen), "simulated_s": round(simulator._time, 3), "worst_batch_off": round(off, 6)})
    )
    return 1 if off > 1e-3 or len(seen) < REQUESTS else 0


def _lengths(batch: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    both = [(q, kv + q) for q, kv in zip(batch.num_q_tokens, batch.num_kv_tokens, strict=True) if q]
    return tuple(q for q, _ in both), tuple(kv for _, kv in both)


if __name__ == "__main__":
    print(Path(__file__).name, flush=True)
    sys.exit(main())
