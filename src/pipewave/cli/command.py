"""Commands of typed functions: a parameter is declared once, as `Annotated[int, Option("--tp", help="...")]`.

A parameter whose type is a dataclass stands for its fields, which are options under one heading of the help: the first
line of the dataclass's docstring. Plain Python, since a command's start counts in tenths of a second: argparse alone
would cost a seventh of `pipewave --help`, and has no fewer words for errors that name what is near.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from inspect import Parameter as Declared
from inspect import getdoc, signature
from textwrap import fill
from typing import Any, get_args, get_origin, get_type_hints

from pipewave.errors import BadInput, MissingField, UnknownField, did_you_mean, meant_or_known

JSON, FORMAT = "--json", "--format"
HELP = ("--help", "-h")
WIDEST, NARROWEST = 110, 40  # columns of the help
FIRST = 30  # columns of its names at most


class Parameter:
    """A parameter of a command as it is declared; `of` binds a copy to the function's parameter."""

    is_option = False

    def __init__(
        self,
        *spellings: str,
        help: str = "",
        metavar: str = "",  # how the help calls an argument; its name in capitals by default
        hidden: bool = False,
        min: float | None = None,
        max: float | None = None,
        choices: Sequence[str] = (),  # all words that it may be
        parser: Callable[[str], Any] | None = None,  # from the word to the value, in place of the type's own
        rest: bool = False,  # all words from here on as they are, unknown options among them
    ) -> None:
        self.spellings, self.help, self.metavar, self.hidden, self.rest = spellings, help, metavar, hidden, rest
        self.min, self.max, self.choices, self.parser = min, max, choices, parser

    def of(self, name: str, hint: Any, default: Any = Declared.empty, heading: str = "") -> Parameter:
        """The same of a function's parameter. hint: int, float, str, bool or Path, optional, or a list of them."""
        made, inner = copy(self), [one for one in get_args(hint) if one not in (type(None), ...)]
        made.name, made.heading, made.kind = name, heading, inner[0] if inner else hint
        made.required, made.many = default is Declared.empty, get_origin(hint) in (list, tuple)
        made.default = None if made.required else default
        made.is_flag = made.is_option and made.kind is bool
        plain = name.replace("_", "-")
        usual = f"--{plain}/--no-{plain}" if made.kind is bool else f"--{plain}"
        sides = [[*one.split("/"), ""] for one in made.spellings or (usual,)] if made.is_option else []
        made.opts, made.off = ([one[side].strip() for one in sides if one[side].strip()] for side in (0, 1))
        made.shown = made.opts[0] if made.is_option else made.metavar or name.upper()
        return made

    # What `of` sets.
    name: str
    kind: type  # of one value
    default: Any
    required: bool
    many: bool  # an option that may be repeated, or all further words
    heading: str
    is_flag: bool  # its name alone says it
    opts: list[str]  # every spelling, those of a flag that say yes
    off: list[str]  # spellings of a flag that say no
    shown: str  # its name as it is written on a command line

    def read(self, text: str) -> Any:
        """The value of a word. Raises BadInput, naming the parameter."""
        if self.choices and text not in self.choices:
            raise BadInput(f"{self.shown} {text}: must be one of {', '.join(self.choices)}", field=self.name)
        if self.parser:
            return self.parser(text)
        try:
            value = self.kind(text)
        except ValueError as problem:
            wanted = {int: "an integer", float: "a number"}.get(self.kind, self.kind.__name__)
            raise BadInput(f"{self.shown} = {text!r}: must be {wanted}", field=self.name) from problem
        low, high = self.min, self.max
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = [f"at {side} {end:g}" for side, end in (("least", low), ("most", high)) if end is not None]
            raise BadInput(f"{self.shown} = {text}: must be {' and '.join(bounds)}", field=self.name)
        return value

    @property
    def spelled(self) -> str:
        """Every spelling, and what kind of value follows."""
        return ", ".join([*self.opts, *self.off]) + ("" if self.is_flag else f" <{self.kind.__name__.lower()}>")

    @property
    def told(self) -> str:
        """The help, with the default where that says something."""
        if self.required:
            return f"{self.help} [required]".strip() if self.is_option else self.help
        silent = self.default in (None, "", [], (), False) or (self.is_flag and not self.off)
        shown = self.opts[0] if self.default is True and self.is_option else self.default
        return self.help if silent else f"{self.help} [default: {shown}]".strip()


class Argument(Parameter):
    """A word by its place."""


