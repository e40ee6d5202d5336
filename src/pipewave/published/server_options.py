"""Words of the servers' command lines: programs, options by our names, and what each engine means by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NAMES: Mapping[str, str] = {
    "--tensor-parallel-size": "tp",
    "-tp": "tp",
    "--tp": "tp",
    "--tp-size": "tp",
    "--tp_size": "tp",
    "--pipeline-parallel-size": "pp",
    "-pp": "pp",
    "--pp-size": "pp",
    "--pp_size": "pp",
    "--pp": "pp",
    "--data-parallel-size": "dp",
    "-dp": "dp",
    "--dp-size": "dp",
    "--dp": "dp",
    "--ep-size": "ep",
    "--ep_size": "ep",
    "--ep": "ep",
    "--expert-parallel-size": "ep",
    "--enable-expert-parallel": "experts",
    "--enable-dp-attention": "dp_attention",
    "--max-num-seqs": "requests",
    "--max-running-requests": "requests",
    "--max_batch_size": "requests",
    "--max-num-batched-tokens": "tokens",
    "--chunked-prefill-size": "tokens",
    "--max_num_tokens": "tokens",
    "--gpu-memory-utilization": "memory",
    "--mem-fraction-static": "memory",
    "--kv_cache_free_gpu_memory_fraction": "memory",
    "--kv-cache-dtype": "kv",
    "--moe-backend": "moe",
    "--moe-runner-backend": "moe",
    "--speculative-config": "drafts",
    "--speculative-algorithm": "algorithm",
    "--speculative-num-steps": "steps",
    "--speculative-num-draft-tokens": "draft_tokens",
    "--speculative-draft-model-path": "draft_model",
    "--enable-mixed-chunk": "mixed",
    "--scheduler-recv-interval": "looks",
    "--quantization": "weights",
    "-q": "weights",
    "--model": "model",
    "--model-path": "model",
    "--stream-interval": "stream",
    "--gdn-prefill-backend": "delta",
    "--all2all-backend": "exchange",
    "--moe-a2a-backend": "exchange",
    "--deepep-mode": "deepep_mode",
    "--enable-two-batch-overlap": "two_batch",
    "--enable-dbo": "two_batch",
    "--enable-prefix-caching": "prefix",
    "--no-enable-prefix-caching": "no_prefix",
    "--disable-radix-cache": "no_prefix",
    "--enable-eplb": "eplb",
    "--eplb-config": "eplb_config",
    "--ep-num-redundant-experts": "redundant",
    "--num-redundant-experts": "redundant",
}
# Options that move times and are not modelled from a command line.
UNMODELLED = (
    "--extra_llm_api_options",
    "--config",
    "--enable-lora",
    "--cpu-offload-gb",
    "--decode-context-parallel-size",
    "--disaggregation-mode",
    "--mamba-cache-mode",
    "--mamba-block-size",
    "--mamba-full-memory-ratio",
    "--mamba-radix-cache-strategy",
    "--mamba-scheduler-strategy",
    "--max-mamba-cache-size",
)
SWITCHES = (
    "--enable-",
    "--disable-",
    "--no-",
    "--trust-remote-code",
    "--async-scheduling",
    "--enforce-eager",
    "--headless",
)
IMAGE = "vllm/vllm-openai"  # starts the server itself; the images of other engines are given a command


class Program(NamedTuple):
    """A program that starts a server: its engine, and whether the word `serve` must follow its name."""

    engine: str
    needs_serve: bool = False


class Degrees(NamedTuple):
    """How an engine means its degrees of parallelism.

    `dp_within_tp`: data parallelism divides the tensor group where attention has it, else it copies the server.
    `experts_everywhere`: an option without a number spreads experts over all GPUs.
    """

    dp_within_tp: bool = False
    experts_everywhere: bool = False


PROGRAMS = {
    "vllm": Program("vllm"),
    "sglang": Program("sglang", needs_serve=True),
    "trtllm-serve": Program("trtllm"),
}
DEGREES = {
    "vllm": Degrees(experts_everywhere=True),
    "sglang": Degrees(dp_within_tp=True),
    "trtllm": Degrees(),
}
