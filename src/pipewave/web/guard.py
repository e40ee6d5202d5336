"""ASGI middleware that lets only this machine and this page in, bounds bodies and sets strict headers; and answers and
errors as JSON, whatever characters they hold.

A page elsewhere may make a browser send requests here, under this address or under a name that it points here (DNS
rebinding). So the Host header must be a loopback name, and a request that names an Origin must name this one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyio import CancelScope, current_time
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipewave.files import packaged
from pipewave.files.json_text import dumps
from pipewave.web.limits import JSON_BYTES, TRAFFIC_BYTES

HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9.-]{1,253}))(?::[0-9]{1,5})?", re.ASCII)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
UPLOADS = ("/api/trace",)  # bodies that their handler streams to a file, and bounds itself
LARGER = {"/api/traffic": TRAFFIC_BYTES}  # questions that hold a file
HEADERS: Mapping[str, str] = packaged.document(Path(__file__).with_name("headers.json"))  # of every answer
YEAR = "public, max-age=31536000, immutable"
LINGER_S = 10.0  # for what a refused client still sends
LONGEST_MESSAGE = 2_000  # characters of an error
CODES = {"missing": "missing_field", "extra_forbidden": "unknown_field", "json_invalid": "not_json"}


class Guard:
    """ASGI middleware; refusals never reach the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        send, headers = _with_headers(scope["path"], send), Headers(scope=scope)
        refused = _foreign(headers)
        if refused or (scope["path"] not in UPLOADS and scope["method"] not in ("GET", "HEAD")):
            most = LARGER.get(scope["path"], JSON_BYTES)
            body = await _body(headers, receive, 0 if refused else most)
            if body is None:
                refused = refused or (413, "too_large", f"the body is larger than {most:,} bytes")
            else:
                receive = _again(body, receive)
        await (failure(*refused) if refused else self.app)(scope, receive, send)


def _foreign(headers: Headers) -> tuple[int, str, str] | None:
    """Why a request is not from this machine's own page, if it is not."""
    host = headers.get("host", "")
    found = HOST.fullmatch(host)
    if not found or (found["v6"] or found["name"]).lower() not in LOOPBACK:
        return 421, "bad_host", f"host = {host[:80]!r}: must be {', '.join(LOOPBACK)}"
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        return 403, "bad_origin", f"origin = {origin[:80]!r}: must be http://{host}"
    return None


async def _body(headers: Headers, receive: Receive, most: int) -> bytes | None:
    """The whole body, or None where it is too large. What is too large is still read for LINGER_S: a server that
    answers and closes while data comes resets the connection, and the answer is lost with it.
    """
    said = headers.get("content-length", "0")
    large = not (said.isascii() and said.isdigit() and len(said) <= 12 and int(said) <= most)
    parts, size, more = list[bytes](), 0, True
    with CancelScope(deadline=current_time() + LINGER_S if large else math.inf) as reading:
        while more:
            message = await receive()
            more = message["type"] == "http.request" and message.get("more_body", False)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most and not large:
                large, reading.deadline = True, current_time() + LINGER_S
            if large:
                parts.clear()
    return None if large else b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """A channel that gives a body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def _with_headers(path: str, send: Send) -> Send:
    cache = YEAR if path.startswith("/assets/") else "no-cache"

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = "no-store" if message["status"] >= 400 else cache
            MutableHeaders(scope=message).update({**HEADERS, "cache-control": kept})
        await send(message)

    return send_with_headers


def reply(answer: Any, status: int = 200) -> Response:
    """JSON in ASCII (a lone surrogate cannot break it). Raises NotFinite."""
    return Response(dumps(answer), status, media_type="application/json")


def failure(status: int, code: str, message: str, field: str | None = None) -> Response:
    """The one shape of all errors."""
    shown = message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + "..."
    return reply({"error": {"code": code, "field": field, "message": shown}}, status)


def form_failure(problems: Sequence[Any]) -> Response:
    """The first problem that the forms found, named as the library names its own."""
    first = problems[0]
    code = CODES.get(first["type"], "bad_value")
    if code == "not_json":
        return failure(400, code, "the body is not JSON")
    field = ".".join(str(part)[:80] for part in first["loc"] if part not in ("body", "query")) or None
    return failure(422, code, f"{field or 'the body'}: {first['msg']}", field)
