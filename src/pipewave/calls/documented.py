"""What the docstrings of all functions that make calls have in common, written once."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

SHARED = {
    "{options}": "`dtype` (of operands), `stack` (such as `vllm-0.22.1`), `impl`",
    "{call}": cleandoc("""
        Returns:
            The call, for `predict`.

        Raises:
            BadInput: a value that cannot be; the message names the field and what it takes.
            TypeError: an option that is no field.
        """),
}
F = TypeVar("F", bound=Callable[..., Any])


def documented(function: F) -> F:
    """The function with its docstring completed: `{options}` of every call, `{call}`: what it gives and raises."""
    text = cleandoc(function.__doc__ or "")  # none at all under `python -OO`
    for place, shared in SHARED.items():
        text = text.replace(place, shared)
    function.__doc__ = text
    return function
