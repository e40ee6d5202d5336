"""The help of commands as plain text, and completion of their words in a shell."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from pipewave.cli.command import Command, Group, Parameter
from pipewave.errors import BadInput

WIDEST, NARROWEST = 110, 40
FIRST = 30  # columns of the names at most
# Bash asks a command for the words that fit; zsh does so in bash's manner.
COMPLETE = "complete -o default -C 'pipewave --complete' pipewave"
SHELLS = {
    "bash": (".bashrc", COMPLETE),
    "zsh": (".zshrc", f"autoload -U +X compinit bashcompinit && compinit && bashcompinit && {COMPLETE}"),
}


def of_command(command: Command, path: str) -> str:
    """How a command is called, what it does and what it takes."""
    arguments = [one for one in command.params if not one.is_option]
    usage = " ".join([path, "[OPTIONS]", *(one.shown if one.required else f"[{one.shown}]" for one in arguments)])
    headings = dict.fromkeys(one.heading for one in command.params if one.is_option and not one.hidden)
    parts = [f"Usage: {usage}", *_paragraphs(command.help)]
    if any(one.help for one in arguments):
        parts.append(_section("Arguments", ((one.shown, _told(one)) for one in arguments)))
    for heading in headings:
        shown = [one for one in command.params if one.is_option and not one.hidden and one.heading == heading]
        parts.append(_section(heading or "Options", ((_spelled(one), _told(one)) for one in shown)))
    return "\n\n".join(parts)


def of_group(group: Group, path: str) -> str:
    """What commands there are."""
    parts = [f"Usage: {path} COMMAND ...", *_paragraphs(group.help), _section("Commands", group.lines().items())]
    if group.alone:
        shown = [one for one in group.alone.params if one.is_option]
        parts.append(_section("Options without a command", ((_spelled(one), _told(one)) for one in shown)))
    return "\n\n".join(parts)


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
    first = min(max(len(name) for name, _ in listed) + 2, FIRST)
    lines, indent = [f"{heading}:"], " " * (first + 2)
    for name, told in listed:
        text = fill(told, _width(), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        if len(name) < first:
            lines.append(f"  {name:{first}}{text.strip()}")
        else:
            lines += [f"  {name}", text]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _spelled(one: Parameter) -> str:
    value = "" if one.is_flag else f" <{one.kind.__name__.lower()}>"
    return ", ".join([*one.opts, *one.off]) + value


def _told(one: Parameter) -> str:
    """The help of a parameter, with its default where that says something."""
    if one.required:
        return f"{one.help} [required]".strip() if one.is_option else one.help
    silent = one.default in (None, "", [], False) or (one.is_flag and not one.off)
    shown = one.opts[0] if one.default is True and one.is_option else one.default
    return one.help if silent else f"{one.help} [default: {shown}]".strip()


def completions(group: Group, line: str) -> list[str]:
    """Words that may stand at the end of a line that begins with the program's name."""
    *before, begun = (line + "\0").split()[1:] or [""]
    command: Command | Group = group
    for word in before:
        if not isinstance(command, Command) and word in command.lines():
            command = command.command(word)
    names = [] if isinstance(command, Command) else list(command.lines())
    names += [name for one in command.params for name in one.opts if not one.hidden]
    return [name for name in names if name.startswith(begun.rstrip("\0"))]


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
