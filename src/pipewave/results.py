"""What answers of the Python API have in common: a table in a notebook, a DataFrame, a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from html import escape
from typing import Any, ClassVar

from pipewave.errors import extra


class Shown:
    """Mixed into the dataclass of an answer. pandas and matplotlib are imported when they are asked for."""

    __slots__ = ()
    _TABLE: ClassVar[str] = ""  # entry of `to_dict` that holds rows; without one the answer is one row
    _DRAWN: ClassVar[tuple[str, ...]] = ()  # columns of the rows: one along, then those up

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON has it: its fields, floats to four decimals."""
        return {one.name: rounded(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]

    def to_pandas(self) -> Any:
        """A DataFrame: a row for each row of the answer's table, or one row of its figures. Raises MissingExtra."""
        return extra("pandas", "to_pandas", "pandas").DataFrame(self._rows())

    def plot(self, ax: Any = None) -> Any:
        """Draw curves, or times with their intervals, and return the axes. Raises MissingExtra."""
        ax = ax or extra("matplotlib.pyplot", "plot", "matplotlib").subplots()[1]
        if self._DRAWN:
            along, *names = self._DRAWN
            for name in names:
                rows = [row for row in self._rows() if row.get(along) is not None and row.get(name) is not None]
                ax.plot([row[along] for row in rows], [row[name] for row in rows], marker="o", label=name)
            ax.set_xlabel(along)
            ax.legend()
            return ax
        figures = [figure for figure in self._figures() if figure[0].endswith("_ms")]
        values = [value for _, value, _ in figures]
        spans = [(value - low, high - value) for _, value, (low, high) in figures]
        ax.bar([name for name, _, _ in figures], values, yerr=list(zip(*spans, strict=True)) or None)
        ax.set_ylabel("ms")
        return ax

    def _repr_html_(self) -> str:
        """Figures with their intervals, the first rows of the table, and notes in a fold."""
        lines = [f"<tr><th>{escape(name)}</th><td>{_text(value)}</td><td>{_text(low)} – {_text(high)}</td></tr>"
                 if low != high else f"<tr><th>{escape(name)}</th><td>{_text(value)}</td><td></td></tr>"
                 for name, value, (low, high) in self._figures()]  # fmt: skip
        rows = self._rows()[:20] if self._TABLE else []
        names = [name for name, value in rows[0].items() if isinstance(value, (int, float, str))] if rows else []
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join("<tr>" + "".join(f"<td>{_text(row.get(name))}</td>" for name in names) + "</tr>" for row in rows)
        notes = "".join(f"<li>{escape(str(note))}</li>" for note in self.to_dict().get("notes", ()))
        fold = f"<details><summary>notes</summary><ul>{notes}</ul></details>" if notes else ""
        table = f"<table><tr>{head}</tr>{body}</table>" if rows else ""
        return f"<table>{''.join(lines)}</table>{table}{fold}"

    def _rows(self) -> list[dict[str, Any]]:
        whole = self.to_dict()
        if self._TABLE:
            return [dict(row) for row in whole[self._TABLE]]
        return [{name: value for name, value in whole.items() if not isinstance(value, (list, dict))}]

    def _figures(self) -> Iterator[tuple[str, Any, tuple[Any, Any]]]:
        """Name, value and both ends of the interval (the value itself where there is none) of each plain figure."""
        whole = self.to_dict()
        for name, value in whole.items():
            if isinstance(value, (int, float, str)) and not name.endswith(("_low", "_high")):
                yield name, value, (whole.get(f"{name}_low", value), whole.get(f"{name}_high", value))


def rounded(value: Any) -> Any:
    """A value of an answer as JSON has it: floats to four decimals, tuples as lists."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else escape(str(value))
