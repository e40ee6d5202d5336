"""A report as one HTML file that needs nothing else: totals, a bar a call, a table that sorts on click."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from pipewave.explain.report import Entry, Left, Report

STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:78rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.3rem;margin:0}.sub{color:#57606a;margin:.2rem 0 1.2rem}
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin-bottom:1.4rem}
.card{border:1px solid #d0d7de;border-radius:.5rem;padding:.6rem 1rem;min-width:8rem}
.card b{display:block;font-size:1.25rem}.card span{color:#57606a}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .5rem;border-bottom:1px solid #eaeef2;text-align:right;white-space:nowrap}
th{cursor:pointer;color:#57606a;font-weight:600}td.l,th.l{text-align:left}td.w{white-space:normal;color:#57606a}
.bar{position:relative;height:.9rem;width:11rem;background:#f6f8fa;border-radius:.2rem;overflow:hidden}
.bar i{position:absolute;left:0;top:0;bottom:0;background:#d1242f55}.bar i+i{background:#0969da99}
.no{color:#9a6700}
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}.bar{background:#161b22}
.card,th,td{border-color:#30363d}.sub,.card span,th,td.w{color:#8b949e}}
"""
SORT = """
document.querySelectorAll('th').forEach((h,i)=>h.onclick=()=>{
const b=h.closest('table').tBodies[0],k=r=>r.cells[i].dataset.v??r.cells[i].textContent,
d=h.dataset.d=h.dataset.d==='1'?'-1':'1';
[...b.rows].sort((x,y)=>{const p=k(x),q=k(y);return d*(isNaN(p-q)?p.localeCompare(q):q-p)}).forEach(r=>b.append(r))})
"""
HEADS = ("call", "family", "shape", "count", "measured µs", "predicted µs", "interval", "ceiling", "floor", "bound")


def page(report: Report) -> str:
    """The whole document."""
    title = f"{report.source.rsplit('/', 1)[-1]} on {report.gpu}"
    data = json.dumps(report.to_dict()).replace("<", "\\u003c")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{escape(title)}</h1><p class=sub>protocol {escape(report.protocol)}; times of one call, "
        "blue: what a good kernel needs, red: what could be won back</p>"
        f"{_cards(report)}{_table(report.entries)}{_left('Recognised, shape unknown', report.unshaped)}"
        f"{_left('Not recognised', report.unknown)}"
        f'<script type="application/json" id=report>{data}</script><script>{SORT}</script></html>\n'
    )


def _cards(report: Report) -> str:
    cards = {
        "GPU time": f"{report.gpu_us / 1e3:,.2f} ms",
        "recoverable": f"{report.recoverable_us / 1e3:,.2f} ms",
        "recognised": f"{report.recognized_share:.1%}",
        "with shapes": f"{report.shaped_share:.1%}",
        "predicted within 10 %": f"{report.close_share:.1%}",
    }
    return "<div class=cards>" + "".join(card(*one) for one in cards.items()) + "</div>"


def card(name: str, value: str) -> str:
    """One figure at the top of a page."""
    return f"<div class=card><b>{escape(value)}</b><span>{escape(name)}</span></div>"


def _table(entries: Sequence[Entry]) -> str:
    widest = max((entry.total_measured_us for entry in entries), default=1.0) or 1.0
    heads = "".join(
        f"<th{' class=l' if i < 3 else ''}>{head}" for i, head in enumerate((*HEADS, "total", "recoverable"))
    )
    rows = "".join(_row(entry, widest) for entry in entries)
    return f"<table><thead><tr>{heads}<th class=l></thead><tbody>{rows}</tbody></table>"


def _row(entry: Entry, widest: float) -> str:
    numbers = (entry.count, entry.measured_us, entry.latency_us)
    later = (entry.ceiling_us, entry.floor_us)
    note = f" <span class=no>{escape(entry.note)}</span>" if entry.note else ""
    return (
        f'<tr title="{escape(", ".join(entry.kernels))}"><td class=l>{escape(entry.name)}<td class=l>{entry.family}'
        f"<td class='l w'>{escape(shape_text(entry.call))}{note}{cells(numbers)}"
        f"<td>{entry.low_us:,.1f}-{entry.high_us:,.1f}{cells(later)}<td>{escape(entry.bound)}"
        f"{cells((entry.total_measured_us, entry.total_recoverable_us))}<td>{_bar(entry, widest)}"
    )


def cells(values: Iterable[float]) -> str:
    """Numbers of a table, sorted by their exact value."""
    return "".join(f'<td data-v="{value}">{value:,.4g}' if abs(value) < 100 else _large(value) for value in values)


def _large(value: float) -> str:
    return f'<td data-v="{value}">{value:,.0f}'


def _bar(entry: Entry, widest: float) -> str:
    whole = 100 * entry.total_measured_us / widest
    kept = 100 * (entry.total_measured_us - entry.total_recoverable_us) / widest
    return f'<div class=bar><i style="width:{whole:.1f}%"></i><i style="width:{kept:.1f}%"></i></div>'


def _left(title: str, rows: Sequence[Left]) -> str:
    if not rows:
        return ""
    body = "".join(
        f"<tr><td class=l>{escape(row.name)}<td class=l>{row.family or ''}{cells((row.count, row.total_measured_us))}"
        for row in rows
    )
    heads = "<th class=l>kernel<th class=l>family<th>count<th>total µs"
    return f"<h2>{title}</h2><table><thead><tr>{heads}</thead><tbody>{body}</tbody></table>"


def shape_text(call: dict[str, Any]) -> str:
    """The numbers of a call in one line; long lists of lengths as `first*count`."""
    quiet = ("dtype", "op", "impl", "causal", "stack")
    return " ".join(
        f"{name}={_brief(value)}" for name, value in call.items() if name not in quiet and value is not False
    )


def _brief(value: Any) -> str:
    if not isinstance(value, (list, tuple)) or not value:
        return str(value)
    if len(set(value)) == 1:
        return f"{value[0]}*{len(value)}" if len(value) > 1 else str(value[0])
    return f"{min(value)}..{max(value)} ({len(value)})"
