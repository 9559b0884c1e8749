"""A table of measured figures: a line for each, with the aim, and whether it was reached. Knows no benchmark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Results = Mapping[str, Mapping[str, Any] | None]
"""Name of a benchmark → what its ``measure`` returned; None where it failed. One that was not asked for is missing."""

Unit = Literal["%", "MB", "kB", "bytes/s", "/s", "s", "ms", "µs", "×", "% of peak", ""]
_FORMATS: Mapping[Unit, tuple[float, str]] = {
    "%": (1.0, "{:.2f}"),
    "MB": (1e-6, "{:.1f}"),
    "kB": (1e-3, "{:.1f}"),
    "bytes/s": (1.0, "{:,.0f}"),
    "/s": (1.0, "{:,.0f}"),
    "s": (1.0, "{:.3f}"),
    "ms": (1e3, "{:.1f}"),
    "µs": (1e6, "{:.0f}"),
    "×": (1.0, "{:.3f}"),
    "% of peak": (100.0, "{:.1f}"),
    "": (1.0, "{:.4g}"),
}
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line. ``path`` leads to the value among the results of ``benchmark``, ``peer_path`` to a peer's.

    ``spread_path`` leads to the lowest and the highest of the values that this one is the median of.
    """

    benchmark: str
    text: str
    unit: Unit
    path: tuple[str, ...]
    aim: float | None = None
    aim_is: Literal["below", "at most", "at least"] = "below"
    peer_path: tuple[str, ...] | None = None
    spread_path: tuple[str, ...] | None = None

    def is_reached(self, value: float | None) -> bool | None:
        """None where there is no aim or no value."""
        if self.aim is None or value is None:
            return None
        if self.aim_is == "below":
            return value < self.aim
        return value <= self.aim if self.aim_is == "at most" else value >= self.aim

    @property
    def aim_text(self) -> str:
        sign = {"below": "<", "at most": "≤", "at least": "≥"}[self.aim_is]
        return "" if self.aim is None else f"{sign} {_number(self.aim, self.unit, exact=True)}"

    def value(self, results: Results) -> float | None:
        figure = at(results.get(self.benchmark), self.path)
        return None if figure is None else float(figure)

    def shown(self, results: Results) -> str:
        """The value with its unit, and its spread where there is one."""
        text = with_unit(self.value(results), self.unit)
        spread = None if self.spread_path is None else at(results.get(self.benchmark), self.spread_path)
        if spread is None:
            return text
        low, high = (_number(float(end), self.unit) for end in spread)
        return f"{text} ({low}..{high})"


def asked_for(figures: Sequence[Figure], results: Results) -> list[Figure]:
    """The figures of benchmarks that were taken, without those that say why they, or a part of them, were left out."""
    return [
        figure
        for figure in figures
        if figure.benchmark in results
        and at(results[figure.benchmark], ("why_not",)) is None
        and at(results[figure.benchmark], (figure.path[0], "why_not")) is None
    ]


def row(figure: Figure, results: Results) -> list[str]:
    """Text, value, aim, and whether it was reached."""
    reached = figure.is_reached(figure.value(results))
    return [figure.text, figure.shown(results), figure.aim_text, "" if reached is None else "yes" if reached else "NO"]


def layout(rows: Sequence[Sequence[str]], text_columns: Collection[int] = (0, 3)) -> str:
    """Rows as text, the first of them the heading; the columns of words to the left, those of numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(_cell(text, column in text_columns, widths[column]) for column, text in enumerate(row)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def missed(figures: Sequence[Figure], results: Results) -> list[str]:
    """The figures that were measured and miss their aim."""
    return [figure.text for figure in figures if figure.is_reached(figure.value(results)) is False]


def texts_under(results: Mapping[str, Any], key: str) -> list[str]:
    """The entries of all results under a key such as ``why_not``, each with the names that lead
    there."""
    return [f"{' '.join(path)}: {text}" for path, text in _said(results, key, ())]


def _said(results: Any, key: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(results, Mapping):
        if isinstance(results.get(key), str):
            yield path, results[key]
        for name, inner in results.items():
            yield from _said(inner, key, (*path, str(name)))


def at(results: Any, path: Sequence[str]) -> Any:
    """The value at the end of a path of names; None where it is not there."""
    for key in path:
        if not isinstance(results, Mapping):
            return None
        results = results.get(key)
    return results


def with_unit(value: float | None, unit: Unit) -> str:
    return _number(value, unit) + ("" if value is None or not unit else f" {unit}")


def _number(value: float | None, unit: Unit, *, exact: bool = False) -> str:
    if value is None:
        return NOTHING
    factor, form = _FORMATS[unit]
    return f"{value * factor:,g}" if exact else form.format(value * factor)


def _cell(text: str, is_word: bool, width: int) -> str:
    return text.ljust(width) if is_word else text.rjust(width)
