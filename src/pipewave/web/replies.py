"""Answers and errors as JSON, whatever numbers and characters they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

LONGEST_MESSAGE = 2_000


def reply(answer: Any, status: int = 200) -> Response:
    """JSON in ASCII (a lone surrogate cannot break it); numbers that JSON lacks become null."""
    try:
        text = json.dumps(answer, allow_nan=False)
    except ValueError:
        text = json.dumps(finite(answer), allow_nan=False)
    return Response(text, status, media_type="application/json")


def finite(value: Any) -> Any:
    """The same value with null for every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def failure(status: int, code: str, message: str, field: str | None = None) -> Response:
    """The one shape of all errors."""
    shown = message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + "..."
    return reply({"error": {"code": code, "field": field, "message": shown}}, status)


CODES = {"missing": "missing_field", "extra_forbidden": "unknown_field", "json_invalid": "not_json"}


def form_failure(problems: Sequence[Any]) -> Response:
    """The first problem that the forms found, named as the library names its own."""
    first = problems[0]
    code = CODES.get(first["type"], "bad_value")
    if code == "not_json":
        return failure(400, code, "the body is not JSON")
    field = ".".join(str(part)[:80] for part in first["loc"] if part not in ("body", "query")) or None
    return failure(422, code, f"{field or 'the body'}: {first['msg']}", field)
