"""Where jobs run: a CUDA GPU, or a fake one that replays recorded rows."""

from __future__ import annotations

import hashlib
import importlib.metadata
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipewave.measure.brackets import Timing, summarize
from pipewave.measure.impls import Prepared, Skip, prepare
from pipewave.measure.job import FAKE_GPU, Job
from pipewave.measure.plans import rough_us
from pipewave.measure.pools import Pools
from pipewave.measure.protocol import (
    BURST,
    REPETITIONS,
    WARM_CALLS,
    WARM_UPS,
    Attempt,
    DeviceLostError,
    Flusher,
    bracketed,
    graph_replays,
    is_fatal,
    mean_of,
    recoverable,
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
        ...

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job, in order; raises DeviceLostError when the process must be restarted."""
        ...


def reason_of(error: BaseException) -> str:
    """One line for a failed row."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpus() -> int:
    """CUDA GPUs that torch sees; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


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
        versions = {name: _version(name) for name in ("triton", "vllm", "flashinfer-python", "numpy")}
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
        ready: dict[int, Prepared] = {}
        outcomes: dict[int, Outcome] = {}
        for index, job in enumerate(jobs):
            result = self._warmed(job)
            if isinstance(result, Prepared):
                ready[index] = result
            else:
                outcomes[index] = result
        self._synchronize()
        attempts = self._timed([(jobs[index], ready[index]) for index in ready])
        for (index, prepared), attempt in zip(ready.items(), attempts, strict=True):
            outcomes[index] = self._outcome(attempt, prepared)
        return [outcomes[index] for index in range(len(jobs))]

    def _warmed(self, job: Job) -> Prepared | Outcome:
        try:
            prepared = prepare(job, self._pools)
            prepared.call()
        except Skip as skip:
            return Outcome("skipped", str(skip))
        except recoverable() as error:
            return self._failed(error)
        return prepared

    def _failed(self, error: Exception) -> Outcome:
        import torch

        if is_fatal(error):
            raise DeviceLostError(reason_of(error)) from error
        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
        return Outcome("failed", reason_of(error))

    def _synchronize(self) -> None:
        import torch

        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise DeviceLostError(reason_of(error)) from error

    def _timed(self, items: Sequence[tuple[Job, Prepared]]) -> list[Timing | Exception]:
        if not items:
            return []
        job = items[0][0]
        if job.protocol == "graph":
            return [self._graph(job, prepared) for job, prepared in items]
        if job.protocol == "profiler_warm":
            calls = [prepared.call for _, prepared in items]
            return [_timing(a, mean_of) for a in self._bracketed(calls, None, WARM_UPS + WARM_CALLS, WARM_UPS)]
        flush = self._flusher.call(job.flush)
        calls = [prepared.call for _, prepared in items]
        return [_timing(a, summarize) for a in self._bracketed(calls, flush, REPETITIONS, 0)]

    def _bracketed(self, calls: Sequence[Any], flush: Any, repetitions: int, dropped: int) -> list[Attempt]:
        """Retry once: a profiler that lost events usually finds them the second time."""
        for last in (False, True):
            try:
                attempts = bracketed(calls, flush, repetitions, self._sample, self._burst if flush else 0)
            except recoverable() as error:
                if is_fatal(error):
                    raise DeviceLostError(reason_of(error)) from error
                if last:
                    return [error for _ in calls]
            else:
                return [a if isinstance(a, Exception) else a[dropped:] for a in attempts]
        raise AssertionError("unreachable")

    def _graph(self, job: Job, prepared: Prepared) -> Timing | Exception:
        try:
            timing = graph_replays(prepared.call, rough_us(job.case))
        except recoverable() as error:
            if is_fatal(error):
                raise DeviceLostError(reason_of(error)) from error
            return error
        self._sample()
        return timing

    def _sample(self) -> None:
        self._health = self._nvml.health()

    def _outcome(self, attempt: Timing | Exception, prepared: Prepared) -> Outcome:
        if isinstance(attempt, Exception):
            return self._failed(attempt)
        return Outcome("ok", timing=attempt, extra=prepared.extra, health=self._health)


def _timing(attempt: Attempt, reduce: Any) -> Timing | Exception:
    if isinstance(attempt, Exception):
        return attempt
    try:
        timing: Timing = reduce(attempt)
    except ValueError as error:
        return error
    return timing


class Nvml:
    """NVML through `pynvml`, silent where it is missing: clocks and power are then None."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._nvml: Any = None
            return
        try:
            pynvml.nvmlInit()
            self._handle = _handle(pynvml)
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


def _handle(pynvml: Any) -> Any:
    """NVML's handle of the GPU that torch uses, which need not be the first that NVML sees."""
    import torch

    number = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{number}") if number else pynvml.nvmlDeviceGetHandleByIndex(0)


class FakeDevice:
    """Replays recorded outcomes by key, and those of unknown jobs from their rough latency; needs no GPU."""

    def __init__(self, recorded: Iterable[Mapping[str, Any]] = (), *, pause_s: float = 0.0) -> None:
        """`recorded` are rows as `measure.rows` gives them; `pause_s` is slept before each batch."""
        self._rows = {row["key"]: row for row in recorded}
        self._pause_s = pause_s

    def environment(self) -> dict[str, Any]:
        """A fixed environment that cannot be taken for a real GPU."""
        return {"gpu": FAKE_GPU, "driver": "0", "cuda": None, "torch": None}

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Recorded latencies where there are any."""
        if self._pause_s:
            time.sleep(self._pause_s)
        return [self._replayed(job) for job in jobs]

    def _replayed(self, job: Job) -> Outcome:
        row = self._rows.get(job.key)
        if row is None:
            latency = rough_us(job.case)
            return Outcome("ok", timing=Timing(latency, latency, latency, REPETITIONS), health=Health(1980, 300.0, 40))
        if row["status"] != "ok":
            return Outcome(row["status"], row["reason"])
        timing = Timing(row["latency_us"], row["min_us"], row["max_us"], row["n"])
        return Outcome(
            "ok", timing=timing, health=Health(row.get("sm_clock_mhz"), row.get("power_w"), row.get("temp_c"))
        )
