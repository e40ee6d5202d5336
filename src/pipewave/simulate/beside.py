"""What stands beside a model in memory: adapters in the GPU's, idle blocks of prompts in the host's."""

from __future__ import annotations

from dataclasses import replace

from pipewave.errors import BadInput, DoesNotFit
from pipewave.models.lora_and_drafts import adapter_bytes
from pipewave.simulate.limits import Limits
from pipewave.step import Runner
from pipewave.step.memory import GIB, Budget, cache_bytes

LOAD_SHARE = 0.8  # of the PCIe rate in one direction that copies of pages reach
TOKENS = 4096  # over which a token's cache is counted


def with_adapters(memory: Budget, runner: Runner) -> Budget:
    """What adapters leave for the cache. Raises DoesNotFit."""
    deployment = runner.deployment
    if deployment.lora is None:
        return memory
    taken = adapter_bytes(deployment.model, deployment.parallel, deployment.lora) / GIB
    if taken >= memory.kv:
        raise DoesNotFit(f"{taken:.1f} GiB of adapters leave no KV cache in {memory.kv:.1f} GiB", field="lora")
    share, page = 1.0 - taken / memory.kv, runner.engine.memory.page_size
    tokens = int(memory.kv_tokens * share) // page * page
    pool, weights = memory.state_pool * share, memory.weights + taken
    return replace(memory, weights=weights, kv=memory.kv - taken, kv_tokens=tokens, state_pool=pool)


def offloaded(limits: Limits, runner: Runner, host_gib: float) -> Limits:
    """Limits with pages in the host's memory, `host_gib` for each GPU; copies back hold up the step that needs them."""
    if not 0 <= host_gib <= 1 << 16:
        raise BadInput(f"kv_offload_gib = {host_gib!r}: must be from 0 to {1 << 16} GiB a GPU", field="kv_offload_gib")
    if not host_gib:
        return limits
    each = cache_bytes(runner.deployment, TOKENS) / TOKENS
    pages = int(host_gib * GIB / (each * limits.page_size)) // runner.deployment.parallel.pp
    return replace(limits, host_pages=pages, load_s=each / (1e9 * LOAD_SHARE * runner.gpu.pcie_gbps))
