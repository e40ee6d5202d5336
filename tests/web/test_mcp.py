"""Views of the page as tools: messages as the protocol has them, and its own client where that is installed."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

pytest.importorskip("pydantic")

from pipewave.web.mcp import PROTOCOLS, serve
from pipewave.web.queries import VIEWS, answer

QUESTION = {"model": "Llama-3.1-8B", "gpu": "H200", "batch": 16, "input_len": 2048, "output_len": 256}


def said(*messages: Any) -> list[dict[str, Any]]:
    out = io.StringIO()
    serve([one if isinstance(one, str) else json.dumps(one) for one in messages], out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def asked(method: str, number: int | None = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params} | ({"id": number} if number is not None else {})


def test_a_session_opens_and_lists_every_view() -> None:
    opened, ping, tools = said(
        asked("initialize", protocolVersion=PROTOCOLS[-1]),
        asked("notifications/initialized", None),
        asked("ping", 2),
        asked("tools/list", 3),
    )
    assert opened["result"]["protocolVersion"] == PROTOCOLS[-1]
    assert ping == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert {tool["name"]: tool["inputSchema"]["type"] for tool in tools["result"]["tools"]} == dict.fromkeys(
        VIEWS, "object"
    )
    assert all(tool["annotations"]["readOnlyHint"] and tool["description"] for tool in tools["result"]["tools"])


def test_a_tool_answers_as_query_does() -> None:
    (called,) = said(asked("tools/call", name="serve", arguments=QUESTION))
    result = called["result"]
    assert result["structuredContent"] == json.loads(answer("serve", json.dumps(QUESTION)))
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"] and not result["isError"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", -32700),
        ("[]", -32602),
        (asked("tools/call", name="rm"), -32602),
        (asked("tools/call", name=[]), -32602),
        ("[" * 100_000, -32700),
        (asked("resources/list"), -32601),
    ],
)
def test_what_is_no_request_is_an_error(message: Any, code: int) -> None:
    assert said(message)[0]["error"]["code"] == code


def test_a_question_that_cannot_be_is_said_to_the_asker() -> None:
    (called,) = said(asked("tools/call", name="serve", arguments=QUESTION | {"gpu": "H2000"}))
    assert called["result"]["isError"] and "H2000" in called["result"]["content"][0]["text"]


def test_its_own_client_asks() -> None:
    pytest.importorskip("mcp")
    anyio = pytest.importorskip("anyio")
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def ask() -> Any:
        program = StdioServerParameters(command=sys.executable, args=["-m", "pipewave", "mcp"])
        async with stdio_client(program) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
            await session.initialize()
            return await session.call_tool("model", {"model": "Llama-3.1-8B"})

    assert "Llama-3.1-8B" in anyio.run(ask).content[0].text
