"""The application: one route a view, errors in one shape, and where answers are worked out.

What takes milliseconds runs in threads of this process. Threads of Python share one core, however: a plan, a run of
traffic or a large trace would slow every slider down. They run in processes of their own, one of each kind, which
start at the first such question and hold what they read for the next one. One that dies, for want of memory say,
takes its own question with it and nothing else.

The page is served on a loopback address of this machine, and on nothing else.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import webbrowser
from asyncio import create_task
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, TypeVar

import uvicorn
from anyio import BrokenWorkerProcess, CancelScope, CapacityLimiter, move_on_after, sleep, to_process, to_thread
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive

from pipewave.errors import BadInput, PipewaveError
from pipewave.files import packaged
from pipewave.version import VERSION
from pipewave.view import report as write_report
from pipewave.web import catalogue
from pipewave.web.forms import page_words, worded
from pipewave.web.guard import LINGER_S, UPLOADS, Guard, failure, form_failure, reply
from pipewave.web.limits import TRACE_BYTES
from pipewave.web.queries import VIEWS, View, cached
from pipewave.web.traces import TraceQuery, trace_answer

STATIC = Path(__file__).with_name("static")
ADDRESSES = ("", "plan", "serve", "compare", "kernel", "trace", "model")
LANES = ("quick", "kernel", "plan", "traffic", "trace")  # answers of a kind wait for one another
CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
LEFT_S = 3.0  # a process that starts anew reads its tables for about as long
FILE_BODY = packaged.document(Path(__file__).with_name("file_body.json"))  # of a trace, as OpenAPI says it
Form = Literal["html", "md"] | None
T = TypeVar("T")


def create_app(static: Path = STATIC) -> FastAPI:
    """The API and, where it is built, the page."""
    app = FastAPI(title="pipewave", version=VERSION, docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")
    app.add_middleware(Guard)
    for kind in (PipewaveError, RequestValidationError, HTTPException, BrokenWorkerProcess):
        app.add_exception_handler(kind, _on_error)
    lanes = {name: CapacityLimiter(2 if name == "quick" else 1) for name in LANES}
    _lists(app, lanes["quick"])
    for name, view in VIEWS.items():
        _view(app, name, view, lanes[view.lane])
    _trace(app, lanes["trace"])
    _page(app, static)
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    """Every error in one shape."""
    if isinstance(error, PipewaveError):
        return failure(422, error.code, page_words(error.message), error.field)
    if isinstance(error, HTTPException):
        return failure(error.status_code, CODES.get(error.status_code, "bad_request"), str(error.detail))
    if not isinstance(error, RequestValidationError):
        return failure(503, "lost", "the process that worked on this answer ended before it; ask again, or for less")
    if request.url.path in UPLOADS:
        await _drain(request.stream())
    return form_failure(error.errors())


def _lists(app: FastAPI, lane: CapacityLimiter) -> None:
    """What can be asked."""

    @app.get("/api/health")
    async def health() -> Response:
        return reply({"status": "ok", "version": VERSION})

    for work in (catalogue.gpus, catalogue.models, catalogue.kernels):
        app.get(f"/api/{work.__name__}", name=work.__name__)(partial(_listed, lane, work))


async def _listed(lane: CapacityLimiter, work: Callable[[], Any]) -> Response:
    return reply(await in_thread(lane, work))


def _view(app: FastAPI, name: str, view: View, lane: CapacityLimiter) -> None:
    """One kind of question. JSON is written where it is answered, too."""

    async def endpoint(query: Any, request: Request, report: Form = None) -> Response:
        if view.own_process:
            return await unless_disconnected(
                request.receive, in_process(lane, answered, partial(cached, view.answer), report, query)
            )
        return await in_thread(lane, answered, view.answer, report, query)

    endpoint.__annotations__["query"] = view.form
    app.post(f"/api/{name}", name=name)(endpoint)


def _trace(app: FastAPI, lane: CapacityLimiter) -> None:
    """The one question that comes with a file."""

    @app.post("/api/trace", openapi_extra=FILE_BODY)
    async def trace(query: Annotated[TraceQuery, Query()], request: Request) -> Response:
        async with _stored(request) as file:
            return await in_process(lane, answered, trace_answer, query.report, query, file)


def answered(work: Callable[..., dict[str, Any]], form: str | None, *args: Any) -> Response:
    """What `work` answers as JSON, or as a report to save; its notes in the page's words."""
    answer = worded(work(*args))
    if form is None:
        return reply(answer)
    text = write_report(answer, form).encode("utf-8", "replace")
    disposition = {"content-disposition": f'attachment; filename="pipewave-report.{form}"'}
    return Response(text, headers=disposition, media_type={"html": "text/html", "md": "text/markdown"}[form])


