"""A comparison of runs: differing parameters, results, order and groups. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.metrics.curves.model import ChartData
from gputui.metrics.curves.names import is_more_better, is_of_the_run
from gputui.metrics.draw.envelope import Bin
from gputui.runs.command import format_value
from gputui.ui.tui.data.run_details import launched_code, launched_params
from gputui.ui.tui.data.snapshot import RunRow
from gputui.ui.tui.layout.panels import by_interest

MOST_CURVES = 6
"""Most runs with a curve: there are as many colours."""

MOST_RUNS = 24
"""Most rows of the table; each run's curve is read, drawn or not."""

SORT_KEYS = ("chosen", "best", "last", "step", "hours")
"""Orders of every comparison; the parameters in which its runs differ follow."""

UNSET = "–"
"""The value of a parameter that a run was launched without."""


class Comparison(Struct, frozen=True):
    """The state of the page.

    Attributes:
        sort: one of `SORT_KEYS` or a parameter.
        group: the parameter that runs are grouped by.
        drawn: the runs with a curve, each at the index of its colour, None for a free colour.
        cursor: the run under the cursor.
    """

    run_ids: tuple[str, ...]
    metric: str | None = None
    sort: str = "chosen"
    is_reversed: bool = False
    group: str | None = None
    drawn: tuple[str | None, ...] = ()
    cursor: str | None = None

    @classmethod
    def of(
        cls, run_ids: Sequence[str], metric: str | None = None, colours: Mapping[str, int] = MappingProxyType({})
    ) -> Comparison:
        """A comparison in which the first `MOST_CURVES` runs have a curve, each in its own of ``colours``; if two runs
        share a colour, the later one gets the next free one."""
        drawn: list[str | None] = [None] * MOST_CURVES
        for number, run_id in enumerate(run_ids[:MOST_CURVES]):
            wanted = colours.get(run_id, number)
            drawn[next(at % MOST_CURVES for at in range(wanted, 2**31) if drawn[at % MOST_CURVES] is None)] = run_id
        return cls(tuple(run_ids), metric, drawn=tuple(drawn))

    @property
    def curve_count(self) -> int:
        return sum(run_id is not None for run_id in self.drawn)

    def sorted_next(self, params: Sequence[str] = ()) -> Comparison:
        """The comparison in the next order. ``params`` are those in which the runs differ."""
        keys = [*SORT_KEYS, *params]
        place = keys.index(self.sort) if self.sort in keys else -1
        return replace(self, sort=keys[(place + 1) % len(keys)])

    def grouped_next(self, params: Sequence[str]) -> Comparison:
        """The comparison grouped by the next of ``params``; after the last, ungrouped."""
        names = [None, *params]
        place = names.index(self.group) if self.group in names else 0
        return replace(self, group=names[(place + 1) % len(names)])

    def toggled(self, run_id: str) -> Comparison:
        """The comparison with a run's curve hidden, or shown if a colour is free."""
        drawn = [None if each == run_id else each for each in self.drawn]
        if run_id not in self.drawn and None in drawn:
            drawn[drawn.index(None)] = run_id
        return replace(self, drawn=tuple(drawn))

    def without(self, run_id: str) -> Comparison:
        left = tuple(each for each in self.run_ids if each != run_id)
        return replace(self, run_ids=left, drawn=tuple(None if each == run_id else each for each in self.drawn))


class ComparedRun(Struct, frozen=True):
    """A run in the table.

    Attributes:
        colour: the number of its curve's colour; None without a curve.
        params: as text, the parameters in which the runs differ.
        best: the best value of the metric.
        best_x: the place of the best value on the axis.
        is_best_x_exact: whether it is exactly there, or in the stretch that ends there.
        seconds: how long the run took until now.
    """

    row: RunRow
    colour: int | None
    params: Mapping[str, str] = msgspec.field(default_factory=dict)
    last: float | None = None
    best: float | None = None
    best_x: float | None = None
    is_best_x_exact: bool = True
    seconds: float | None = None

    @property
    def run_id(self) -> str:
        return self.row.run.run_id


def metric_names(data: Mapping[str, ChartData]) -> tuple[str, ...]:
    """The metrics of the runs, those of all first, both in the order of a run's page."""
    counts = Counter(name for one in data.values() for name in one.names if not is_of_the_run(name))
    most = max(counts.values(), default=0)
    common = [name for name, number in counts.items() if number == most]
    leading = [name for name in ("loss", "val/loss", "val/accuracy") if name in common]
    others = [name for name in common if name not in leading]
    return (*leading, *by_interest(others), *by_interest([name for name in counts if name not in common]))


