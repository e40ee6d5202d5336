"""Answers that take long are worked out in processes of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("anyio")

import anyio
from anyio import BrokenWorkerProcess, to_process

from pipewave.errors import UnknownGPU
from pipewave.gpus import find
from pipewave.web.app import in_process, in_thread, unless_disconnected
from pipewave.web.catalogue import ModelQuery
from pipewave.web.queries import CACHED, cached

TRAFFIC = {"model": "Llama-3.1-8B", "gpu": "H200", "requests": 4, "input_len": 64, "output_len": 4}


def asked(how: Callable[..., Awaitable[Any]], work: Callable[..., Any], *args: object) -> Any:
    async def main() -> Any:
        return await how(anyio.CapacityLimiter(1), work, *args)

    return anyio.run(main)


def test_a_long_answer_leaves_this_process_alone() -> None:
    assert asked(in_thread, os.getpid) == os.getpid()
    assert asked(in_process, os.getpid) != os.getpid()


def test_errors_of_another_process_keep_their_field_and_their_words() -> None:
    with pytest.raises(UnknownGPU) as there:
        asked(in_process, find, "H2000")
    with pytest.raises(UnknownGPU) as ours:
        find("H2000")
    assert (there.value.message, there.value.field) == (ours.value.message, ours.value.field)


def test_a_process_that_dies_takes_one_question_with_it() -> None:
    async def main() -> int:
        lane = anyio.CapacityLimiter(1)
        with pytest.raises(BrokenWorkerProcess):
            await in_process(lane, os._exit, 1)
        return await in_process(lane, os.getpid)

    assert anyio.run(main) != os.getpid()


def test_an_answer_that_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipewave.web.app.LEFT_S", 0.0)

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def main() -> tuple[int, int]:
        lane = anyio.CapacityLimiter(1)
        lost = await unless_disconnected(gone, in_process(lane, time.sleep, 3600))  # type: ignore[arg-type]
        return lost.status_code, await in_process(lane, os.getpid)

    status, process = anyio.run(main)
    assert status == 503 and process != os.getpid()


def test_an_answer_is_worked_out_once() -> None:
    asked: list[str] = []

    def work(query: ModelQuery) -> dict[str, Any]:
        asked.append(str(query.model))
        return {"model": query.model}

    names = [f"model {number}" for number in range(CACHED + 1)]
    for name in ("a", "b", "a", *names, "a"):
        assert cached(work, ModelQuery(model=name)) == {"model": name}
    assert asked == ["a", "b", *names, "a"]  # the oldest makes room


def test_whose_process_died_is_told_so_and_asks_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dying(lane: anyio.CapacityLimiter, *_: object) -> Any:
        return await to_process.run_sync(os._exit, 1, limiter=lane)

    with monkeypatch.context() as patched:
        patched.setattr("pipewave.web.app.in_process", dying)
        lost = client.post("/api/traffic", TRAFFIC)
    assert (lost.status, lost.json()["error"]["code"]) == (503, "lost")
    assert client.post("/api/traffic", TRAFFIC).status == 200
