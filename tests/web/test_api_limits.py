"""What the server refuses, and how: typed 4xx errors, sizes, foreign hosts and origins, headers, many clients."""

from __future__ import annotations

import gzip
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pipewave.errors import BadInput
from pipewave.web import limits

SERVE = {"model": "Llama-3.1-8B", "gpu": "H200", "batch": 4, "input_len": 128, "output_len": 16}
SWEEP = {"field": "m", "from": 1, "to": 64}
GEMM = {"kernel": "gemm", "case": {"n": 512, "k": 512}, "sweep": SWEEP, "gpus": ["H200"]}
PLAN = {"model": "Llama-3.1-8B", "gpus": ["H100"], "input_len": 128, "output_len": 16}

WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("serve", SERVE | {"gpu": "H2000"}, "unknown_gpu", "did you mean"),
    ("serve", SERVE | {"gpu": "my-gpu.yaml"}, "unknown_gpu", "no paths"),
    ("serve", SERVE | {"gpu": "../x.json/"}, "unknown_gpu", "no paths"),
    ("serve", SERVE | {"model": "Lama-3.1-8B"}, "unknown_model", "did you mean Llama-3.1-8B"),
    ("serve", SERVE | {"model": "/etc/config.json"}, "unknown_model", "config.json"),
    ("serve", SERVE | {"model": {"model_type": "llama"}}, "missing_field", "num_hidden_layers"),
    ("serve", SERVE | {"bacth": 4}, "unknown_field", "did you mean batch"),
    ("serve", {k: v for k, v in SERVE.items() if k != "batch"}, "missing_field", "batch"),
    ("serve", SERVE | {"batch": "4"}, "bad_value", "batch"),
    ("serve", SERVE | {"batch": True}, "bad_value", "batch"),
    ("serve", SERVE | {"batch": 100_000}, "bad_value", "4096"),
    ("serve", SERVE | {"engine": "tgi"}, "bad_value", "vllm, sglang, trtllm"),
    ("serve", SERVE | {"tp": 3}, "cannot_shard", "num_attention_heads"),
    ("serve", SERVE | {"gpu": "L4", "model": "Llama-3.1-70B"}, "does_not_fit", "use more GPUs"),
    ("serve", SERVE | {"what_if": {"sm": 4}}, "unknown_field", "sms"),
    ("serve", SERVE | {"what_if": {"sms": -4}}, "bad_value", "from 1 to 4096"),
    ("serve", SERVE | {"what_if": {"name": 1}}, "unknown_field", "name"),
    ("serve", SERVE | {"kv_cache_dtype": "int3"}, "bad_value", "fp8"),
    ("serve", SERVE | {"batch": 4096, "input_len": 100_000, "max_num_batched_tokens": 1}, "bad_value", "prompt steps"),
    ("kernel", GEMM | {"kernel": "gem"}, "unknown_kernel", "did you mean gemm"),
    ("kernel", GEMM | {"case": {"n": 512}}, "missing_field", "k"),
    ("kernel", GEMM | {"case": {"n": 512, "kk": 4, "k": 4}}, "unknown_field", "kk"),
    ("kernel", GEMM | {"sweep": SWEEP | {"field": "dtype"}}, "bad_value", "integer field"),
    ("kernel", GEMM | {"sweep": SWEEP | {"from": 0}}, "bad_value", "m = 0"),
    ("kernel", GEMM | {"sweep": SWEEP | {"to": 0, "from": 2}}, "bad_value", "at least"),
    ("kernel", GEMM | {"sweep": SWEEP | {"points": 2001}}, "bad_value", "2000"),
    ("kernel", GEMM | {"sweep": SWEEP | {"step": 2}}, "unknown_field", "step"),
    ("kernel", GEMM | {"gpus": ["H200"] * 9}, "bad_value", "8"),
    ("kernel", GEMM | {"gpus": []}, "bad_value", "1"),
    ("kernel", GEMM | {"protocol": "warm"}, "bad_value", "cold"),
    (
        "kernel",
        {
            "kernel": "attention",
            "case": {"heads": 8, "kv_heads": 8, "head_dim": 128},
            "sweep": {"field": "batch", "from": 1, "to": 4096, "points": 2000},
            "gpus": ["H200"],
        },
        "bad_value",
        "entries",
    ),
    ("plan", PLAN | {"gpus": ["H100"] * 64, "tp": [1, 2, 4, 8]}, "bad_value", "splits"),
    ("plan", PLAN | {"gpus": "H100"}, "bad_value", "gpus"),
    ("plan", PLAN | {"engines": ["tgi"]}, "bad_value", "sglang"),
    ("plan", PLAN | {"ttft_ms": -1}, "bad_value", "ttft_ms"),
    ("plan", PLAN | {"prices": {"H10000": 1.0}}, "unknown_gpu", "H10000"),
    ("plan", PLAN | {"input_len": 0}, "bad_value", "input_len"),
]


