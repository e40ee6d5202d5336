"""The help of commands as plain text, and completion of their words in a shell."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from pipewave.errors import BadInput

WIDEST, NARROWEST = 110, 40
FIRST = 30  # columns of the names at most
# Bash asks a command for the words that fit; zsh does so in bash's manner.
COMPLETE = "complete -o default -C 'pipewave --complete' pipewave"
SHELLS = {
    "bash": (".bashrc", COMPLETE),
    "zsh": (".zshrc", f"autoload -U +X compinit bashcompinit && compinit && bashcompinit && {COMPLETE}"),
}


def page(usage: str, about: str, sections: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> str:
    """A page of help: how a command is called, what it does, and sections of names and what they mean."""
    parts = [f"Usage: {usage}", *_paragraphs(about), *(_section(name, rows) for name, rows in sections)]
    return "\n\n".join(part for part in parts if part)


def _width() -> int:
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
    except (OSError, ValueError):
        columns = 100
    return max(min(columns, WIDEST), NARROWEST)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield fill(" ".join(paragraph.split()), _width(), break_on_hyphens=False)


def _section(heading: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names to the left, what they are to the right; a long name has a line of its own."""
    listed = list(rows)
    if not listed:
        return ""
    first = min(max(len(name) for name, _ in listed) + 2, FIRST)
    lines, indent = [f"{heading}:"], " " * (first + 2)
    for name, told in listed:
        text = fill(told, _width(), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        if len(name) < first:
            lines.append(f"  {name:{first}}{text.strip()}")
        else:
            lines += [f"  {name}", text]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def completion(environment: Mapping[str, str], home: Path, words: Sequence[str]) -> str:
    """The line that teaches the user's shell; with `--install-completion` put into its start file.

    Raises BadInput for a shell other than bash and zsh.
    """
    shell = Path(environment.get("SHELL", "")).name
    if shell not in SHELLS:
        raise BadInput(f"SHELL = {shell!r}: completion is for {' and '.join(SHELLS)}", field="completion")
    start, line = SHELLS[shell]
    if "--install-completion" not in words:
        return line
    file = home / start
    if line not in (file.read_text() if file.exists() else ""):
        with file.open("a") as out:
            out.write(f"\n{line}\n")
    return f"{file}: done; it holds from the next shell on"
