"""What is known of one call in a trace: the call, what it is called, and whether its shape was read or assumed."""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.calls.families import Call


@dataclass(frozen=True, slots=True)
class Shaped:
    """`read`: every number came from the trace, the model or the user; otherwise `note` says what was assumed."""

    name: str
    call: Call
    read: bool = True
    note: str = ""