def differing(rows: Sequence[RunRow]) -> dict[str, tuple[str, ...]]:
    """The launch parameters, and the code, in which runs differ, with the text of each run's value. Nested parameters
    are named ``outer.inner``."""
    launched = [dict(_flat(launched_params(row.run))) for row in rows]
    for row, params in zip(rows, launched, strict=True):
        if (code := launched_code(row.run)) is not None:
            params.setdefault("code", code)
    found = {}
    for name in dict.fromkeys(name for params in launched for name in params):
        values = tuple(_text(params[name]) if name in params else UNSET for params in launched)
        if len(set(values)) > 1:
            found[clean(name)] = values
    return found


def _flat(params: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in params.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _text(value: object) -> str:
    if value is None or isinstance(value, (str, int, float)):
        return clean(format_value(value)) or "empty"
    return clean(str(value))


def compare(
    rows: Sequence[RunRow], data: Mapping[str, ChartData], comparison: Comparison, now: float
) -> list[ComparedRun]:
    """The runs of the table, sorted within their groups. Unknown values come last in any order."""
    by_id = {row.run.run_id: row for row in rows}
    chosen = [by_id[run_id] for run_id in comparison.run_ids if run_id in by_id]
    params = differing(chosen)
    runs = []
    for number, row in enumerate(chosen):
        run_id, started, ended = row.run.run_id, row.run.started_at, row.run.ended_at
        curve = data[run_id].curves.get(comparison.metric or "") if run_id in data else None
        best, best_x, is_exact = _best(() if curve is None else curve.bins, comparison.metric or "")
        runs.append(
            ComparedRun(
                row,
                comparison.drawn.index(run_id) if run_id in comparison.drawn else None,
                {name: values[number] for name, values in params.items()},
                curve.last if curve is not None else None,
                best,
                best_x,
                is_exact,
                None if started is None else max(0.0, (now if ended is None else ended) - started),
            )
        )
    runs = _ordered(runs, comparison)
    values = list(dict.fromkeys(run.params.get(comparison.group or "") for run in runs))
    return sorted(runs, key=lambda run: values.index(run.params.get(comparison.group or "")))


def _best(bins: Sequence[Bin], metric: str) -> tuple[float | None, float | None, bool]:
    """The best value of a curve, its place, and whether that is exact."""
    measured = [each for each in bins if each.low is not None and each.high is not None]
    if not measured:
        return None, None, True
    if is_more_better(metric):
        found = max(measured, key=lambda each: each.high or 0.0)
        best = found.high
    else:
        found = min(measured, key=lambda each: each.low or 0.0)
        best = found.low
    if best == found.first:
        return best, found.first_x, True
    return best, found.last_x, best == found.last


def _ordered(runs: list[ComparedRun], comparison: Comparison) -> list[ComparedRun]:
    sort, is_reversed = comparison.sort, comparison.is_reversed
    if sort == "chosen":
        return runs[::-1] if is_reversed else runs
    is_metric = sort in ("best", "last")
    is_more_first = sort in ("step", "hours") or (is_metric and is_more_better(comparison.metric or ""))
    keys = {run.run_id: _sort_key(run, sort) for run in runs}
    known = [run for run in runs if keys[run.run_id] is not None]
    known.sort(key=lambda run: keys[run.run_id] or (), reverse=is_more_first != is_reversed)
    return [*known, *(run for run in runs if keys[run.run_id] is None)]


def _sort_key(run: ComparedRun, sort: str) -> tuple[bool, float, str] | None:
    """What the run is sorted by, numbers before words; None if that is unknown or not finite."""
    if sort not in SORT_KEYS:
        text = run.params.get(sort, UNSET)
        try:
            return False, float(text), ""
        except ValueError:
            return None if text == UNSET else (True, 0.0, text)
    values = {"best": run.best, "last": run.last, "step": run.row.progress.step, "hours": run.seconds}
    value = values[sort]
    return None if value is None or not math.isfinite(value) else (False, float(value), "")


def best_of(runs: Sequence[ComparedRun], metric: str) -> float | None:
    values = [run.best for run in runs if run.best is not None]
    return (max if is_more_better(metric) else min)(values, default=None)


def param_texts(runs: Sequence[ComparedRun]) -> list[str]:
    """Each parameter in which the runs differ, with its values and the runs that have each."""
    texts: list[str] = []
    for name in runs[0].params if runs else ():
        texts += [""] if texts else []
        for value in dict.fromkeys(run.params[name] for run in runs):
            who = ", ".join(clean(run.run_id) for run in runs if run.params[name] == value)
            texts.append(f"{name} {value} · {who}")
    return texts or ["These runs were launched with the same parameters."]
