"""Devices that jobs are measured on: a CUDA GPU, or a fake one for rehearsals."""

from __future__ import annotations

import hashlib
import importlib.metadata
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pipewave.measure.impls import Pools, Prepared, Skip, prepare
from pipewave.measure.plan import FAKE_GPU, Job, rough_us
from pipewave.measure.protocol import (
    BURST,
    REPETITIONS,
    WARM_CALLS,
    WARM_UPS,
    Attempt,
    DeviceLostError,
    Flusher,
    Timing,
    bracketed,
    graph_replays,
    is_fatal,
    recoverable,
    summarize,
)

# NVML: hardware slowdown, thermal (2), power brake. The power cap is no fault: any tensor load meets it.
SLOWDOWN_BITS = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True, slots=True)
class Health:
    """Clocks, power and temperature at one instant; None where the driver does not say."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temp_c: int | None = None
    slowdown: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: `ok` with a timing, or `failed` or `skipped` with a reason."""

    status: str
    reason: str = ""
    timing: Timing | None = None
    extra: Mapping[str, Any] | None = None
    health: Health = Health()


class Device(Protocol):
    """Measures batches of jobs that share family, protocol and flush."""

    def environment(self) -> dict[str, Any]:
        """GPU, driver and software versions; rows carry its hash."""

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job, in order; raises DeviceLostError when the process must be restarted."""


def reason_of(error: BaseException) -> str:
    """One line for a failed row."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