@asynccontextmanager
async def _stored(request: Request) -> AsyncIterator[Path]:
    """The body as a file that is gone afterwards, refused as soon as it is too large."""
    with TemporaryDirectory(prefix="pipewave-") as folder:
        path, size = Path(folder) / "trace", 0
        with path.open("wb") as file:
            chunks = request.stream()
            async for chunk in chunks:
                size += len(chunk)
                if size > TRACE_BYTES:
                    await _drain(chunks)
                    raise HTTPException(413, f"the trace is larger than {TRACE_BYTES:,} bytes")
                file.write(chunk)
        yield path


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read what a refused client still sends, for a while (`guard` says why)."""
    with move_on_after(LINGER_S):
        async for _ in chunks:
            pass


async def _file(path: Path) -> Response:
    return FileResponse(path)


def _page(app: FastAPI, static: Path) -> None:
    """The built page; its views share one document."""
    index = static / "index.html"
    for file in static.rglob("*"):
        packaged.check(file)

    async def document() -> Response:
        if index.is_file():
            return FileResponse(index)
        return failure(404, "not_found", "the page is not built; the API is under /api")

    for address in ADDRESSES:
        app.get(f"/{address}", include_in_schema=False)(document)
    # Not mounted at the root, which would answer 404 where an endpoint answers 405.
    for file in (path for path in static.glob("*") if path.is_file() and path != index):
        app.get(f"/{file.name}", include_in_schema=False)(partial(_file, file))
    if (static / "assets").is_dir():
        app.mount("/assets", StaticFiles(directory=static / "assets"), name="assets")


async def in_thread(lane: CapacityLimiter, work: Callable[..., T], *args: object) -> T:
    """Work in a thread of a lane."""
    return await to_thread.run_sync(work, *args, limiter=lane)


async def in_process(lane: CapacityLimiter, work: Callable[..., T], *args: object) -> T:
    """Work in another process of a lane: a function of a module, its arguments and its result are sent as pickles.

    Raises what the work raises, and anyio.BrokenWorkerProcess where the process dies. Cancelled, the process is ended.
    """
    return await to_process.run_sync(work, *args, limiter=lane, cancellable=True)


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer that is worked out; given up LEFT_S after its client has gone, so that its next question need not
    wait for it.
    """
    scope = CancelScope()

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await sleep(LEFT_S)
        scope.cancel()

    listener = create_task(listen())
    try:
        with scope:
            return await work
    finally:
        listener.cancel()
    return failure(503, "lost", "nobody waits for this answer any more")


def loopback(host: str) -> str:
    """A loopback address as given or as `localhost` stands for; BadInput for any other."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        fine = ipaddress.ip_address(address).is_loopback
    except ValueError:
        fine = False
    if not fine:
        raise BadInput(f"host = {host!r}: must be a loopback address such as 127.0.0.1; the page is for this machine "
                       "only (reach it from elsewhere through `ssh -L`)", field="host")  # fmt: skip
    return address


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. BadInput when the port cannot be had."""
    address = loopback(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Only where the protocol is named does asyncio switch off Nagle's algorithm, which costs an answer 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address, port))
        sock.listen(256)  # from here on clients queue, and the port is taken
    except OSError as problem:
        sock.close()
        raise BadInput(f"port = {port}: {problem.strerror}; give another with --port", field="port") from problem
    return sock


def serve(host: str, port: int, *, opens: bool) -> None:
    """Serve until interrupted."""
    sock = listen(host, port)
    config = uvicorn.Config(create_app(), log_level="warning", server_header=False, proxy_headers=False, ws="none")
    address, taken = sock.getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{taken}/"
    sys.stderr.write(f"pipewave at {url} (Ctrl-C ends it)\n")
    sys.stderr.flush()
    if opens:
        webbrowser.open(url)
    with sock, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[sock])
