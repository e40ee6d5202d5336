"""What stands before every handler: only this machine, only this page, only bodies of a sensible size, strict headers.

A page elsewhere may make a browser send requests here, under this address or under a name that it points here (DNS
rebinding). So the Host header must be a loopback name, and a request that names an Origin must name this one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from anyio import move_on_after
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipewave.web.limits import JSON_BYTES, TRAFFIC_BYTES
from pipewave.web.replies import failure

HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9.-]{1,253}))(?::[0-9]{1,5})?", re.ASCII)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
UPLOADS = ("/api/trace",)  # bodies that their handler streams to a file, and bounds itself
LARGER = {"/api/traffic": TRAFFIC_BYTES}  # questions that hold a file
POLICY = (
    "default-src 'self'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "x-frame-options": "DENY",
}
YEAR = "public, max-age=31536000, immutable"
LINGER_S = 10.0


class Guard:
    """ASGI middleware; refusals never reach the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            body = _Body(receive)
            await self._http(scope, body.receive, _lingering(body, _with_headers(scope["path"], send)))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _foreign(Headers(scope=scope))
        if refused is None and scope["path"] not in UPLOADS and scope["method"] not in ("GET", "HEAD"):
            most = LARGER.get(scope["path"], JSON_BYTES)
            body = await _body(Headers(scope=scope), receive, most)
            if body is None:
                refused = 413, "too_large", f"the body is larger than {most:,} bytes"
            else:
                receive = _again(body, receive)
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await failure(*refused)(scope, receive, send)


def _foreign(headers: Headers) -> tuple[int, str, str] | None:
    """Why a request is not from this machine's own page, if it is not."""
    host = headers.get("host", "")
    if _hostname(host) not in LOOPBACK:
        return 421, "bad_host", f"host = {host[:80]!r}: must be {', '.join(LOOPBACK)}"
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        return 403, "bad_origin", f"origin = {origin[:80]!r}: must be http://{host}"
    return None


def _hostname(host: str) -> str | None:
    """The name in a Host header; None where it holds anything but a name and a port."""
    found = HOST.fullmatch(host)
    return found and (found["v6"] or found["name"]).lower()


async def _body(headers: Headers, receive: Receive, most: int) -> bytes | None:
    """The whole body, or None as soon as it is known to be too large."""
    said = headers.get("content-length", "0")
    if not said.isascii() or not said.isdigit() or len(said) > 12 or int(said) > most:
        return None
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return b"".join(parts)


class _Body:
    """A request's body on its way in, and whether all of it has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self.complete = receive, False

    async def receive(self) -> Message:
        message = await self._receive()
        self.complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


def _lingering(body: _Body, send: Send) -> Send:
    """Answers that end only when their client has sent what it had to send, or LINGER_S later.

    A server that answers 413 and closes while data still comes resets the connection, and the answer is lost with it.
    """
    failed = False

    async def send_and_wait(message: Message) -> None:
        nonlocal failed
        if message["type"] == "http.response.start":
            failed = message["status"] >= 400
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not (failed and last) or body.complete:
            await send(message)
            return
        await send({**message, "more_body": True})
        with move_on_after(LINGER_S):
            while not body.complete:
                await body.receive()
        await send({"type": "http.response.body", "body": b""})

    return send_and_wait


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
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers["cache-control"] = cache if message["status"] < 400 else "no-store"
        await send(message)

    return send_with_headers
