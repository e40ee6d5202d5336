"""Time collectives over the GPUs of one machine: `python -m lab.collectives --world 2,4 --store FILE`.

Before each timed call the flush is written over and over, long enough for the slowest host process to queue all that
follows; then a tiny all-reduce lines the ranks up and every rank spins the same number of clocks, so all start
together. The latency is that of the slowest rank; `fastest_rank_us` tells how well they were aligned.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from lab.microbench import gpus
from pipewave.files import store as records
from pipewave.measure.device import CudaDevice, Health, Nvml, Outcome, reason_of
from pipewave.measure.plan import Job, from_file
from pipewave.measure.protocol import Attempt, Bracket, Flusher, Timing, bracketed, recoverable
from pipewave.measure.runner import RowWriter

BATCH = 24
REPETITIONS = 15
FLUSHES = 16  # 55 µs each on an H200; a process that profiles queues a send and receive in up to 250 µs
# NVLink multicast is off: where it is available, a program that uses it wrongly can take a host's GPUs down.
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_SKIP_P2P_CHECK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
# Message sizes of the built-in plan in bytes, as nccl-tests counts them; vLLM's own kernel takes fewer.
SMALLEST, LARGEST = 1 << 10, 512 << 20
CUSTOM_LARGEST = 32 << 20
FAMILIES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
Call = Callable[[], object]


class Group:
    """One rank's process groups, buffers and, where vLLM is importable, its custom all-reduce."""

    def __init__(self, rank: int, world: int, port: int) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.world = rank, world
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("nccl", init_method=address, rank=rank, world_size=world, device_id=self.device)
        self.cpu = dist.new_group(backend="gloo")
        self._one = torch.ones(1, device=self.device)
        elements = LARGEST // 2
        self._in, self._out = (torch.empty(elements, dtype=torch.bfloat16, device=self.device).normal_() for _ in "io")
        self._custom: Any = None
        self.custom_error = ""
        self._graphs: list[Any] = []

    def load_custom(self) -> None:
        """Set up vLLM's custom all-reduce; on failure remember why. Every rank must call this."""
        try:
            from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

            self._custom = CustomAllreduce(self.cpu, self.device, max_size=2 * CUSTOM_LARGEST)
            self.custom_error = "vLLM disabled its custom all-reduce here" if self._custom.disabled else ""
        except recoverable() as error:
            self.custom_error = reason_of(error)

    def line_up(self) -> None:
        """A device-side barrier on this rank's stream."""
        import torch.distributed as dist

        dist.all_reduce(self._one)

    def agree(self, value: object) -> list[Any]:
        """Every rank's value, on every rank."""
        import torch.distributed as dist

        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value, group=self.cpu)
        return out

    def call(self, job: Job) -> Call:
        """What runs `job` once. Raises ValueError when the custom kernel is not available."""
        if job.impl == "custom":
            return self._custom_call(job)
        return {
            "all_reduce": self._all_reduce,
            "all_gather": self._all_gather,
            "reduce_scatter": self._reduce_scatter,
            "all_to_all": self._all_to_all,
            "send_recv": self._send_recv,
        }[job.family](job.case["bytes"] // 2)

    def _custom_call(self, job: Job) -> Call:
        """A graph of one call: only inside graphs does vLLM read the input in place, as it does when serving."""
        import torch

        if self.custom_error:
            raise ValueError(self.custom_error)
        graph, source = torch.cuda.CUDAGraph(), self._in[: job.case["bytes"] // 2]
        with self._custom.capture(), torch.cuda.graph(graph):
            self._graphs.append(self._custom.custom_all_reduce(source))
        self._graphs.append(graph)
        return lambda: graph.replay()

    def _all_reduce(self, count: int) -> Call:
        import torch.distributed as dist

        # In place on the output buffer: sums overflow to infinity after many calls, so it is refilled before each.
        target = self._out[:count]
        target.copy_(self._in[:count]).mul_(1e-3)
        return lambda: dist.all_reduce(target)

    def _all_gather(self, count: int) -> Call:
        import torch.distributed as dist

        source, target = self._in[: count // self.world], self._out[: count // self.world * self.world]
        return lambda: dist.all_gather_into_tensor(target, source)

    def _reduce_scatter(self, count: int) -> Call:
        import torch.distributed as dist

        source, target = self._in[: count // self.world * self.world], self._out[: count // self.world]
        return lambda: dist.reduce_scatter_tensor(target, source)

    def _all_to_all(self, count: int) -> Call:
        import torch.distributed as dist

        even = count // self.world * self.world
        source, target = self._in[:even], self._out[:even]
        return lambda: dist.all_to_all_single(target, source)

    def _send_recv(self, count: int) -> Call:
        import torch.distributed as dist

        source, target = self._in[:count], self._out[:count]
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world

        def call() -> None:
            pair = [dist.P2POp(dist.isend, source, after), dist.P2POp(dist.irecv, target, before)]
            for work in dist.batch_isend_irecv(pair):
                work.wait()

        return call


def across_ranks(ranks: Sequence[Sequence[Bracket]]) -> tuple[Timing, float]:
    """Per repetition the slowest rank; its median, least and most; and the median of the fastest rank."""
    repetitions = list(zip(*ranks, strict=True))
    slowest = [max(run.latency_us for run in runs) for runs in repetitions]
    fastest = [min(run.latency_us for run in runs) for runs in repetitions]
    if not repetitions or min(fastest) <= 0.0:
        raise ValueError("a rank launched no kernel")
    timing = Timing(statistics.median(slowest), min(slowest), max(slowest), len(slowest), ranks[0][-1].events)
    return timing, statistics.median(fastest)


def outcome_of(ranks: Sequence[list[Bracket] | str], health: Health) -> Outcome:
    """Combine what every rank brought: brackets, or the reason why it has none."""
    reasons = [item for item in ranks if isinstance(item, str)]
    if reasons:
        return Outcome("failed", reasons[0])
    try:
        timing, fastest = across_ranks([item for item in ranks if not isinstance(item, str)])
    except ValueError as error:
        return Outcome("failed", reason_of(error))
    return Outcome("ok", timing=timing, extra={"fastest_rank_us": round(fastest, 3)}, health=health)


def measure_batch(group: Group, flusher: Flusher, jobs: Sequence[Job], nvml: Nvml) -> list[Outcome]:
    """Set up, warm and time jobs that every rank runs in the same order."""
    import torch

    ready: dict[int, Call] = {}
    mine: list[list[Bracket] | str] = ["not run"] * len(jobs)
    for index, job in enumerate(jobs):
        try:
            ready[index] = group.call(job)
        except recoverable() as error:
            mine[index] = reason_of(error)
    for call in ready.values():
        call()
        call()
    torch.cuda.synchronize()
    write = flusher.call("write")

    def flush() -> None:
        for _ in range(FLUSHES):
            write()
        group.line_up()

    attempts: Sequence[Attempt]
    try:
        attempts = bracketed(list(ready.values()), flush, REPETITIONS, lambda: None)
    except recoverable() as error:  # a trace that lost events: the other ranks have theirs, so go on together
        attempts = [error] * len(ready)
    for index, attempt in zip(ready, attempts, strict=True):
        mine[index] = reason_of(attempt) if isinstance(attempt, Exception) else attempt
    everyone = group.agree(mine)
    health = nvml.health()
    return [outcome_of([rank[index] for rank in everyone], health) for index in range(len(jobs))]


def rank_main(rank: int, world: int, port: int, path: str, budget_s: float, wanted: Sequence[Job]) -> None:
    """One rank of a world: all jobs, or as many as the budget allows. Rank 0 writes."""
    started = time.monotonic()
    group = Group(rank, world, port)
    group.load_custom()
    flusher, nvml = Flusher(), Nvml()
    contents = records.read(path)
    todo = [job for job in wanted if job.key not in records.done_keys(contents)]
    environment = CudaDevice.describe(nvml) | {"gpus": world}
    group.agree(None)
    writer = RowWriter(path, contents, environment) if rank == 0 else None
    for start in range(0, len(todo), BATCH):
        if any(group.agree(time.monotonic() - started > budget_s)):
            break
        batch = todo[start : start + BATCH]
        outcomes = measure_batch(group, flusher, batch, nvml)
        if writer is not None:
            writer.acknowledge(batch, outcomes)
            failed = sum(outcome.status != "ok" for outcome in outcomes)
            done = start + len(batch)
            sys.stderr.write(
                f"world {world}: {done}/{len(todo)}, {failed} failed, {time.monotonic() - started:.0f} s\n"
            )
    sys.stdout.flush()
    sys.stderr.flush()
    # Tearing communicators down can hang after graphs used them; everything measured is already in the store.
    os._exit(0)


def run_world(world: int, path: str, budget_s: float, wanted: Sequence[Job]) -> bool:
    """Start one process a GPU and wait; on a failure or past the budget end those still running."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [(rank, world, port, path, budget_s, wanted) for rank in range(world)]
    processes = [context.Process(target=rank_main, args=each) for each in arguments]
    for process in processes:
        process.start()
    deadline = time.monotonic() + budget_s + 45.0
    while any(p.is_alive() for p in processes) and time.monotonic() < deadline:
        time.sleep(0.2)
        if any(p.exitcode not in (None, 0) for p in processes):
            break
    for process in processes:
        if process.is_alive():
            process.join(2.0)
            process.kill()
    return all(process.exitcode == 0 for process in processes)


def sizes() -> list[int]:
    """Powers of two and the points half-way between, all multiples of 512 bytes."""
    powers = [SMALLEST << i for i in range((LARGEST // SMALLEST).bit_length())]
    return sorted({*powers, *(power * 3 // 2 for power in powers[:-1])})


def built_in_jobs(world: int) -> list[Job]:
    """Every family through NCCL, all_reduce also through vLLM's custom kernel; large and small sizes mixed."""
    out = []
    for size in sizes()[::2] + sizes()[1::2]:
        for family in FAMILIES:
            case = {"kernel": family, "bytes": size, "world": world, "dtype": "bf16"}
            out.append(Job(case, "nccl"))
            if family == "all_reduce" and size <= CUSTOM_LARGEST:
                out.append(Job(case, "custom"))
    return out


def jobs_of(path: str, world: int) -> list[Job]:
    """The jobs of a world: those of a cases file, or of the built-in plan where `path` is empty."""
    if not path:
        return built_in_jobs(world)
    return [job for job in from_file(path) if job.case.get("world") == world]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each world that the GPUs at hand allow; status 1 when one did not end cleanly, 2 when none was."""
    parser = argparse.ArgumentParser(prog="python -m lab.collectives")
    parser.add_argument("--world", default="2,4", help="comma-separated numbers of GPUs")
    parser.add_argument("--store", required=True)
    parser.add_argument("--plan", default="", help="contract cases file; default: nccl-tests' sizes of every family")
    parser.add_argument("--budget-s", type=float, default=120.0, help="for each world")
    options = parser.parse_args(argv)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    worlds, at_hand = [int(part) for part in options.world.split(",")], gpus()
    allowed = [world for world in worlds if world <= at_hand]
    for world in (world for world in worlds if world > at_hand):
        sys.stderr.write(f"world {world}: left out, torch sees {at_hand} GPUs\n")
    clean = [run_world(world, options.store, options.budget_s, jobs_of(options.plan, world)) for world in allowed]
    return (0 if all(clean) else 1) if allowed else 2


if __name__ == "__main__":
    sys.exit(main())
