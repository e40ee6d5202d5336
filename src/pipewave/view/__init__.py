"""One document of each kind of answer, and its writers: a terminal, HTML, Markdown.

    text = report(answer, "html")        # answer: what `--json` printed

An answer becomes a `Document` of facts, charts, tables and notes (one function a kind of answer, in `estimate`,
`traffic`, `plan`, `trace` and `kernel`); `terminal` and `files` write it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile, BadInput
from pipewave.files import json_text, whole
from pipewave.view.document import LABELS, Document

FORMS: Mapping[str, str] = {"html": "html", "md": "markdown"}  # the function of `files` that writes each
# A field that only this kind of answer has, and what makes a document of it.
KINDS: Mapping[str, tuple[str, str]] = LABELS["kinds"]
MOST_BYTES = 256 << 20


def report(answer: Mapping[str, Any], form: str = "html") -> str:
    """The report of an answer. Raises BadInput for no such form, BadFile for an answer of another kind, or in parts."""
    check_form(form)
    write: Callable[[Document], str] = getattr(import_module("pipewave.view.files"), FORMS[form])
    return write(document_of(answer))


def check_form(form: str) -> str:
    """The form itself, or BadInput."""
    if form not in FORMS:
        raise BadInput(f"format = {form!r}: must be one of {', '.join(FORMS)}", field="format")
    return form


def document_of(answer: Mapping[str, Any]) -> Document:
    """What an answer says, as a document; BadFile where it says too little."""
    for kind, (mark, home) in KINDS.items():
        if mark in answer:
            module, _, name = home.partition(":")
            build: Callable[[Mapping[str, Any]], Document] = getattr(import_module(f"pipewave.view.{module}"), name)
            try:
                return build(answer)
            # a user's file: any part may be missing, of another type or beyond what a chart can hold
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
                what = f"{type(problem).__name__}: {problem}"
                raise BadFile(f"not a whole answer of {kind} ({what})", field="answer") from problem
    raise BadFile(f"no answer of {', '.join(KINDS)}: print one with --json", field="answer")


def read(path: Path) -> Mapping[str, Any]:
    """The answer saved in a file; BadFile says what is wrong with it."""
    return json_text.parsed(whole.read(path, "answer", MOST_BYTES), path, "answer", constants=True)
