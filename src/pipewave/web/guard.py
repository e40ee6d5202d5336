"""What stands before every handler: only this machine, only this page, only bodies of a sensible size, strict headers.

A page elsewhere may make a browser send requests here, under this address or under a name that it points here (DNS
rebinding). So the Host header must be a loopback name, and a request that names an Origin must name this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipewave.web.limits import JSON_BYTES
from pipewave.web.replies import failure

LOOPBACK = ("localhost", "127.0.0.1", "::1")
UPLOADS = ("/api/trace",)  # bodies that their handler streams to a file, and bounds itself
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


class Guard:
    """ASGI middleware; refusals never reach the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _with_headers(scope["path"], send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _foreign(Headers(scope=scope))
        if refused is None and scope["path"] not in UPLOADS and scope["method"] not in ("GET", "HEAD"):
            body = await _body(Headers(scope=scope), receive)
            if body is None:
                refused = 413, "too_large", f"the body is larger than {JSON_BYTES:,} bytes"
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
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


async def _body(headers: Headers, receive: Receive) -> bytes | None:
    """The whole body, or None as soon as it is known to be too large."""
    said = headers.get("content-length", "0")
    if not said.isascii() or not said.isdigit() or len(said) > 12 or int(said) > JSON_BYTES:
        return None
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > JSON_BYTES:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return b"".join(parts)


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
