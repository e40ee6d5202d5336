"""A real server on a free loopback port for all tests of the page, and a client that hides nothing of the protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Reply:
    """Status, headers (lower case) and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Requests to the server, one connection each."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, question: Any, **headers: str) -> Reply:
        return self.send("POST", path, json.dumps(question).encode(), {"Content-Type": "application/json"} | headers)


@contextmanager
def started(app: Any) -> Iterator[Client]:
    """An application behind uvicorn, as `pipewave web` runs it."""
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    from pipewave.web.app import listen

    with listen("127.0.0.1", 0) as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", server_header=False, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        yield Client(sock.getsockname()[1])
        server.should_exit = True
        thread.join(timeout=10)


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """The page's own application, served for the whole session."""
    pytest.importorskip("fastapi")
    from pipewave.web.app import create_app

    with started(create_app()) as one:
        yield one


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Client]:
    """The application over a page of two files."""
    pytest.importorskip("fastapi")
    from pipewave.web.app import create_app

    (tmp_path / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "icon.svg").write_text("<svg/>")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "a.js").write_text("1")
    with started(create_app(tmp_path)) as one:
        yield one