class Option(Parameter):
    """A value by name. `--on/--off` spells both sides of a flag; without spellings it is `--name` or `--no-name`."""

    is_option = True


class Command:
    """A function that a command line calls; its parameters are read when they are first needed."""

    def __init__(
        self,
        run: Callable[..., int | None],
        params: Sequence[Parameter] | None = None,
        *,
        help: str = "",
        arrange: Callable[[list[str], Sequence[Parameter]], list[str]] | None = None,
    ) -> None:
        self._run, self._params, self._arrange = run, params, arrange
        self.help, self._groups = help or getdoc(run) or "", dict[str, Any]()  # its dataclasses, once `params` is read

    @cached_property
    def params(self) -> list[Parameter]:
        """What it takes, dataclasses as their fields."""
        if self._params is not None:
            return list(self._params)
        hints, declared = get_type_hints(self._run, include_extras=True), signature(self._run).parameters.values()
        self._groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
        return [each for one in declared for each in _expanded(one.name, hints[one.name], one.default)]

    def run(self, words: Sequence[str], path: str = "pipewave") -> int:
        """Run it with the words of a command line; its exit status. Raises PipewaveError for words it does not know."""
        if any(word in HELP for word in words):
            print(self._page(path))
            return 0
        values = read(self._arrange(list(words), self.params) if self._arrange else words, self.params)
        groups = self._groups.items()
        made = {name: kind(**{one.name: values.pop(one.name) for one in fields(kind)}) for name, kind in groups}
        return self._run(**values, **made) or 0

    def _page(self, path: str) -> str:
        """The help."""
        places = [one for one in self.params if not one.is_option]
        usage = " ".join([path, "[OPTIONS]", *(one.shown if one.required else f"[{one.shown}]" for one in places)])
        sections = {"Arguments": [(one.shown, one.told) for one in places if one.help]}
        for one in self.params:
            if one.is_option and not one.hidden:
                sections.setdefault(one.heading or "Options", []).append((one.spelled, one.told))
        return page(usage, self.help, sections.items())


class Group:
    """Commands under one name. Each is looked up when it is asked for: `module:name`, or what is to be run."""

    def __init__(
        self,
        help: str,
        commands: Mapping[str, tuple[str, str] | Callable[..., int | None]],
        alone: Callable[..., int | None] | None = None,
    ) -> None:
        self.help, self._commands, self.params = help, commands, list[Parameter]()
        self.alone = Command(alone) if alone else None  # what the name alone runs

    def lines(self) -> dict[str, str]:
        """Names of the commands and what each does, in a sentence."""
        return {name: one[1] if isinstance(one, tuple) else first_line(getdoc(one) or "")
                for name, one in self._commands.items()}  # fmt: skip

    def command(self, name: str) -> Command | Group:
        """The command of a name. Raises BadInput, with the nearest one that there is."""
        if name not in self._commands:
            raise BadInput(f"unknown command {name!r}:{meant_or_known(name, self._commands)}", field="command")
        one = self._commands[name]
        if not isinstance(one, tuple):
            return Command(one)
        module, _, function = one[0].partition(":")
        found = getattr(import_module(module), function)
        return found if isinstance(found, Group) else Command(found)

    def run(self, words: Sequence[str], path: str = "pipewave") -> int:
        """Run the command that the first word names; its exit status."""
        if words and words[0][:1] != "-":
            return self.command(words[0]).run(words[1:], f"{path} {words[0]}")
        if self.alone and not any(word in HELP for word in words):
            return self.alone.run(words, path)
        options = [(one.spelled, one.told) for one in (self.alone.params if self.alone else ()) if one.is_option]
        sections = [("Commands", self.lines().items()), ("Options without a command", options)]
        print(page(f"{path} COMMAND ...", self.help, sections))
        return 0 if words else 2


