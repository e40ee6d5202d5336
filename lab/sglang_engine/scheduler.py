"""Inside SGLang's scheduler process: hold a point's requests until all have come, and note when each batch ended.

The engine runs as its users run it: its own scheduler, overlapping loop and graphs. Three of the scheduler's methods
are wrapped; the wrapping takes some microseconds a step, and its notes are written while the scheduler is idle.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOG = "PIPEWAVE_SGLANG_STEPS"  # names the file of the notes: the process is spawned, so only its environment tells it
HELD = "held"
QUIET_S = 0.005
FACTS = ("max_total_num_tokens", "max_running_requests", "max_prefill_tokens", "chunked_prefill_size", "enable_overlap")


def request_name(point: int, index: int, count: int) -> str:
    """Name of a request that waits in the scheduler until `count` requests of its point are there."""
    return f"{HELD}-{count}-{point}-{index}"


def expected(name: str) -> int:
    """How many requests the bearer of a name waits for; 1 for names of other origin."""
    parts = name.split("-")
    return int(parts[1]) if parts[0] == HELD and len(parts) == 4 else 1


@dataclass
class Gate:
    """Collects requests that belong together."""

    waiting: list[Any] = field(default_factory=list)

    def passed(self, arrived: Iterable[Any]) -> list[Any]:
        """Messages to hand on now: control messages at once, requests when their point is complete."""
        ready: list[Any] = []
        for message in arrived:
            name = getattr(message, "rid", None)
            (self.waiting if isinstance(name, str) and expected(name) > 1 else ready).append(message)
        if self.waiting and len(self.waiting) >= expected(self.waiting[0].rid):
            ready, self.waiting = ready + self.waiting, []
        return ready


@dataclass
class Notes:
    """Batches in the order in which they ended, appended to a file whenever nothing runs."""

    path: Path
    clock: Callable[[], float] = time.perf_counter
    received_s: float = 0.0
    queued_s: float = 0.0
    touched_s: float = 0.0
    begun: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, batch: Any, began_s: float) -> None:
        """A batch was launched; its counts are read now, as the scheduler goes on to change them."""
        decoding = batch.forward_mode.is_decode()
        self.begun[batch.forward_iter] = {
            "mode": "decode" if decoding else "prefill",
            "requests": len(batch.reqs),
            "tokens": len(batch.reqs) if decoding else int(batch.extend_num_tokens or 0),
            "context": int(batch.seq_lens_cpu.sum()) / max(1, len(batch.reqs)),
            "began_s": began_s,
            "launched_s": self.clock(),
        }

    def end(self, batch: Any) -> None:
        """The results of a batch were taken in."""
        self.touched_s = self.clock()
        row = self.begun.pop(batch.forward_iter, None)
        if row is not None:
            self.ended.append(
                row | {"ended_s": self.touched_s, "received_s": self.received_s, "queued_s": self.queued_s}
            )

    def flush(self) -> None:
        """Write what has ended, unless a step ended just now."""
        if self.ended and self.clock() - self.touched_s > QUIET_S:
            with self.path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in self.ended)
            self.ended.clear()


def wrap(scheduler_class: Any, notes: Notes, gate: Gate) -> None:
    """Put the gate and the notes around a scheduler's methods."""
    take_in, launch, finish = (
        getattr(scheduler_class, name) for name in ("process_input_requests", "run_batch", "process_batch_result")
    )

    def process_input_requests(self: Any, arrived: list[Any]) -> None:
        ready = gate.passed(arrived)
        if ready:
            notes.received_s = notes.clock()
        else:
            notes.flush()
        take_in(self, ready)
        if ready:
            notes.queued_s = notes.clock()

    def run_batch(self: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        began = notes.clock()
        result = launch(self, batch, *rest, **more)
        notes.begin(batch, began)
        return result

    def process_batch_result(self: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        result = finish(self, batch, *rest, **more)
        notes.end(batch)
        return result

    for method in (process_input_requests, run_batch, process_batch_result):
        setattr(scheduler_class, method.__name__, method)


def run(*given: Any, **named: Any) -> None:
    """SGLang's own entry point of a scheduler process, its scheduler wrapped; the first note says how it is set up."""
    from sglang.srt.managers import scheduler

    notes = Notes(Path(os.environ[LOG]))
    wrap(scheduler.Scheduler, notes, Gate())
    started = scheduler.Scheduler.run_event_loop

    def run_event_loop(self: Any) -> None:
        found = {name: getattr(self, name, None) for name in FACTS} | {"pid": os.getpid()}
        notes.path.write_text(json.dumps({"mode": "facts"} | found) + "\n")
        started(self)

    scheduler.Scheduler.run_event_loop = run_event_loop
    scheduler.run_scheduler_process(*given, **named)
