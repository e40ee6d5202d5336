"""What is read of a release of each engine: the fact's name and how it is found in the source.

A fact that a release does not define is absent; one that the source does not settle carries its questions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from facts.evaluate import Evaluation, Namespace, Symbol
from facts.reading import (
    Found,
    NotThere,
    Reader,
    by_memory,
    code,
    constant,
    default,
    defaults,
    defined,
    evaluated,
    fields,
    files,
    first,
    has,
    joined,
    plain,
)
from facts.sources import Release

RANKS = (1, 2, 4, 8)
OTHER_DEVICES = ("is_xpu", "is_npu", "is_cpu", "is_hip", "is_musa", "is_mps", "is_hpu", "is_xpu()")
SERVER = "UsageContext.OPENAI_API_SERVER"
CAPABILITIES = {"80": (8, 0), "89": (8, 9), "90": (9, 0), "100": (10, 0), "103": (10, 3), "120": (12, 0)}
TUNED = r"E=(\d+),N=(\d+),device_name=([^,.]+)(?:,dtype=([^,.]+))?(?:,block_shape=\[([\d, ]+)\])?(?:,?_?(down))?\.json$"


# vLLM


def _vllm_batch(variable: str) -> Reader:
    def read(release: Release) -> Found:
        name = "get_batch_defaults" if has(release, r"def get_batch_defaults\(") else "_set_default_args"
        names = {"self": Namespace({}, known_none=True), "model_config": Namespace({"runner_type": "generate"})}

        def on(device: str) -> Callable[[int], Found]:
            def at(gib: int) -> Found:
                calls = {
                    "current_platform.get_device_total_memory": gib << 30,
                    "current_platform.get_device_name": device,
                    "current_platform.get_device_name().lower": device,
                    "current_platform.is_device_capability": False,
                    "current_platform.is_tpu": False,
                    "current_platform.is_cpu": False,
                }
                return evaluated(release, name, names, calls, _by_context(variable), "vllm/engine")

            return at

        return joined([by_memory(on("nvidia a100"), a100=True), by_memory(on("nvidia h100"))])

    return read


def _by_context(variable: str) -> Callable[[Evaluation, Any], Any]:
    return lambda run, _: run.names[variable].get(SERVER) if isinstance(run.names.get(variable), dict) else None


def _vllm_graphs(release: Release) -> Found:
    """Captured batch sizes with 1,024 sequences and 8,192 tokens a step, on Hopper and on Blackwell."""
    found = {name: _captured(release, name == "100") for name in ("90", "100")}
    questions = dict.fromkeys(each for one in found.values() for each in one.questions)
    return Found({name: strides(one.value) for name, one in found.items()}, found["90"].at, tuple(questions))


def _captured(release: Release, blackwell: bool) -> Found:
    unset = Namespace({"cudagraph_mode": Symbol("CUDAGraphMode.FULL"), "pass_config": Namespace({}, True)}, True)
    options = {
        "model_config": Namespace({"enforce_eager": False, "disable_cascade_attn": False}, True),
        "compilation_config": unset,
        "scheduler_config": Namespace({"max_num_seqs": 1024, "max_num_batched_tokens": 8192}, True),
        "parallel_config": Namespace({"tensor_parallel_size": 1}, True),
        "uniform_decode_query_len": 1,
    }

    def sizes(run: Evaluation, _: Any) -> Any:
        for name in ("cudagraph_capture_sizes", "batch_size_capture_list"):
            if isinstance(run.names.get(name), list):
                return sorted(run.names[name])
        return unset.values.get("cudagraph_capture_sizes")

    calls = {"current_platform.is_device_capability_family": blackwell}
    return evaluated(release, "_set_cudagraph_sizes", {"self": Namespace(options, True)}, calls, sizes, "vllm/config")


def strides(sizes: Any) -> Any:
    """Captured sizes as (from, step) pairs and the largest."""
    if not isinstance(sizes, list) or not all(isinstance(each, int) for each in sizes):
        return sizes
    pairs: list[list[int]] = []
    for before, size in zip([0, *sizes], sizes, strict=False):
        if not pairs or pairs[-1][1] != size - before:
            pairs.append([before or size, size - before])
    return {"strides": pairs, "largest": sizes[-1]}


def _vllm_async(release: Release) -> Found:
    """Whether steps are scheduled ahead unless said otherwise: the field's default, or what replaces None."""
    found = default(release, "SchedulerConfig", "async_scheduling")
    if found.value is not None:
        return found
    path, line = defined(release, r"self\.scheduler_config\.async_scheduling = True", "vllm/config")
    return Found(True, f"{path}:{line}")


