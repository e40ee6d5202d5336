"""Charts as SVG text: bars, points and lines. Colours are classes (s0, s1, ...) that the page's style sheet defines, so
that the same drawing serves light, dark and paper; every text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pipewave.view.document import number, percent

WIDTH = 760.0
COLOURS = 8
FAR = 30  # times the least value, from which on an axis is logarithmic
LETTER = 6.6  # width of a letter of the labels, about


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar: its name, length, and which colour."""

    name: str
    size: float
    colour: int


def _num(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def tag(name: str, body: str = "", **attributes: str | float) -> str:
    """An element; `_` in attribute names stands for `-`, `cls` for `class`."""
    shown = "".join(
        f' {"class" if key == "cls" else key.replace("_", "-")}="'
        f'{_num(value) if isinstance(value, (int, float)) else escape(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{shown}>{body}</{name}>" if body else f"<{name}{shown}/>"


def label(x: float, y: float, words: str, cls: str = "", anchor: str = "start") -> str:
    """A text."""
    return tag("text", escape(words), x=x, y=y, cls=cls or "t", text_anchor=anchor)


def canvas(height: float, body: str, name: str) -> str:
    """The whole drawing, named for those who cannot see it."""
    title = tag("title", escape(name) or "chart")
    box = f"0 0 {_num(WIDTH)} {_num(height)}"
    return f'<svg viewBox="{box}" role="img" xmlns="http://www.w3.org/2000/svg">{title}{body}</svg>'


def colour(index: int) -> str:
    """Class of a series."""
    return f"s{index % COLOURS}"


def bars(rows: Sequence[tuple[str, Sequence[Part]]], name: str, *, whole: float | None = None) -> str:
    """Horizontal bars of the same parts side by side, above their legend; each bar fills the width unless `whole` gives
    the full length.
    """
    left, bar, gap = 8.0 + LETTER * max((len(label) for label, _ in rows), default=0), 30.0, 14.0
    body = []
    for i, (title, parts) in enumerate(rows):
        y, total = i * (bar + gap) + 4, whole or sum(part.size for part in parts) or 1.0
        body += [label(0, y + bar / 2 + 4, title), _stack(left, y, bar, parts, (WIDTH - left) / total, total)]
    named = [(part.name, part.colour) for part in rows[0][1]] if rows else []
    return canvas(len(rows) * (bar + gap), "".join(body), name) + legend(named)


def _stack(left: float, y: float, height: float, parts: Sequence[Part], scale: float, total: float) -> str:
    out, x = [], left
    for part in parts:
        width = max(part.size * scale, 0.0)
        hover = tag("title", escape(f"{part.name}: {number(part.size)} ({percent(part.size / total)})"))
        out.append(tag("rect", hover, x=x, y=y, width=width, height=height, cls=f"{colour(part.colour)} edge"))
        if width > LETTER * len(part.name) + 8:
            out.append(label(x + width / 2, y + height / 2 + 4, part.name, f"on{part.colour % COLOURS}", "middle"))
        x += width
    return "".join(out)


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Names with their colours, in as many lines as they need."""
    x, y, out = 0.0, 12.0, []
    for name, index in names:
        width = 24 + LETTER * len(name) + 14
        if x + width > WIDTH and x:
            x, y = 0.0, y + 20
        out.append(tag("rect", x=x, y=y - 10, width=12, height=12, cls=colour(index)) + label(x + 18, y, name))
        x += width
    return canvas(y + 8, "".join(out), "legend")


def ranked_bars(rows: Sequence[tuple[str, Sequence[Part], str]], name: str) -> str:
    """Horizontal bars on one scale, in the order given: (name, parts, what is written beside the bar)."""
    longest = max((sum(part.size for part in parts) for _, parts, _ in rows), default=1.0) or 1.0
    left, bar, gap = 230.0, 16.0, 7.0
    scale = (WIDTH - left - 130) / longest
    body = []
    for i, (title, parts, said) in enumerate(rows):
        y, total = i * (bar + gap), sum(part.size for part in parts)
        body.append(label(left - 8, y + 12.5, title if len(title) <= 34 else f"{title[:33]}…", anchor="end"))
        body.append(_stack(left, y, bar, [Part("", p.size, p.colour) for p in parts], scale, total or 1.0))
        body.append(label(left + total * scale + 6, y + 12.5, said, "m"))
    return canvas(len(rows) * (bar + gap), "".join(body), name)


@dataclass(frozen=True, slots=True)
class Axis:
    """Values to places: linear or logarithmic, with round ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, *, log: bool, zero: bool = False) -> Axis:
        """An axis that holds all values; without a spread of its own it is widened."""
        known = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = min(known), max(known)
        if log:
            high = high if high > low else low * 2
        else:
            low = 0.0 if zero else low
            high = high if high > low else low + 1.0
        return cls(low, high, start, end, log)

    def at(self, value: float) -> float:
        """The place of a value, kept inside."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values inside."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            marks = [step * 10.0**power for power in decades for step in ((1, 2, 5) if len(decades) <= 4 else (1,))]
        else:
            rough = (self.high - self.low) / 5
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
            first = math.ceil(self.low / step)
            marks = [step * i for i in range(first, math.floor(self.high / step * (1 + 1e-12)) + 1)]
        return [mark for mark in marks if self.low <= mark <= self.high * (1 + 1e-12)]


@dataclass(frozen=True, slots=True)
class Frame:
    """Two axes and what they are called."""

    x: Axis
    y: Axis
    x_name: str
    y_name: str

    def grid(self) -> str:
        """Lines, ticks and names."""
        top, bottom, left, right = self.y.end, self.y.start, self.x.start, self.x.end
        out = []
        for value in self.x.ticks():
            out.append(tag("line", x1=self.x.at(value), x2=self.x.at(value), y1=top, y2=bottom, cls="g"))
            out.append(label(self.x.at(value), bottom + 16, number(value), "m", "middle"))
        for value in self.y.ticks():
            out.append(tag("line", x1=left, x2=right, y1=self.y.at(value), y2=self.y.at(value), cls="g"))
            out.append(label(left - 6, self.y.at(value) + 4, number(value), "m", "end"))
        out.append(label((left + right) / 2, bottom + 36, self.x_name, anchor="middle"))
        out.append(label(0, top - 10, self.y_name))
        return "".join(out)

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """A line through points; what is not a number breaks it."""
        pieces, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(y):
                pieces.append(f"{pen}{_num(self.x.at(x))} {_num(self.y.at(y))}")
            pen = "L" if math.isfinite(y) else "M"
        return "".join(pieces)

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> str:
        """The area between two lines."""
        back = self.path(list(reversed(xs)), list(reversed(lows))).replace("M", "L", 1)
        return self.path(xs, highs) + back + "Z"


def frame(
    xs: Sequence[float], ys: Sequence[float], names: tuple[str, str], *, log: bool | None = None, zero: bool = False
) -> Frame:
    """Axes around points, in the usual place; logarithmic where values are far apart, unless `log` says it."""
    x_log, y_log = (min(each) > 0 and max(each) / min(each) > FAR if log is None else log for each in (xs, ys))
    x, y = Axis.over(xs, 64, WIDTH - 12, log=x_log), Axis.over(ys, 300, 26, log=y_log, zero=zero)
    return Frame(x, y, *names)


HEIGHT = 344.0