@pytest.mark.parametrize(("view", "question", "code", "says"), WRONG)
def test_errors_are_typed_and_name_what_is_wrong(
    client: Any, view: str, question: dict[str, Any], code: str, says: str
) -> None:
    reply = client.post(f"/api/{view}", question)
    error = reply.json()["error"]
    assert reply.status == 422
    assert error["code"] == code and says in error["message"], error


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"", 422), (b"[]", 422), (b"null", 422), (b'"x"', 422), (b"[" * 100_000, 400), (b"\xff\xfe{", 400),
     (b'{"model": "\\ud800", "gpu": "H200", "batch": 1, "input_len": 1, "output_len": 1}', 422),
     (b'{"batch": ' + b"9" * 5000 + b"}", 400), (b'{"batch": NaN}', 422), (b'{"batch": 1e999}', 422)],
)  # fmt: skip
def test_bodies_that_are_no_question(client: Any, body: bytes, status: int) -> None:
    reply = client.send("POST", "/api/serve", body, {"Content-Type": "application/json"})
    assert reply.status == status
    assert set(reply.json()["error"]) == {"code", "field", "message"}


def test_large_bodies_are_refused(client: Any) -> None:
    for size in (1, 16):
        padding = SERVE | {"model": {"x": "y" * limits.JSON_BYTES * size}}
        reply = client.post("/api/serve", padding)
        assert (reply.status, reply.json()["error"]["code"]) == (413, "too_large")


def test_a_length_that_is_no_number_is_refused(client: Any) -> None:
    """Without a body: the HTTP parser answers and closes at once, and what came later would reset the connection."""
    lying = client.send("POST", "/api/serve", None, {"Content-Type": "application/json", "Content-Length": "junk"})
    assert 400 <= lying.status < 500


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/api/serve", {"Host": "evil.example"}, 421), ("/api/nothing", {}, 413), ("/api/trace?gqu=1", {}, 422)],
)
def test_whoever_is_refused_can_read_why_after_sending_all(
    client: Any, path: str, headers: dict[str, str], status: int
) -> None:
    assert client.send("POST", path, b"x" * (8 << 20), headers).status == status


