"""Functions that run inside the engine's worker processes, one a GPU; each takes the worker first."""

from __future__ import annotations

from typing import Any

MEMORY = {
    "total_bytes": "init_snapshot.total_memory",
    "free_at_start_bytes": "init_snapshot.free_memory",
    "requested_bytes": "requested_memory",
    "weights_bytes": "model_runner.model_memory_usage",
    "peak_activation_bytes": "peak_activation_memory",
    "non_torch_bytes": "non_torch_memory",
    "graphs_estimated_bytes": "cudagraph_memory_estimate",
    "kv_available_bytes": "available_kv_cache_memory_bytes",
}


def read(owner: Any, path: str) -> Any:
    """The attribute of a dotted path as a JSON value; None where there is no such attribute."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
        if owner is None:
            return None
    return owner if isinstance(owner, bool | int | float | str) else str(owner)


def memory(worker: Any) -> dict[str, Any]:
    """What the worker found when it sized its KV cache, and what the GPU holds now; bytes."""
    import torch

    free, total = torch.cuda.mem_get_info()
    now = {"free_now_bytes": free, "total_now_bytes": total, "reserved_now_bytes": torch.cuda.memory_reserved()}
    return {name: read(worker, path) for name, path in MEMORY.items()} | now


def fill_cache(worker: Any) -> int:
    """Random values in the KV cache: a cache of zeros moves faster than a real one. Returns the tensors filled.

    Normal ones, as `uniform_(-1, 1)` has a mean in 16 bits (what rounds up to 1 becomes -1), which every layer of dummy
    weights adds to every request alike, until a mixture of experts routes them alike.
    """
    import torch

    caches = [cache for cache in worker.model_runner.kv_caches if isinstance(cache, torch.Tensor)]
    with torch.inference_mode():
        for cache in caches:
            if cache.is_floating_point():
                cache.normal_(0.0, 0.5)
    torch.cuda.synchronize()
    return len(caches)
