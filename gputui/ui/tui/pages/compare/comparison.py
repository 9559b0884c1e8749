"""A comparison of runs: differing parameters, results, order and groups, and the table of all that. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean, clip_middle
from gputui.core.units import aligned, count, count_of, duration, parameter, short_number
from gputui.metrics.curves.model import Axis, ChartData
from gputui.metrics.curves.names import is_more_better
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.parts import Span
from gputui.metrics.draw.ticks import time_text
from gputui.ui.tui.data.run_details import launched_code, launched_params
from gputui.ui.tui.layout.charts import SHAPES
from gputui.ui.tui.layout.columns import Column
from gputui.ui.tui.layout.lists import Listing
from gputui.ui.views.metric_words import metric_words
from gputui.ui.views.run_words import run_title, state_sign
from gputui.ui.views.snapshot import RunRow
from gputui.ui.views.words import Sign

MOST_CURVES = 6
"""Most runs with a curve: there are as many colours."""

MOST_RUNS = 24
"""Most rows of the table; each run's curve is read, drawn or not."""

SORT_KEYS = ("chosen", "best", "last", "step", "hours")
"""Orders of every comparison; the parameters in which its runs differ follow."""

UNSET = "–"
"""The value of a parameter that a run was launched without."""


class Comparison(Struct, frozen=True):
    """The runs that are compared.

    Attributes:
        sort: one of `SORT_KEYS`, or a parameter.
        group: a parameter; None for no groups.
        drawn: the runs with a curve, each at the number of its colour.
    """

    run_ids: tuple[str, ...]
    sort: str = "chosen"
    is_reversed: bool = False
    group: str | None = None
    drawn: tuple[str | None, ...] = ()

    @classmethod
    def of(cls, run_ids: Sequence[str], colours: Mapping[str, int] = MappingProxyType({})) -> Comparison:
        """The first `MOST_CURVES` runs have a curve, in their ``colours`` or the next free one."""
        drawn: list[str | None] = [None] * MOST_CURVES
        for number, run_id in enumerate(run_ids[:MOST_CURVES]):
            colour = colours.get(run_id, number) % MOST_CURVES
            while drawn[colour] is not None:
                colour = (colour + 1) % MOST_CURVES
            drawn[colour] = run_id
        return cls(tuple(run_ids), drawn=tuple(drawn))

    @property
    def notes(self) -> list[str]:
        """Words on what is not as it was chosen: hidden curves, order and groups."""
        drawn = sum(run_id is not None for run_id in self.drawn)
        notes = []
        if drawn < len(self.run_ids):
            notes.append(f"{drawn} shown")
        if self.is_reversed:
            notes.append(f"sorted by {clean(self.sort)}, reversed")
        elif self.sort != "chosen":
            notes.append(f"sorted by {clean(self.sort)}")
        if self.group is not None:
            notes.append(f"grouped by {clean(self.group)}")
        return notes

    def toggle(self, run_id: str) -> Comparison:
        """The comparison with a run's curve hidden, or shown if a colour is free."""
        if run_id in self.drawn:
            return replace(self, drawn=self._drawn_without(run_id))
        drawn = list(self.drawn)
        if None in drawn:
            drawn[drawn.index(None)] = run_id
        return replace(self, drawn=tuple(drawn))

    def without(self, run_id: str) -> Comparison:
        """The comparison of the other runs."""
        others = tuple(other_id for other_id in self.run_ids if other_id != run_id)
        return replace(self, run_ids=others, drawn=self._drawn_without(run_id))

    def _drawn_without(self, run_id: str) -> tuple[str | None, ...]:
        drawn = list(self.drawn)
        if run_id in drawn:
            drawn[drawn.index(run_id)] = None
        return tuple(drawn)


class ComparedRun(Struct, frozen=True):
    """A run in the table of a comparison. What is not known is None.

    Attributes:
        sign: its state.
        colour: the number of its curve's colour; None without a curve.
        params: the parameters in which the runs differ.
        last: the newest value of the metric.
        best: the best value of the metric.
        best_x: where on the axis the best value was.
        is_best_x_exact: if not, it was in the stretch that ends there.
        seconds: how long it has trained.
        axis: the x axis of its curve.
    """

    row: RunRow
    sign: Sign
    colour: int | None
    params: Mapping[str, str] = msgspec.field(default_factory=dict)
    last: float | None = None
    best: float | None = None
    best_x: float | None = None
    is_best_x_exact: bool = True
    seconds: float | None = None
    axis: Axis = "step"

    @property
    def run_id(self) -> str:
        return self.row.run.run_id


def metric_names(data: Iterable[ChartData]) -> list[str]:
    """The metrics of the runs, those of all runs first."""
    counts = Counter(name for run_data in data for name in run_data.names)
    return sorted(counts, key=lambda name: -(counts[name] == max(counts.values())))


