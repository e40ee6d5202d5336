"""Options that belong together as one dataclass: declared once, shared by commands, under one heading of the help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, getdoc, signature
from typing import Annotated, Any, get_args, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: in place of each parameter that is a dataclass stand its fields, as options.

    The first line of the dataclass's docstring is their heading in the help.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @wraps(command)
    def flat(**given: Any) -> None:
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    parameters = [each for one in signature(command).parameters.values() for each in _expanded(one, hints)]
    # Options that must be given come first, as Python asks of a signature; typer takes all of them by name.
    ordered = sorted(parameters, key=lambda one: one.default is not Parameter.empty)
    flat.__signature__ = Signature(ordered)  # type: ignore[attr-defined]
    flat.__annotations__ = {one.name: one.annotation for one in ordered}
    return flat


def _expanded(parameter: Parameter, hints: dict[str, Any]) -> Iterator[Parameter]:
    """The parameter itself, or one for each field of its dataclass."""
    kind = hints[parameter.name]
    if not is_dataclass(kind):
        yield parameter.replace(annotation=kind)
        return
    heading, inner = (getdoc(kind) or "").split("\n")[0].rstrip("."), get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        yield Parameter(one.name, parameter.kind, default=_default(one), annotation=_under(heading, inner[one.name]))


def _default(field: Field[Any]) -> Any:
    """What the option is when it is not given; nothing for one that must be."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Parameter.empty if field.default is MISSING else field.default


def _under(heading: str, hint: Any) -> Any:
    """The annotated option, under its heading."""
    kind, option = get_args(hint)
    option = copy(option)
    option.rich_help_panel = heading
    return Annotated[kind, option]
