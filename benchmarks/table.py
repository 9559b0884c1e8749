"""The figures of a run of all benchmarks as one table: ours, the aim, whether it was reached, and the peers'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.watching import SIZES, size_word

Results = Mapping[str, Mapping[str, Any] | None]
"""Name of a benchmark → what its ``measure`` returned; None where it failed. One that was not asked for is missing."""

Unit = Literal["%", "MB", "bytes/s", "/s", "s"]
_FORMATS: Mapping[Unit, tuple[float, str]] = {
    "%": (1.0, "{:.2f}"),
    "MB": (1e-6, "{:.1f}"),
    "bytes/s": (1.0, "{:,.0f}"),
    "/s": (1.0, "{:,.0f}"),
    "s": (1.0, "{:.3f}"),
}
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line. ``path`` leads to the value among the results of ``benchmark``, ``peer_path`` to a peer's."""

    benchmark: str
    text: str
    unit: Unit
    path: tuple[str, ...]
    aim: float | None = None
    aim_is: Literal["below", "at most", "at least"] = "below"
    peer_path: tuple[str, ...] | None = None

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


def _screen(columns: int, rows: int, bytes_aim: float) -> list[Figure]:
    size = size_word(columns, rows)

    def figure(text: str, unit: Unit, *path: str, **aims: Any) -> Figure:
        where = (size, *path)
        return Figure("tui", f"screen {size}, {text}", unit, where, peer_path=where, **aims)

    return [
        figure("CPU of a core", "%", "idle", "cpu_percent", aim=1.6, aim_is="at most"),
        figure("CPU with a key a second", "%", "keys", "cpu_percent", aim=5.0),
        figure("to the terminal", "bytes/s", "idle", "bytes_per_second", aim=bytes_aim),
        figure("the same with a key a second", "bytes/s", "keys", "bytes_per_second"),
        figure("memory (RSS)", "MB", "rss_bytes"),
        figure("memory (PSS)", "MB", "pss_bytes"),
        figure("calls to NVML", "/s", "idle", "nvml_calls_per_second", aim=70.0),
    ]


FIGURES: tuple[Figure, ...] = (
    Figure("record", "record, CPU of a core", "%", ("cpu_percent",), 0.5),
    Figure("record", "record, memory (RSS)", "MB", ("rss_bytes",), 60e6),
    Figure("record", "record, memory (PSS)", "MB", ("pss_bytes",)),
    Figure("record", "record, calls to NVML", "/s", ("nvml_calls_per_second",), 70.0),
    *(figure for size, aim in zip(SIZES, (1500.0, 2000.0), strict=True) for figure in _screen(*size, aim)),
    *(
        Figure(
            "start",
            f"start to first full frame, {size_word(*size)}",
            "s",
            (size_word(*size), "median_seconds"),
            0.4,
            peer_path=(size_word(*size), "first_frame_seconds"),
        )
        for size in SIZES
    ),
    Figure("ingest", "metrics lines stored", "/s", ("lines_per_second",), 100_000.0, "at least"),
    Figure("latency", "line written to stored, p50", "s", ("stored_p50_seconds",)),
    Figure("latency", "line written to stored, p99", "s", ("stored_p99_seconds",)),
    Figure("latency", "line written to visible, p50", "s", ("visible_p50_seconds",)),
    Figure("latency", "line written to visible, p99", "s", ("visible_p99_seconds",), 0.5),
    Figure("latency", "a live run's page 200x50, CPU of a core", "%", ("page_cpu_percent",)),
    Figure("latency", "a live run's page 200x50, to the terminal", "bytes/s", ("page_bytes_per_second",)),
    Figure("death", "worker's death to the next attempt's first step", "s", ("seconds",)),
)

PEERS = ("nvitop", "nvtop")


def render(results: Results) -> str:
    """The table as text, a line for each figure that was asked for."""
    peers = results.get("peers")
    rows = [["figure", "gputui", "aim", "reached", *(_heading(name, peers) for name in PEERS)]]
    for figure in FIGURES:
        if figure.benchmark not in results:
            continue
        value = _at(results[figure.benchmark], figure.path)
        reached = figure.is_reached(value)
        rows.append(
            [
                figure.text,
                _number(value, figure.unit) + _unit(figure.unit, value),
                figure.aim_text,
                "" if reached is None else "yes" if reached else "NO",
                *(_peer(name, figure, peers) for name in PEERS),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_cell(text, column, widths[column]) for column, text in enumerate(row)).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def missed(results: Results) -> list[str]:
    """The figures that were measured and miss their aim."""
    return [
        figure.text
        for figure in FIGURES
        if figure.benchmark in results and figure.is_reached(_at(results[figure.benchmark], figure.path)) is False
    ]


def _cell(text: str, column: int, width: int) -> str:
    return text.ljust(width) if column in (0, 3) else text.rjust(width)


def _heading(name: str, peers: Mapping[str, Any] | None) -> str:
    found = None if peers is None else peers.get(name)
    return name if found is None else f"{name} {found['version']}"


def _peer(name: str, figure: Figure, peers: Mapping[str, Any] | None) -> str:
    if figure.peer_path is None:
        return ""
    if peers is None:
        return NOTHING
    if peers.get(name) is None:
        return "not installed"
    value = _at(peers[name], figure.peer_path)
    return _number(value, figure.unit) + _unit(figure.unit, value)


def _at(found: Any, path: Sequence[str]) -> float | None:
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return None if found is None else float(found)


def _number(value: float | None, unit: Unit, *, exact: bool = False) -> str:
    if value is None:
        return NOTHING
    factor, form = _FORMATS[unit]
    return f"{value * factor:,g}" if exact else form.format(value * factor)


def _unit(unit: Unit, value: float | None) -> str:
    return "" if value is None else f" {unit}"
