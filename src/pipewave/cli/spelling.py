"""One spelling of output options: `--json` and `--format json` mean the same wherever a command knows either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

JSON, FORMAT = "--json", "--format"


def spelled(app: typer.Typer, words: Sequence[str]) -> list[str]:
    """The words of a command line with the output option as that command calls it."""
    words = list(words)
    if JSON not in words and FORMAT not in words and f"{FORMAT}=json" not in words:
        return words
    known = options(command_of(typer.main.get_command(app), words))
    if JSON in words and JSON not in known and FORMAT in known:
        at = words.index(JSON)
        return [*words[:at], FORMAT, "json", *words[at + 1 :]]
    if FORMAT not in known and JSON in known:
        text = "\0".join(words).replace(f"{FORMAT}\0json", JSON).replace(f"{FORMAT}=json", JSON)
        return text.split("\0")
    return words


def command_of(command: Any, words: Sequence[str]) -> Any:
    """The innermost command that these words name."""
    for word in words:
        inner = command.get_command(None, word) if hasattr(command, "get_command") else None
        if inner is None and word[:1] != "-":
            return command
        command = inner or command
    return command


def options(command: Any) -> set[str]:
    """Every option a command takes, as it is written."""
    return {name for parameter in command.params for name in parameter.opts}