class CudaDevice:
    """The GPU torch sees first; it rests after every `burst` cold calls, never where that is 0."""

    def __init__(self, burst: int = BURST) -> None:
        import torch

        if not torch.cuda.is_available():
            raise DeviceLostError("torch sees no CUDA GPU")
        self._pools = Pools()
        self._flusher = Flusher()
        self._nvml = Nvml()
        self._health = Health()
        self._burst = burst

    def environment(self) -> dict[str, Any]:
        """As `describe`, of the GPU in use, and the calls between two rests."""
        return self.describe(self._nvml) | {"burst": self._burst}

    @staticmethod
    def describe(nvml: Nvml) -> dict[str, Any]:
        """GPU name, SMs, L2, driver, power limit, CUDA, and the version of every library that may be measured."""
        import torch

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        versions: dict[str, str | None] = dict.fromkeys(("triton", "vllm", "flashinfer-python", "numpy"))
        for name in versions:
            with suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name)
        return {
            "gpu": properties.name,
            "sms": properties.multi_processor_count,
            "l2_mb": getattr(properties, "L2_cache_size", 0) / 2**20,
            "memory_mb": properties.total_memory // 2**20,
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
            **versions,
            **nvml.constants(),
        }

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Set up and warm every job, then time those that work under the protocol of the first."""
        import torch

        warmed = [self._warmed(job) for job in jobs]
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise DeviceLostError(reason_of(error)) from error
        ready = [(job, one) for job, one in zip(jobs, warmed, strict=True) if isinstance(one, Prepared)]
        timed = iter(self._timed(ready) if ready else ())
        return [one if isinstance(one, Outcome) else self._outcome(next(timed), one) for one in warmed]

    def _warmed(self, job: Job) -> Prepared | Outcome:
        try:
            prepared = prepare(job, self._pools)
            prepared.call()
        except Skip as skip:
            return Outcome("skipped", str(skip))
        except recoverable() as error:
            return _failed(error)
        return prepared

    def _timed(self, items: Sequence[tuple[Job, Prepared]]) -> list[Timing | Exception]:
        first = items[0][0]
        if first.protocol == "graph":
            return [self._graph(job, prepared) for job, prepared in items]
        calls = [prepared.call for _, prepared in items]
        if first.protocol == "profiler_warm":
            runs = self._bracketed(calls, None, WARM_UPS + WARM_CALLS)
            return [_timing(run, WARM_UPS, statistics.fmean) for run in runs]
        runs = self._bracketed(calls, self._flusher.call(first.flush), REPETITIONS)
        return [_timing(run, 0, statistics.median) for run in runs]

    def _bracketed(self, calls: Sequence[Any], flush: Any, repetitions: int) -> list[Attempt]:
        """Retry once: a profiler that lost events usually finds them the second time."""
        problem: Exception | None = None
        for _ in range(2):
            try:
                return bracketed(calls, flush, repetitions, self._sample, self._burst if flush else 0)
            except recoverable() as error:
                problem = _survived(error)
        return [problem or AssertionError("unreachable")] * len(calls)

    def _graph(self, job: Job, prepared: Prepared) -> Timing | Exception:
        try:
            timing = graph_replays(prepared.call, rough_us(job.case))
        except recoverable() as error:
            return _survived(error)
        self._sample()
        return timing

    def _sample(self) -> None:
        self._health = self._nvml.health()

    def _outcome(self, attempt: Timing | Exception, prepared: Prepared) -> Outcome:
        if isinstance(attempt, Exception):
            return _failed(attempt)
        return Outcome("ok", timing=attempt, extra=prepared.extra, health=self._health)


def _survived(error: Exception) -> Exception:
    """The error again; DeviceLostError where the context is broken."""
    if is_fatal(error):
        raise DeviceLostError(reason_of(error)) from error
    return error


def _failed(error: Exception) -> Outcome:
    import torch

    if isinstance(_survived(error), torch.cuda.OutOfMemoryError):
        torch.cuda.empty_cache()
    return Outcome("failed", reason_of(error))


def _timing(run: Attempt, dropped: int, middle: Callable[[Sequence[float]], float]) -> Timing | Exception:
    if isinstance(run, Exception):
        return run
    try:
        return summarize(run[dropped:], middle)
    except ValueError as error:
        return error


class Nvml:
    """NVML through `pynvml`, silent where it is missing: clocks and power are then None."""

    def __init__(self) -> None:
        import torch

        try:
            import pynvml
        except ImportError:
            self._nvml: Any = None
            return
        try:
            pynvml.nvmlInit()
            # NVML's handle of the GPU that torch uses, which need not be the first that NVML sees.
            number = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
            by_uuid, by_index = pynvml.nvmlDeviceGetHandleByUUID, pynvml.nvmlDeviceGetHandleByIndex
            self._handle = by_uuid(f"GPU-{number}") if number else by_index(0)
        except pynvml.NVMLError:
            self._nvml = None
            return
        self._nvml = pynvml

    def _nvml_value(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (AttributeError, self._nvml.NVMLError):
            return None

    def constants(self) -> dict[str, Any]:
        """Driver version, power limit, highest SM clock, and a hash of the card's number, which tells cards apart."""
        if self._nvml is None:
            return {}
        number = self._nvml_value("nvmlDeviceGetUUID")
        limit = self._nvml_value("nvmlDeviceGetEnforcedPowerLimit")
        return {
            "driver": str(self._nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": limit / 1e3 if limit else None,
            "card": hashlib.sha256(str(number).encode()).hexdigest()[:8] if number else None,
            "max_sm_clock_mhz": self._nvml_value("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM),
        }

    def health(self) -> Health:
        """Clocks, power, temperature and whether the driver says that it slows the GPU down."""
        if self._nvml is None:
            return Health()
        power = self._nvml_value("nvmlDeviceGetPowerUsage")
        reasons = self._nvml_value("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return Health(
            sm_clock_mhz=self._nvml_value("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            power_w=power / 1e3 if power else None,
            temp_c=self._nvml_value("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            slowdown=bool(int(reasons) & SLOWDOWN_BITS),
        )


class FakeDevice:
    """Answers with rough latencies; needs no GPU."""

    def environment(self) -> dict[str, Any]:
        """A fixed environment that cannot be taken for a real GPU."""
        return {"gpu": FAKE_GPU, "driver": "0", "cuda": None, "torch": None}

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job."""
        rough = [rough_us(job.case) for job in jobs]
        return [Outcome("ok", timing=Timing(us, us, us, REPETITIONS), health=Health(1980, 300.0, 40)) for us in rough]
