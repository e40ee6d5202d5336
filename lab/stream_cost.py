"""What a server's one Python process takes for each token it streams: `python -m lab.stream_cost --write`.

SGLang's HTTP server (0.5.3 to 0.5.9: managers/tokenizer_manager.py, entrypoints/openai/serving_chat.py) is one event
loop. It takes a batch of new texts from a socket, keeps each request's text and tokens whole, wakes the request's
generator, which makes a chat chunk of the new part, and sends it as an event. One batch is taken a turn of the loop, so
batches queue while the loop is busy, none is merged with another, and what a new request says first waits behind them
all. This program is a server of the same parts (FastAPI, uvicorn on uvloop, pydantic, ZeroMQ) with a feeder in place
of the engine: CPU time of the server's process for a token, whatever else the machine does, by how many tokens its
request had been sent. It needs `pip install fastapi uvicorn uvloop httptools pyzmq`; Python 3.12 as in SGLang's images.

Every copy of the text and tokens so far takes longer the more there are, hence two constants: µs of a token, and of
each thousand tokens before it. `software/front.json` holds them as `stream_us` and `copied_us` of SGLang.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import selectors
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "studies" / "results" / "stream_cost.json"
PORT = 8765
EVERY = 100  # tokens between two readings of the CPU's time
SETTLE_S = 3.0  # for a process to start, for requests to connect
COLUMNS = 20  # lists that a batch carries beside the ones used here


@dataclass
class Request:
    """A stream as the server keeps it."""

    event: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    tokens: list[int] = field(default_factory=list)

    def take(self, name: str, batch: dict[str, Any], place: int) -> None:
        """New text and tokens of a batch; the generator is woken."""
        self.text += batch["texts"][place]
        self.tokens.extend(batch["tokens"][place])
        about = {"id": name, "finish_reason": batch["ends"][place], "prompt_tokens": batch["prompt"][place]}
        about |= {"completion_tokens": batch["made"][place], "cached_tokens": 0}
        self.waiting.append({"text": self.text, "output_ids": self.tokens.copy(), "meta_info": about})
        self.event.set()

    async def outputs(self) -> AsyncIterator[dict[str, Any]]:
        """The newest output whenever there is one."""
        while True:
            await asyncio.wait_for(self.event.wait(), timeout=4)
            newest, self.waiting = self.waiting[-1], []
            self.event.clear()
            yield newest


def chunks() -> Callable[[str, str], str]:
    """What writes a chat chunk: models with the fields and the serialiser of OpenAI's protocol, one in another."""
    from pydantic import BaseModel, Field, model_serializer

    class Delta(BaseModel):
        role: str | None = None
        content: str | None = None
        reasoning: str | None = None
        tools: str | None = None
        hidden: str | None = None

        @model_serializer(mode="wrap")
        def serialise(self, handler: Any) -> dict[str, Any]:
            found: dict[str, Any] = handler(self)
            if self.hidden is None:
                found.pop("hidden", None)
            return found

    class Choice(BaseModel):
        index: int = 0
        delta: Delta
        logprobs: str | None = None
        finish_reason: str | None = None
        stop: str | None = None

    class Chunk(BaseModel):
        id: str
        object: str = "chat.completion.chunk"
        created: int = Field(default_factory=lambda: int(time.time()))
        model: str
        choices: list[Choice]
        usage: int | None = None

    def write(name: str, new: str) -> str:
        one = Choice(index=0, delta=Delta(content=new), finish_reason=None, stop=None, logprobs=None)
        return Chunk(id=name, created=int(time.time()), choices=[one], model="m").model_dump_json()

    return write


async def chat(name: str, request: Request, write: Callable[[str, str], str], count: list[int]) -> AsyncIterator[str]:
    """Server-sent events of a request: each new part of its text."""
    sent = ""
    async for output in request.outputs():
        delta = output["text"][len(sent) :]
        sent = sent + delta
        count[0] += 1
        yield f"data: {write(name, delta)}\n\n"


