"""An SGLang engine that answers lines of its input, for benches that ask several in turn. Needs SGLang and a GPU."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lab.sglang_engine import __main__ as sglang
from lab.sglang_engine import rows, scheduler
from lab.vllm_engine.launch import config_of


@contextmanager
def started(
    model: str, layers: int | None, port: int, shared: Mapping[str, Any]
) -> Iterator[tuple[sglang.Run, Callable[[Any], None]]]:
    """The run of a started engine, and what says an answer as a line of JSON; the first says the engine's facts.

    Answers go to the standard output alone: what the engine prints there goes to the errors.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name, value in sglang.ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    def say(answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        os.environ[scheduler.LOG] = str(Path(folder, "steps.jsonl"))
        given: Any = SimpleNamespace(model=model, layers=layers, memory_fraction=None)
        sglang.ARGUMENTS.update(shared, port=port)
        engine = sglang.start(given, Path(folder))
        notes = rows.NotesFile(Path(folder, "steps.jsonl"))
        facts = sglang.facts(engine, notes.new())
        run = sglang.Run(engine, notes, config_of(model, layers)["vocab_size"], lambda _kind, _row: None)
        say(facts)
        yield run, say