def parameter_differences(rows: Sequence[RunRow]) -> dict[str, tuple[str, ...]]:
    """The launch parameters (``outer.inner``) and the code in which runs differ, as texts: to the last digit only where
    fewer would not tell them apart."""
    launched = [dict(_flat_items(launched_params(row.run))) for row in rows]
    for row, params in zip(rows, launched, strict=True):
        if (code := launched_code(row.run)) is not None:
            params.setdefault("code", code)
    differences = {}
    for name in dict.fromkeys(name for params in launched for name in params):
        values = [params.get(name, UNSET) for params in launched]
        exact = tuple(_text(value, repr) for value in values)
        short = tuple(_text(value, parameter) for value in values)
        if len(set(short)) == len(set(exact)) > 1:
            differences[clean(name)] = short
        elif len(set(exact)) > 1:
            differences[clean(name)] = exact
    return differences


def _flat_items(params: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in params.items():
        if isinstance(value, Mapping) and value:
            yield from _flat_items(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _text(value: object, of_float: Callable[[float], str]) -> str:
    if isinstance(value, float):
        return of_float(value)
    return clean(parameter(value)) or "empty"


def compared_runs(
    rows: Sequence[RunRow], data: Mapping[str, ChartData], comparison: Comparison, metric: str, now: float
) -> list[ComparedRun]:
    """The runs of the table, by ``metric`` within their groups; unknown values come last."""
    by_id = {row.run.run_id: row for row in rows}
    chosen = [by_id[run_id] for run_id in comparison.run_ids if run_id in by_id]
    params = parameter_differences(chosen)
    runs = []
    for number, row in enumerate(chosen):
        run_id = row.run.run_id
        colour = comparison.drawn.index(run_id) if run_id in comparison.drawn else None
        run = ComparedRun(
            row,
            state_sign(row, now),
            colour,
            {name: values[number] for name, values in params.items()},
            seconds=row.run.trained_seconds(now),
        )
        if run_id in data:
            run = replace(run, axis=data[run_id].frame.axis)
            curve = data[run_id].curves.get(metric)
            if curve is not None:
                best, x, is_exact = _best_value(curve.bins, metric)
                run = replace(run, last=curve.last, best=best, best_x=x, is_best_x_exact=is_exact)
        runs.append(run)
    runs = _sorted_runs(runs, comparison, metric)
    values = list(dict.fromkeys(run.params.get(comparison.group or "") for run in runs))
    return sorted(runs, key=lambda run: values.index(run.params.get(comparison.group or "")))


def _best_value(bins: Sequence[Bin], metric: str) -> tuple[float | None, float | None, bool]:
    """The best value of a curve, the x that it had, and whether that is exact."""
    best: float | None = None
    best_bin: Bin | None = None
    for stretch in bins:
        if stretch.low is None or stretch.high is None:
            continue
        if is_more_better(metric):
            if best is None or stretch.high > best:
                best = stretch.high
                best_bin = stretch
        elif best is None or stretch.low < best:
            best = stretch.low
            best_bin = stretch
    if best_bin is None:
        return None, None, True
    if best == best_bin.first:
        return best, best_bin.first_x, True
    return best, best_bin.last_x, best == best_bin.last


def _sorted_runs(runs: list[ComparedRun], comparison: Comparison, metric: str) -> list[ComparedRun]:
    sort = comparison.sort
    is_reversed = comparison.is_reversed
    if sort == "chosen":
        if is_reversed:
            return runs[::-1]
        return runs
    is_more_first = sort in ("step", "hours") or (sort in ("best", "last") and is_more_better(metric))
    keys = {run.run_id: _sort_key(run, sort) for run in runs}
    ordered = [run for run in runs if keys[run.run_id] is not None]
    ordered.sort(key=lambda run: keys[run.run_id] or (), reverse=is_more_first != is_reversed)
    return [*ordered, *(run for run in runs if keys[run.run_id] is None)]


def _sort_key(run: ComparedRun, sort: str) -> tuple[bool, float, str] | None:
    """The sort key of a run, numbers before words; None if that is unknown or not finite."""
    if sort not in SORT_KEYS:
        text = run.params.get(sort, UNSET)
        try:
            return False, float(text), ""
        except ValueError:
            if text == UNSET:
                return None
            return (True, 0.0, text)
    values = {"best": run.best, "last": run.last, "step": run.row.progress.step, "hours": run.seconds}
    value = values[sort]
    if value is None or not math.isfinite(value):
        return None
    return (False, float(value), "")


def best_of(runs: Sequence[ComparedRun], metric: str) -> float | None:
    """The best value of all runs; None if nothing is measured."""
    values = [run.best for run in runs if run.best is not None]
    if is_more_better(metric):
        return max(values, default=None)
    return min(values, default=None)


def param_texts(runs: Sequence[ComparedRun]) -> list[str]:
    """Each parameter in which the runs differ, with its values and the runs that have each."""
    texts: list[str] = []
    for name in _parameter_names(runs):
        if texts:
            texts.append("")
        for value in dict.fromkeys(run.params[name] for run in runs):
            owners = ", ".join(clean(run.run_id) for run in runs if run.params[name] == value)
            texts.append(f"{name} {value} · {owners}")
    return texts or ["These runs were launched with the same parameters."]


def _parameter_names(runs: Sequence[ComparedRun]) -> Sequence[str]:
    """The parameters in which the runs differ: those of each."""
    if not runs:
        return ()
    return tuple(runs[0].params)


# --- the table


def comparison_listing(runs: Sequence[ComparedRun], group: str | None, metric: str) -> Listing[ComparedRun]:
    """A row per run, under a heading for each value of the grouping parameter."""
    sections: dict[str, Sequence[ComparedRun]] = {}
    for value, group_runs in groupby(runs, lambda run: run.params.get(group or "")):
        members = list(group_runs)
        heading = ""
        if value is not None:
            best = best_of(members, metric)
            measured = "nothing measured" if best is None else f"best {metric_words(metric, best)}"
            heading = f"{clean(group or '')} {value} · {count_of(len(members), 'run')} · {measured}"
        sections[heading] = members
    notes: list[Span] = []
    if count_differing := len(_parameter_names(runs)):
        verb = "differs" if count_differing == 1 else "differ"
        notes.append((f"{count_of(count_differing, 'parameter')} {verb}: i", "dim"))

    def base(run: ComparedRun) -> str | None:
        if run.colour is None:
            return "dim"
        return None

    return Listing(
        "RUNS",
        [*_columns(runs, metric), *_parameters(runs)],
        sections,
        lambda run: run.run_id,
        notes,
        empty="None of these runs is there any more; esc goes back.",
        base=base,
    )


def _columns(runs: Sequence[ComparedRun], metric: str) -> list[Column[ComparedRun]]:
    ids = [run.run_id for run in runs]
    leading = None
    if sum(run.best is not None for run in runs) > 1:
        leading = best_of(runs, metric)
    best_head = "MAX" if is_more_better(metric) else "MIN"
    bests = dict(zip(ids, aligned([metric_words(metric, run.best) for run in runs]), strict=True))
    lasts = dict(zip(ids, aligned([metric_words(metric, run.last) for run in runs]), strict=True))

    def mark(run: ComparedRun, _: int) -> list[Span]:
        if run.colour is None:
            return [("·", "dim")]
        return [(SHAPES[run.colour], f"series.{run.colour}")]

    def best(run: ComparedRun, _: int) -> list[Span]:
        if run.best is not None and run.best == leading:
            return [("★ ", "good"), (bests[run.run_id], "good")]
        return [(bests[run.run_id], "accent")]

    def at(run: ComparedRun, _: int) -> list[Span]:
        text = _x_text(run.best_x, run.axis)
        if run.is_best_x_exact:
            return [(text, "dim")]
        return [(f"~{text}", "dim")]

    def state(run: ComparedRun, _: int) -> list[Span]:
        return [(run.sign.word, run.sign.style)]

    return [
        Column("", 1, mark),
        Column("RUN", 16, lambda run, room: [(clip_middle(run_title(run.row.run), room), "text")], grow=2, most=40),
        Column(best_head, 10, best, ">"),
        Column("AT", 8, at, ">", importance=3),
        Column("LAST", 9, lambda run, _: [(lasts[run.run_id], "text")], ">", importance=1),
        Column("STEP", 9, lambda run, _: [(count(run.row.progress.step), "text")], ">", importance=2),
        Column("STATE", 12, state, importance=4),
        Column("TOOK", 11, lambda run, _: [(duration(run.seconds), "text")], ">", importance=5),
    ]


def _x_text(x: float | None, axis: Axis) -> str:
    """A value of the x axis as the charts name it: ``4.08k`` steps, ``12h30``."""
    if x is None or axis in ("step", "epoch"):
        return short_number(x)
    return time_text(x)


def _parameters(runs: Sequence[ComparedRun]) -> list[Column[ComparedRun]]:
    columns: list[Column[ComparedRun]] = []
    for number, name in enumerate(_parameter_names(runs)):
        texts = {run.run_id: run.params.get(name, UNSET) for run in runs}
        width = min(max(len(name), *map(len, texts.values()), 3), 18)

        def cell(run: ComparedRun, _: int, texts: Mapping[str, str] = texts) -> list[Span]:
            return [(texts[run.run_id], "text")]

        columns.append(Column(name.upper(), width, cell, ">", 3 + number))
    return columns