def _priorities(release: Release) -> Found:
    """Attention backends in the order in which they are tried, by capability and kind of attention."""
    table, at, asked = {}, "", dict[str, None]()
    for capability, (major, minor) in CAPABILITIES.items():
        for mla in (False, True):
            where = Namespace({"major": major, "minor": minor})
            names = {"use_mla": mla, "device_capability": where, "num_heads": 128, "kv_cache_dtype": None,
                     "use_non_causal": False, "head_size": 576 if mla else 128, "use_mm_prefix": False}  # fmt: skip
            found = evaluated(
                release, "_get_backend_priorities", names, {}, lambda _, value: value, "vllm/platforms/cuda"
            )
            table[f"{capability} {'mla' if mla else 'gqa'}"] = found.value
            at, asked = found.at, asked | dict.fromkeys(found.questions)
    return Found(table, at, tuple(asked))


# SGLang


@cache
def _sglang_run(release: Release, gib: int, tp: int) -> tuple[Mapping[str, Any], Found]:
    """What the server's memory rules choose on a GPU of `gib` GiB with `tp` ranks."""
    decode, prefill = (Namespace({}, known_none=True) for _ in range(2))
    graphs = Namespace({"decode": decode, "prefill": prefill}, known_none=True)
    options = {"tp_size": tp, "device": "cuda", "cuda_graph_config": graphs, "model_path": ""}
    server = Namespace(dict(_sglang_options(release)) | options, known_none=True)
    text_only = Namespace({"is_multimodal": False}, True)

    def declare(_: Any, __: Any, **chosen: Any) -> None:
        server.values.update(chosen)

    calls = {"resolving_view": server, "resolved_view": server, "declare_resolution": declare,
             "get_device_memory_capacity": gib << 10, "self.use_mla_backend": False, "use_mla_backend": False,
             "post_capture_kv_sizing_planned": False, "attn_dp_enabled_of": False,
             "self.get_model_config": text_only, "model_config_of": text_only,
             "get_platform": Namespace({"is_xpu": False}, True), **dict.fromkeys(OTHER_DEVICES, False)}  # fmt: skip
    name = "handle_gpu_memory_settings"
    name = name if has(release, rf"def {name}\(") else f"_{name}"
    names = {"self": server, "server_args": server, "gpu_mem": gib << 10}
    found = evaluated(release, name, names, calls, lambda _, value: value, "sglang/srt")
    chosen = {
        "chunked_prefill_size": server.values.get("chunked_prefill_size"),
        "largest_graph": decode.values.get("max_bs") or server.values.get("cuda_graph_max_bs"),
        "decode_graphs": strides(decode.values.get("bs") or server.values.get("cuda_graph_bs")),
        "mem_fraction_static": server.values.get("mem_fraction_static"),
    }
    return chosen, found


def _sglang(fact: str, ranks: Sequence[int] = RANKS) -> Reader:
    def read(release: Release) -> Found:
        def at(tp: int) -> Callable[[int], Found]:
            def on(gib: int) -> Found:
                chosen, found = _sglang_run(release, gib, tp)
                return Found(plain(chosen[fact]), found.at, found.questions)

            return on

        return joined([by_memory(at(tp), tp=tp) for tp in ranks])

    return read


@cache
def _sglang_options(release: Release) -> Mapping[str, Any]:
    """Every option of the server with its default; those of later versions stand in groups of fields."""
    options: dict[str, Any] = {}
    owners = {"ServerArgs"}
    for path, text in release.files.items():
        if path.startswith("sglang/srt/arg_groups/fields/"):
            owners |= set(re.findall(r"^class (\w+)", text, re.MULTILINE))
    for owner in sorted(owners):
        options |= defaults(release, owner, "sglang/srt")
    return options


def _option(name: str) -> Reader:
    def read(release: Release) -> Found:
        options = _sglang_options(release)
        if name not in options:
            raise NotThere(f"{release.engine} {release.version}: option {name}")
        path, line = defined(
            release, rf"{name}: ", "sglang/srt/server_args" if _in_args(release, name) else "sglang/srt/arg_groups"
        )
        return Found(options[name], f"{path}:{line}")

    return read


def _in_args(release: Release, name: str) -> bool:
    return re.search(rf"^ +{name}: ", release.files["sglang/srt/server_args.py"], re.MULTILINE) is not None


def _memory_share(release: Release) -> Found:
    """Share of weights and cache on GPUs of several sizes, one rank."""
    runs = {gib: _sglang_run(release, gib, 1) for gib in (24, 48, 80, 141, 180)}
    last = runs[141][1]
    return Found(
        {gib: plain(chosen["mem_fraction_static"]) for gib, (chosen, _) in runs.items()}, last.at, last.questions
    )


def _tuned(folder: str) -> Reader:
    return lambda release: files(release, f"{folder}.*{TUNED}")


