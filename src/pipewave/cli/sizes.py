"""Fields of a kernel on the command line: sizes in order (`64 4096 4096`) or all by name (`m=64 n=4096 k=4096`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipewave.cli.command import Parameter
from pipewave.errors import BadInput, meant_or_known


def in_order(words: list[str], parameters: Sequence[Parameter]) -> list[str]:
    """The words of a command with sizes that are given by name in their order, and other fields that are given by name
    as the options that they are.

    Raises BadInput for a name that the kernel has not, one given twice, a size that is missing, and one without a name
    beside others that have one.
    """
    sizes = [one.name for one in parameters if not one.is_option]
    options = {one.name: one for one in parameters if one.is_option}
    places = list(_places(words, {spelling: one for one in options.values() for spelling in one.opts}))
    named = _named([words[at] for at in places if _name(words[at])], [*sizes, *options])
    ordered = [words[at] for at in places if not _name(words[at])]
    if first := next((name for name in named if name in sizes), ""):
        _check(first, named, sizes, ordered)
        ordered = [named[size] for size in sizes]
    others = [part for name, value in named.items() if name in options for part in _option(options[name], value)]
    return [*ordered, *(word for at, word in enumerate(words) if at not in places), *others]


def _places(words: Sequence[str], options: Mapping[str, Parameter]) -> Iterator[int]:
    """Where words are neither options nor their values; a number below zero is a size."""
    value = False
    for at, word in enumerate(words):
        if value or (word[:1] == "-" and not word[1:2].isdigit()):
            value = not value and word in options and not options[word].is_flag
        else:
            yield at


def _name(word: str) -> str:
    """What stands before the first `=`, where that can be a name."""
    name, equals, _ = word.partition("=")
    return name if equals and name.isidentifier() else ""


def _named(words: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        given, _, value = word.partition("=")
        name = given if given in known else given.lower()
        if name not in known:
            raise BadInput(f"{word}: no field is called {given};{meant_or_known(given, known)}", field=given)
        if name in found:
            raise BadInput(f"{word}: {name} is given twice", field=name)
        found[name] = value
    return found


def _check(first: str, named: Mapping[str, str], sizes: Sequence[str], ordered: Sequence[str]) -> None:
    """Raise unless all sizes have a name, or none has."""
    all_or_none = f"the sizes {', '.join(sizes)} are given all by name or all in this order"
    if ordered:
        raise BadInput(f"{first}={named[first]} beside {ordered[0]}: {all_or_none}", field=first)
    if missing := [size for size in sizes if size not in named]:
        raise BadInput(f"{missing[0]} is not given: {all_or_none}", field=missing[0])


def _option(parameter: Parameter, value: str) -> list[str]:
    """A field by name as its option."""
    spelling = parameter.opts[0]
    if parameter.is_flag:
        raise BadInput(f"{parameter.name}={value}: write {spelling}, or leave it out", field=parameter.name)
    return [spelling, value]
