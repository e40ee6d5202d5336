"""How much one request may ask for. Everything above is refused with a message that says so."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipewave.errors import BadInput

SWEEP_POINTS, SWEEP_GPUS = 2_000, 8
SWEEP_ENTRIES = 1_000_000  # of all lists (q_lens, kv_lens, routing) of a sweep together
BATCH, PROMPT_STEPS = 4_096, 20_000
INPUT_LEN, OUTPUT_LEN, STEP_TOKENS = 1 << 20, 1 << 17, 1 << 18
PLAN_SPLITS, PLAN_DESIGNS, PLAN_POINTS = 600, 4_000, 1_000
JSON_BYTES, TRACE_BYTES, UNPACKED_BYTES = 1_000_000, 200_000_000, 256 << 20
TRACE_EVENTS = 600_000  # of a trace that are kept, about 1 kB of memory each
GPU_CHARACTERS = 100_000  # of a spec file; ours have two thousand
GRID_POINTS = 10_000
TRAFFIC_REQUESTS, TRAFFIC_STEPS, TRAFFIC_BYTES = 20_000, 200_000, 5_000_000
ENGINES = 64  # of each side of a disaggregated deployment

Degree = Annotated[int, Field(ge=1, le=4096)]
InputLen = Annotated[int, Field(ge=1, le=INPUT_LEN)]
OutputLen = Annotated[int, Field(ge=1, le=OUTPUT_LEN)]
StepTokens = Annotated[int, Field(ge=1, le=STEP_TOKENS)]
Limit = Annotated[float, Field(gt=0, lt=1e12)]  # ms, W or USD


def at_most(what: str, size: int, most: int, field: str) -> None:
    """Raise BadInput, naming the field to reduce, when `size` exceeds `most`."""
    if size > most:
        raise BadInput(f"{what}: {size:,} is more than the {most:,} that one request may ask for", field=field)