def _models(release: Release) -> Found:
    """Architectures of the registry of models that generate text."""
    path, line = defined(release, r"_TEXT_GENERATION_MODELS(: [^=\n]+)? = ")
    return Found(sorted(constant(release, "_TEXT_GENERATION_MODELS").value), f"{path}:{line}")


def _classes(release: Release) -> Found:
    """Architectures that SGLang's model files name as entry classes."""
    named = re.compile(r"^EntryClass\b.*?= *(\[[^\]]*\]|\w+)", re.MULTILINE | re.DOTALL)
    found = {name for path, text in release.files.items() if path.startswith("sglang/srt/models/")
             for each in named.findall(text) for name in re.findall(r"\w+", each)}  # fmt: skip
    return Found(sorted(found), "sglang/srt/models: EntryClass")


def _switch(name: str) -> Reader:
    return lambda release: constant(release, name, "vllm/envs")


FACTS: Mapping[str, Mapping[str, Reader]] = {
    "vllm": {
        "max_batched_tokens": _vllm_batch("default_max_num_batched_tokens"),
        "max_requests": _vllm_batch("default_max_num_seqs"),
        "memory_share": lambda release: default(release, "CacheConfig", "gpu_memory_utilization"),
        "page_size": lambda release: default(release, "CacheConfig", "DEFAULT_BLOCK_SIZE"),
        "async_scheduling": _vllm_async,
        "decode_graphs": _vllm_graphs,
        "optimization_level": lambda release: default(release, "VllmConfig", "optimization_level"),
        "passes": lambda release: constant(release, "OPTIMIZATION_LEVEL_02"),
        "attention_backends": _priorities,
        "custom_all_reduce_bytes": lambda release: constant(release, "CUSTOM_ALL_REDUCE_MAX_SIZES"),
        "fused_all_reduce_mib": lambda release: constant(
            release, "FI_ALLREDUCE_FUSION_MAX_SIZE_MB", "vllm/compilation"
        ),
        "graphs_in_memory_profile": _switch("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
        "shared_expert_tokens": _switch("VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD"),
        "two_batch_decode": lambda release: default(release, "ParallelConfig", "dbo_decode_token_threshold"),
        "two_batch_prompt": lambda release: default(release, "ParallelConfig", "dbo_prefill_token_threshold"),
        "exchange_backend": lambda release: default(release, "ParallelConfig", "all2all_backend"),
        "moe_bf16_backend": lambda release: code(release, "select_unquantized_moe_backend"),
        "moe_fp8_backend": lambda release: code(release, "select_fp8_moe_backend"),
        "moe_nvfp4_backend": lambda release: code(release, "select_nvfp4_moe_backend"),
        "moe_mxfp4_backend": lambda release: code(release, "select_mxfp4_moe_backend"),
        "tuned_experts": _tuned("fused_moe/"),
        "models": _models,
        "options": lambda release: fields(release, "EngineArgs"),
    },
    "sglang": {
        "max_batched_tokens": _sglang("chunked_prefill_size"),
        "largest_graph": _sglang("largest_graph"),
        "decode_graphs": _sglang("decode_graphs", ranks=(8,)),
        "memory_share": _memory_share,
        "max_prefill_tokens": _option("max_prefill_tokens"),
        "page_size": _option("page_size"),
        "no_overlap": _option("disable_overlap_schedule"),
        "mixes_phases": _option("enable_mixed_chunk"),
        "no_prefix_cache": _option("disable_radix_cache"),
        "exchange_backend": _option("moe_a2a_backend"),
        "output_reserve": lambda release: constant(release, "SGLANG_INIT_NEW_TOKEN_RATIO", "sglang/srt/environ"),
        "output_reserve_least": lambda release: constant(
            release, "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR", "sglang/srt/environ"
        ),
        "attention_backend": first(
            lambda release: code(release, "_get_default_attn_backend", "sglang/srt"),
            lambda release: code(release, "_handle_attention_backend_compatibility", "sglang/srt"),
            lambda release: code(release, "handle_attention_backend_compatibility", "sglang/srt"),
        ),
        "moe_backend": first(
            lambda release: code(release, "_handle_moe_kernel_config", "sglang/srt"),
            lambda release: code(release, "handle_moe_kernel_config", "sglang/srt"),
        ),
        "tuned_experts": _tuned("configs/"),
        "models": _classes,
        "options": lambda release: Found(sorted(_sglang_options(release)), "sglang/srt/server_args.py"),
    },
}


def read(release: Release) -> dict[str, Found]:
    """Every fact that a release defines."""
    found = {}
    for name, reader in FACTS[release.engine].items():
        try:
            one = reader(release)
        except NotThere:
            continue
        found[name] = Found(plain(one.value), one.at, one.questions)
    return found
