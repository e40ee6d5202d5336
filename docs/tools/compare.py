"""Is what a command prints what the page shows?

Words must agree exactly, numbers within 20 % or two units of their last digit: retrained weights move figures, and a
page is wrong when it says something else, not when a latency moved by a few percent. Spacing, rules and bars of tables
carry nothing of their own and are not compared. A line `...` in a page stands for any lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

TOLERANCE = 0.20
LAST_DIGITS = 2.0
ELISION = "..."
_NUMBER = re.compile(r"(?<![A-Za-z\d_.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_DECORATION = re.compile(r"[─━▏▎▍▌▋▊▉█]+")


def differences(shown: Sequence[str], printed: Sequence[str], *, any_numbers: bool = False) -> list[str]:
    """What disagrees, in words; empty when the page is right."""
    wanted, got = _meaning(shown), _meaning(printed)
    if ELISION in wanted:
        return _around_elision(wanted, got, any_numbers)
    if len(wanted) != len(got):
        return [f"{len(wanted)} lines are shown, {len(got)} are printed", *got[:40]]
    return [problem for w, g in zip(wanted, got, strict=True) for problem in _line(w, g, any_numbers)]


def _around_elision(wanted: list[str], got: list[str], any_numbers: bool) -> list[str]:
    at = wanted.index(ELISION)
    head, tail = wanted[:at], wanted[at + 1 :]
    if len(got) < len(head) + len(tail):
        return [f"at least {len(head) + len(tail)} lines are shown, {len(got)} are printed", *got[:40]]
    return differences(head, got[: len(head)], any_numbers=any_numbers) + differences(
        tail, got[len(got) - len(tail) :], any_numbers=any_numbers
    )


def _meaning(lines: Sequence[str]) -> list[str]:
    plain = (" ".join(_DECORATION.sub(" ", line).split()) for line in lines)
    return [line for line in plain if line]


def _line(wanted: str, got: str, any_numbers: bool) -> list[str]:
    words = [_NUMBER.sub("#", text) for text in (wanted, got)]
    pairs = zip(_NUMBER.findall(wanted), _NUMBER.findall(got), strict=False)
    if words[0] == words[1] and (any_numbers or all(near(a, b) for a, b in pairs)):
        return []
    return [f"shown:   {wanted}", f"printed: {got}"]


def near(shown: str, printed: str) -> bool:
    """Whether two printed numbers mean the same within the tolerance of this module."""
    a, b = _value(shown), _value(printed)
    return abs(a - b) <= max(TOLERANCE * max(abs(a), abs(b)), LAST_DIGITS * max(_unit(shown), _unit(printed)))


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _unit(text: str) -> float:
    """The worth of a number's last digit."""
    mantissa, _, exponent = text.replace(",", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - decimals))
