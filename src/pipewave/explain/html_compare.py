"""A comparison of two traces as one HTML file that needs nothing else: totals, and a table that sorts on click."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape

from pipewave.explain.compare import Change, Comparison
from pipewave.explain.html import SORT, STYLE, card, cells

HEADS = ("call", "family", "A: count", "B: count", "A each", "B each", "A µs", "B µs", "B − A", "predicted B − A")


def page(found: Comparison) -> str:
    """The whole document."""
    names = [f"{report.source.rsplit('/', 1)[-1]} on {report.gpu}" for report in (found.a, found.b)]
    data = json.dumps(found.to_dict()).replace("<", "\\u003c")
    unit = "a step" if found.by_step else "of the whole traces"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(' and '.join(names))}</title>"
        f"<style>{STYLE}</style><h1>A: {escape(names[0])}<br>B: {escape(names[1])}</h1>"
        f"<p class=sub>µs {unit}, ranked by the size of the change</p>{_cards(found)}{_table(found.changes)}"
        f'<script type="application/json" id=comparison>{data}</script><script>{SORT}</script></html>\n'
    )


def _cards(found: Comparison) -> str:
    a, b = found.gpu_us
    values = {"A: GPU time": f"{a / 1e3:,.2f} ms", "B: GPU time": f"{b / 1e3:,.2f} ms", "B / A": f"{b / (a or 1):.3f}"}
    return "<div class=cards>" + "".join(card(name, value) for name, value in values.items()) + "</div>"


def _table(changes: Iterable[Change]) -> str:
    heads = "".join(f"<th{' class=l' if i < 2 else ''}>{head}" for i, head in enumerate(HEADS))
    return f"<table><thead><tr>{heads}</thead><tbody>{''.join(map(_row, changes))}</tbody></table>"


def _row(change: Change) -> str:
    each = (change.a_us / (change.count_a or 1), change.b_us / (change.count_b or 1))
    numbers = (change.count_a, change.count_b, *each, change.a_us, change.b_us, change.change_us)
    predicted = "<td>" if change.predicted_us is None else cells((change.predicted_us,))
    return f"<tr><td class=l>{escape(change.name)}<td class=l>{change.family}{cells(numbers)}{predicted}"
