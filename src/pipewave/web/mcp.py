"""The views of the page as tools of the Model Context Protocol over standard input and output: `pipewave mcp`.

One JSON-RPC message a line. Tools only read; a question that is none is answered as an error of its tool, with what is
wrong, so that the asker can mend it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from pipewave.errors import PipewaveError
from pipewave.version import VERSION
from pipewave.web.forms import WORDS
from pipewave.web.queries import VIEWS, answer

PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # newest first; they differ in nothing used here
ABOUT = {"serverInfo": {"name": "pipewave", "version": VERSION}, "capabilities": {"tools": {}}}
INVALID, NO_METHOD, NO_JSON = -32602, -32601, -32700


def serve(lines: Iterable[str], out: TextIO) -> None:
    """Answer messages until there are no more."""
    for line in lines:
        if line.strip() and (reply := replied(line)) is not None:
            out.write(json.dumps(reply, separators=(",", ":")) + "\n")
            out.flush()


def replied(line: str) -> dict[str, Any] | None:
    """The reply to a message, None to a notification."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as problem:
        return _failed(None, NO_JSON, f"not JSON: {problem}")
    if not isinstance(message, dict) or "method" not in message:
        return _failed(None, INVALID, "a message is an object with a method")
    if "id" not in message:
        return None
    params, number = message.get("params"), message["id"]
    given = params if isinstance(params, dict) else {}
    match message["method"]:
        case "initialize":
            asked = given.get("protocolVersion")
            result: dict[str, Any] = {"protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[0], **ABOUT}
        case "ping":
            result = {}
        case "tools/list":
            result = {"tools": [_tool(name) for name in VIEWS]}
        case "tools/call" if given.get("name") in [*VIEWS]:
            result = _called(given)
        case "tools/call":
            return _failed(number, INVALID, f"name = {given.get('name')!r}: must be {', '.join(VIEWS)}")
        case method:
            return _failed(number, NO_METHOD, f"method = {method!r}: not known here")
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": WORDS["views"][name], "inputSchema": VIEWS[name].form.model_json_schema(),
            "annotations": {"readOnlyHint": True}}  # fmt: skip


def _failed(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _called(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = answer(given["name"], json.dumps(given.get("arguments") or {}))
    except PipewaveError as problem:
        return {"content": [{"type": "text", "text": f"{problem.code}: {problem.message}"}], "isError": True}
    return {"content": [{"type": "text", "text": text}], "structuredContent": json.loads(text), "isError": False}
