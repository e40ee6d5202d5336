"""Seconds of one engine step as a function of its batch, for simulators of one's own.

    step = pw.step_time("Llama-3.1-8B", "H200")
    yield env.timeout(step([1] * 8, [1024] * 8))        # SimPy

A decode step of the same requests comes back thousands of times, one token longer each, so answers are kept: caches are
rounded up to `quantum` tokens, which is a page of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pipewave.calls.dtypes import cache_type
from pipewave.calls.fields import check_whole
from pipewave.errors import BadInput
from pipewave.gpus import GPU, find
from pipewave.models import ModelSource, load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import find_engine
from pipewave.step.predict import Runner

KEPT = 65_536  # answers


class StepTime:
    """Seconds of an engine step, kernels and gaps. Call it with new tokens and cache lengths of each request."""

    def __init__(self, runner: Runner, quantum: int = 16) -> None:
        check_whole("quantum", quantum)
        self.runner, self._quantum = runner, quantum

        def ask(*lengths: tuple[int, ...]) -> float:
            return 1e-6 * float(runner.steps([runner.batch(*lengths)]).total_us[0])

        self._seconds = lru_cache(maxsize=KEPT)(ask)

    def __call__(self, q_lens: Sequence[int], kv_lens: Sequence[int]) -> float:
        """Seconds of a step of requests with so many new tokens each (1: a decode) and so long caches with them.

        Raises BadInput: no lists of integers, lists that differ in length, or a cache shorter than its new tokens.
        """
        try:
            if len(q_lens) != len(kv_lens) or not len(q_lens):
                raise BadInput(f"q_lens and kv_lens have {len(q_lens)} and {len(kv_lens)} requests", field="q_lens")
            return self._seconds(tuple(q_lens), tuple(-(-int(n) // self._quantum) * self._quantum for n in kv_lens))
        except (TypeError, ValueError, OverflowError) as problem:
            raise BadInput(f"q_lens, kv_lens: must be lists of integers ({problem})", field="q_lens") from problem

    def __repr__(self) -> str:
        """One line."""
        runner = self.runner
        return f"<seconds of a step of {runner.deployment.model.name} on {runner.gpu.name}, {runner.engine.name}>"


def step_time(
    model: ModelSource,
    gpu: str | GPU,
    *,
    engine: str = "vllm",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    kv_dtype: str | None = None,
    quantum: int = 16,
) -> StepTime:
    """A function from the batch of an engine step to its seconds, for simulators of one's own (SimPy and others).

    Args:
        model: as in `load_model`.
        gpu: name, spec file or `GPU`.
        engine: `vllm`, `sglang`, `trtllm`, with or without version.
        tp: ranks that share each matrix.
        pp: stages that share the layers.
        ep: ranks that share the experts.
        kv_dtype: type of the cache; the model's by default.
        quantum: cache lengths are rounded up to so many tokens; 1 keeps them.

    Returns:
        A function of (new tokens of each request, cache lengths with them), in seconds.

    Raises:
        UnknownGPU, UnknownModel: no such GPU or model.
        CannotShard: heads, experts or layers do not divide.
        BadInput: a value that cannot be.

    Source: the step as in docs/how-it-works.md: its kernels one by one, and the engine's gaps.
    """
    known = find_engine(engine)
    deployment = Deployment(load(model), Parallel(tp, pp, ep), cache_type(kv_dtype), known.memory.page_size)
    return StepTime(Runner.of(deployment, find(gpu), known), quantum)
