"""Formulas in JSON files: Python arithmetic over other terms and over values that the caller supplies.

Rows are files of the package, which a checksum guards; nothing that a user writes is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any


class Terms(dict[str, Any]):
    """Values by name, each worked out from its formula when it is first asked for."""

    def __init__(self, formulas: Mapping[str, Any], **known: Any) -> None:
        super().__init__(known)
        self.formulas = formulas

    def __missing__(self, name: str) -> Any:
        self[name] = self.of(self.formulas[name])
        return self[name]

    def of(self, formula: Any) -> Any:
        """The value of a formula; of anything but a text, itself."""
        return eval(_compiled(formula), {"__builtins__": {}}, self) if isinstance(formula, str) else formula


@cache
def _compiled(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")