def serve(address: str, readings: Any) -> None:
    """The server: batches come in at `address`; CPU seconds, tokens taken and chunks sent go to `readings`."""
    import uvicorn
    import zmq
    import zmq.asyncio
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    requests: dict[str, Request] = {}
    write, sent, taken = chunks(), [0], [0]

    async def loop() -> None:
        inbox = zmq.asyncio.Context.instance().socket(zmq.PULL)
        inbox.set(zmq.RCVHWM, 0)
        inbox.bind(address)
        while True:
            batch = await inbox.recv_pyobj()
            for place, name in enumerate(batch["names"]):
                requests[name].take(name, batch, place)
                taken[0] += 1
            if batch["reading"]:
                await asyncio.sleep(0.2)  # for what was woken to be sent
                readings.put((time.process_time(), taken[0], sent[0]))

    async def start(_: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(loop())
        yield
        task.cancel()

    app = FastAPI(lifespan=asynccontextmanager(start))

    @app.post("/chat/{name}")
    async def answer(name: str) -> StreamingResponse:
        requests[name] = Request()
        return StreamingResponse(chat(name, requests[name], write, sent), media_type="text/event-stream")

    answer.__annotations__["return"] = None
    uvicorn.run(app, port=PORT, log_level="error", loop="uvloop")


def read(many: int) -> None:
    """A client with so many streams, which throws away what it reads."""
    chooser = selectors.DefaultSelector()
    for i in range(many):
        one = socket.create_connection(("127.0.0.1", PORT))
        one.sendall(f"POST /chat/r{i} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        one.setblocking(False)
        chooser.register(one, selectors.EVENT_READ, one)
    while True:
        for key, _ in chooser.select():
            key.data.recv(1 << 16)


def batch(many: int, token: int) -> dict[str, Any]:
    """One token of each request as a detokeniser sends it."""
    lists: dict[str, list[Any]] = {
        "texts": [f" word{token % 10}"],
        "tokens": [[token]],
        "ends": [None],
        "prompt": [1000],
        "made": [token],
    }
    wide = {f"column{i}": [0] * many for i in range(COLUMNS)}
    names = {"names": [f"r{i}" for i in range(many)], "reading": token % EVERY == 0}
    return {**wide, **names, **{name: one * many for name, one in lists.items()}}


def measure(many: int, tokens: int) -> list[tuple[float, float, float]]:
    """(tokens sent before, µs of CPU a token, chunks a token) of each stretch of `EVERY` tokens."""
    import zmq

    address = f"ipc://{tempfile.mkdtemp()}/batches"
    readings: Any = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(address, readings), daemon=True)
    client = multiprocessing.Process(target=read, args=(many,), daemon=True)
    for process in (server, client):
        process.start()
        time.sleep(SETTLE_S)
    outbox = zmq.Context.instance().socket(zmq.PUSH)
    outbox.set(zmq.SNDHWM, 0)
    outbox.connect(address)
    points: list[tuple[float, float, float]] = []
    last = None
    for token in range(1, tokens + 1):
        outbox.send_pyobj(batch(many, token))
        if token % EVERY == 0:
            now = readings.get()
            if last:
                cpu_s, taken, chunks = (a - b for a, b in zip(now, last, strict=True))
                points.append((token - EVERY / 2, 1e6 * cpu_s / taken, chunks / taken))
            last = now
    server.kill()
    client.kill()
    return points


def law(points: list[tuple[float, float, float]]) -> tuple[float, float]:
    """µs of a token, and of each thousand sent before it, by least squares."""
    sent, us, _ = np.array(points).T
    slope, base = np.polyfit(sent / 1000, us, 1)
    return float(base), float(slope)


def main() -> None:
    """Measure, print the law, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1200)
    parser.add_argument("--runs", type=int, default=2, help="the quicker of each stretch counts")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs = [measure(options.requests, options.tokens) for _ in range(options.runs)]
    points = [min(same, key=lambda point: point[1]) for same in zip(*runs, strict=True)]
    base, slope = law(points)
    for sent, us, chunks in points:
        print(f"{sent:6.0f} tokens sent: {us:5.1f} us a token, {chunks:.3f} chunks a token")
    print(f"{options.requests} streams: {base:.0f} us a token and {slope:.0f} us for each thousand before it")
    if options.write:
        rows = [[round(value, 3) for value in point] for point in points]
        found = {"requests": options.requests, "python": platform.python_version(), "columns": "sent us_a_token chunks"}
        found |= {"stream_us": round(base, 1), "copied_us": round(slope, 1), "points": rows}
        RESULTS.write_text(json.dumps(found) + "\n", "utf-8")


if __name__ == "__main__":
    main()