def first_line(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    return " ".join(text.split("\n\n")[0].split())


def _expanded(name: str, hint: Any, default: Any) -> Iterator[Parameter]:
    """A declared parameter, or one for each field of its dataclass."""
    if not is_dataclass(hint):
        kind, declared = get_args(hint)[:2]
        yield declared.of(name, kind, default)
        return
    heading, inner = (getdoc(hint) or "").split("\n")[0].rstrip("."), get_type_hints(hint, include_extras=True)
    for one in fields(hint):
        made = one.default_factory() if one.default_factory is not MISSING else one.default
        kind, declared = get_args(inner[one.name])[:2]
        yield declared.of(one.name, kind, Declared.empty if made is MISSING else made, heading)


def read(words: Sequence[str], params: Sequence[Parameter]) -> dict[str, Any]:
    """Values of parameters by name from the words of a command line.

    Raises UnknownField for an option that none has, MissingField for a value that is not given, BadInput for others.
    """
    values, placed = _parsed(_one_spelling(list(words), params), params)
    for one in params:
        if not one.is_option and placed:
            taken, placed = (placed, []) if one.many else (placed[:1], placed[1:])
            values[one.name] = [one.read(word) for word in taken] if one.many else one.read(taken[0])
    if placed:
        raise BadInput(f"{placed[0]}: a word too many; lists are written with commas, as in H200,L40S", field=None)
    for one in params:
        if one.name not in values and one.required:
            what = "option" if one.is_option else "argument"
            raise MissingField(f"missing {what} {one.shown}: {one.help}".rstrip(": "), field=one.name)
        values.setdefault(one.name, list(one.default) if isinstance(one.default, list) else one.default)
    return values


def _parsed(words: list[str], params: Sequence[Parameter]) -> tuple[dict[str, Any], list[str]]:
    """Values of options by the names of their parameters, and the words that are arguments."""
    on, off = {name: one for one in params for name in one.opts}, {name: one for one in params for name in one.off}
    named: dict[str, Any] = {}
    placed: list[str] = []
    known = {name[2:].replace("-", "_"): name for name in (*off, *on) if name[:2] == "--"}
    while words:
        word = words.pop(0)
        if word == "--":
            return named, placed + words
        spelling, equals, value = word.partition("=") if word[:2] == "--" else (word, "", "")
        if spelling[:2] == "--" and spelling not in on and spelling not in off:
            from pipewave.calls.fields import own_name

            spelling = known.get(own_name(spelling[2:].replace("-", "_"), known), spelling)
        if word[:1] != "-" or word == "-" or word[1:2].isdigit():
            placed.append(word)
        elif spelling not in on and spelling not in off:
            if not any(one.rest for one in params):
                meant = did_you_mean(spelling.lstrip("-"), (name[2:] for name in on if name[:2] == "--"))
                hint = meant.replace("mean ", "mean --") or " see --help"
                raise UnknownField(f"no option {spelling};{hint}", field=spelling)
            placed.append(word)
        elif (one := on.get(spelling) or off[spelling]).is_flag:
            if equals:
                raise BadInput(f"{word}: {spelling} takes no value", field=one.name)
            named[one.name] = spelling in on
        else:
            if not equals and not words:
                raise MissingField(f"{spelling} needs a value: {one.help}", field=one.name)
            given = one.read(value if equals else words.pop(0))
            named[one.name] = [*named.get(one.name, ()), given] if one.many else given
    return named, placed


def _one_spelling(words: list[str], params: Sequence[Parameter]) -> list[str]:
    """The words with `--json` as `--format json` where a command takes that, or the other way about."""
    known = {name for one in params for name in one.opts}
    if JSON in words and JSON not in known and FORMAT in known:
        at = words.index(JSON)
        return [*words[:at], FORMAT, "json", *words[at + 1 :]]
    if FORMAT not in known and JSON in known:
        text = "\0".join(words).replace(f"{FORMAT}\0json", JSON).replace(f"{FORMAT}=json", JSON)
        return text.split("\0") if words else words
    return words


def page(usage: str, about: str, sections: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> str:
    """A page of help: how a command is called, what it does, and sections of names and what they mean."""
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
    except (OSError, ValueError):
        columns = 100
    width = max(min(columns, WIDEST), NARROWEST)
    told = [fill(" ".join(text.split()), width, break_on_hyphens=False) for text in about.split("\n\n")]
    listed = ((name, list(rows)) for name, rows in sections)
    return "\n\n".join([f"Usage: {usage}", *told, *(_section(name, rows, width) for name, rows in listed if rows)])


def _section(heading: str, rows: Sequence[tuple[str, str]], width: int) -> str:
    """Names to the left, what they are to the right; a long name has a line of its own."""
    first = min(max(len(name) for name, _ in rows) + 2, FIRST)
    lines, indent = [f"{heading}:"], " " * (first + 2)
    for name, told in rows:
        text = fill(told, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        lines += [f"  {name:{first}}{text.strip()}"] if len(name) < first else [f"  {name}", text]
    return "\n".join(line.rstrip() for line in lines if line.strip())
