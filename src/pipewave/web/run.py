"""Serve the application on a loopback address of this machine, and on nothing else."""

from __future__ import annotations

import ipaddress
import socket
import sys
import webbrowser
from contextlib import suppress

import uvicorn

from pipewave.errors import BadInput
from pipewave.web.app import create_app


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


def url_of(sock: socket.socket) -> str:
    """The address of the page."""
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class Server(uvicorn.Server):
    """Says where it is once it answers, and opens a browser there if asked."""

    url, opens = "", False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where the page is."""
        await super().startup(sockets)
        sys.stderr.write(f"pipewave at {self.url} (Ctrl-C ends it)\n")
        if self.opens:
            webbrowser.open(self.url)


def serve(host: str, port: int, *, opens: bool) -> None:
    """Serve until interrupted."""
    sock = listen(host, port)
    config = uvicorn.Config(create_app(), log_level="warning", server_header=False, proxy_headers=False, ws="none")
    server = Server(config)
    server.url, server.opens = url_of(sock), opens
    with sock, suppress(KeyboardInterrupt):
        server.run(sockets=[sock])