def test_a_large_body_without_a_length_is_refused_as_it_comes(client: Any) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as wire:
        wire.sendall(b"POST /api/serve HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16))
        for _ in range(limits.JSON_BYTES // (1 << 16) + 1):
            wire.sendall(chunk)
        assert wire.recv(64).startswith(b"HTTP/1.1 413")


def test_trace_limits(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipewave.web.app.TRACE_BYTES", 10_000)
    reply = client.send("POST", "/api/trace", b"x" * 20_000)
    assert (reply.status, reply.json()["error"]["code"]) == (413, "too_large")


def test_a_trace_that_unpacks_to_too_much_is_refused(client: Any) -> None:
    part = b"[" + b" " * (8 << 20) + b'"' + random.Random(1).randbytes(32_000).hex().encode() + b'"],'
    many = gzip.compress(b'{"traceEvents": [') + gzip.compress(part) * (limits.UNPACKED_BYTES // len(part) + 1)
    bomb = client.send("POST", "/api/trace?gpu=H200", many)
    assert bomb.status == 422 and "unpacks to more than" in bomb.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "body", "code"),
    [
        ("?gpu=H200", b"", "bad_file"),
        ("?gpu=H200", b"\x1f\x8bbroken", "bad_file"),
        ("?gpu=H200", gzip.compress(b"{", mtime=0)[:-9], "bad_file"),
        ("?gpu=H200", b'{"traceEvents": [', "bad_file"),
        ("", b'{"traceEvents": []}', ""),
        ("?gpu=H2000", b"{}", "unknown_gpu"),
        ("?gpu=H200&q_lens=1*9999999999", b"{}", "bad_value"),
        ("?gpu=H200&q_lens=x", b"{}", "bad_value"),
        ("?gpu=H200&tp=0", b"{}", "bad_value"),
        ("?gpu=H200&gqu=1", b"{}", "unknown_field"),
        ("?gpu=H200&protocol=lukewarm", b"{}", "bad_value"),
    ],
)
def test_trace_errors(client: Any, query: str, body: bytes, code: str) -> None:
    reply = client.send("POST", f"/api/trace{query}", body)
    assert reply.status == 422
    assert code in reply.json()["error"]["code"]


def test_a_trace_cannot_name_a_file_as_its_gpu(client: Any) -> None:
    body = b'{"deviceProperties": [{"id": 0, "name": "/etc/card.yaml"}], "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"device": 0, "stream": 7}}]}'
    reply = client.send("POST", "/api/trace", body)
    assert reply.status == 422
    assert "no such file" not in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/api/health", "/api/nothing", "/", "/assets/none.js"])
def test_strict_headers_on_every_answer(client: Any, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers and "access-control-allow-origin" not in headers


def test_refusals_carry_the_headers_too(client: Any) -> None:
    reply = client.get("/api/health", Host="evil.example")
    assert "content-security-policy" in reply.headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.com@localhost",
        "localhost.evil",
        "192.168.0.4",
        "",
        "[",
        "0",
        "localhost/evil",
        "[::1]evil",
        "localhost:80evil",
        "localhost:",
        "localhost#x",
        "localhost?x",
        "[localhost]",
    ],
)
def test_only_loopback_names_are_served(client: Any, host: str) -> None:
    reply = client.get("/api/health", Host=host)
    assert (reply.status, reply.json()["error"]["code"]) == (421, "bad_host")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:8787", "LOCALHOST:80"])
def test_loopback_names_are_served(client: Any, host: str) -> None:
    assert client.get("/api/health", Host=host).status == 200


def test_other_origins_are_refused(client: Any) -> None:
    for origin in ("http://evil.example", "null", "https://localhost"):
        assert client.post("/api/serve", SERVE, Origin=origin, Host="localhost").status == 403
    own = client.post("/api/serve", SERVE, Origin=client.url)
    assert own.status == 200


def test_a_body_that_does_not_say_json_is_not_read_as_json(client: Any) -> None:
    """Other pages can send text/plain without asking; JSON makes browsers ask first, and nobody answers."""
    reply = client.send("POST", "/api/serve", b"{}", {"Content-Type": "text/plain"})
    assert reply.status == 422
    assert client.send("OPTIONS", "/api/serve").status == 405


def test_wrong_methods_and_paths_are_typed(client: Any) -> None:
    assert client.get("/api/serve").json()["error"]["code"] == "method_not_allowed"
    assert client.get("/api/nothing").json()["error"]["code"] == "not_found"
    assert client.get("/../../etc/passwd").status == 404
    assert client.get("/%2e%2e/%2e%2e/app.py").status == 404


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "example.com", "::", "8.8.8.8", ""])
def test_nothing_but_loopback_is_bound(host: str) -> None:
    pytest.importorskip("uvicorn")
    from pipewave.web.app import loopback

    with pytest.raises(BadInput, match="loopback"):
        loopback(host)


def test_a_taken_port_is_a_typed_error() -> None:
    pytest.importorskip("uvicorn")
    from pipewave.web.app import listen

    with listen("127.0.0.1", 0) as sock:  # noqa: SIM117
        with pytest.raises(BadInput, match="--port"):
            listen("localhost", sock.getsockname()[1])


def test_answers_are_not_held_back_for_more_to_send() -> None:
    """asyncio sets TCP_NODELAY on what a socket accepts only if the socket names its protocol."""
    pytest.importorskip("uvicorn")
    from pipewave.web.app import listen

    with listen("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP


def test_fifty_clients_at_once(client: Any) -> None:
    def one(number: int) -> tuple[int, Any]:
        kind = number % 3
        if kind == 0:
            reply = client.post("/api/serve", SERVE | {"batch": 1 + number})
            return reply.status, reply.json()["tpot_ms"] > 0
        if kind == 1:
            reply = client.post("/api/kernel", GEMM | {"sweep": SWEEP | {"to": 64 + number}})
            return reply.status, reply.json()["x"][-1] == 64 + number
        return client.get("/api/gpus").status, True

    with ThreadPoolExecutor(50) as pool:
        assert set(pool.map(one, range(100))) == {(200, True)}


def test_the_page_is_served_under_each_view(built: Any) -> None:
    paths = {"/": "no-cache", "/plan": "no-cache", "/trace": "no-cache", "/assets/a.js": "immutable"}
    for path, cache in paths.items():
        reply = built.get(path)
        assert reply.status == 200 and cache in reply.headers["cache-control"]
    assert built.get("/plan").body == built.get("/").body
    assert built.get("/icon.svg").headers["content-type"] == "image/svg+xml"
    assert built.get("/nothing").status == 404
    assert built.get("/api/serve").status == 405
