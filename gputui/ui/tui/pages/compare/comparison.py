"""A comparison of runs: the parameters in which they differ, their results, their order and groups. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import metric_value
from gputui.metrics.curves.model import ChartData
from gputui.metrics.curves.names import is_more_better
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

_PARAM = "param:"
UNSET = "–"
"""The value of a parameter that a run was launched without."""


class Comparison(Struct, frozen=True):
    """The state of the page.

    Attributes:
        sort: one of `SORT_KEYS` or a parameter behind `_PARAM`.
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
            place = next(
                at % MOST_CURVES for at in range(wanted, wanted + MOST_CURVES) if drawn[at % MOST_CURVES] is None
            )
            drawn[place] = run_id
        return cls(tuple(run_ids), metric, drawn=tuple(drawn))

    @property
    def curve_count(self) -> int:
        """How many runs have a curve."""
        return sum(run_id is not None for run_id in self.drawn)

    @property
    def hidden(self) -> frozenset[str]:
        """The runs without a curve."""
        return frozenset(self.run_ids) - frozenset(self.drawn)

    def sorted_next(self, params: Sequence[str] = ()) -> Comparison:
        """The comparison in the next order. ``params`` are those in which the runs differ."""
        keys = [*SORT_KEYS, *(_PARAM + name for name in params)]
        place = keys.index(self.sort) if self.sort in keys else -1
        return replace(self, sort=keys[(place + 1) % len(keys)])

    @property
    def sort_param(self) -> str | None:
        """The parameter that the runs are sorted by."""
        return self.sort.removeprefix(_PARAM) if self.sort.startswith(_PARAM) else None

    def toggled(self, run_id: str) -> Comparison:
        """The comparison with a run's curve hidden, or shown if a colour is free."""
        if run_id in self.drawn:
            return replace(self, drawn=tuple(None if each == run_id else each for each in self.drawn))
        if None not in self.drawn:
            return self
        free = self.drawn.index(None)
        return replace(self, drawn=(*self.drawn[:free], run_id, *self.drawn[free + 1 :]))

    def without(self, run_id: str) -> Comparison:
        """The comparison without a run."""
        left = tuple(each for each in self.run_ids if each != run_id)
        return replace(self, run_ids=left, drawn=tuple(None if each == run_id else each for each in self.drawn))


class ComparedRun(Struct, frozen=True):
    """A run in the table.

    Attributes:
        colour: the number of its curve's colour; None without a curve.
        params: as text, the parameters in which the runs differ.
        best: the best value of the metric.
        best_x: the place of the best value on the axis.
        is_best_x_exact: whether it is exactly there; else it is in the stretch of the curve that ends there.
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


class Group(Struct, frozen=True):
    """Runs with the same ``value`` of the grouping parameter; None if nothing is grouped."""

    value: str | None
    runs: tuple[ComparedRun, ...]


def metric_names(data: Mapping[str, ChartData]) -> tuple[str, ...]:
    """The metrics of all runs: those that all runs have first, each part in the order of a run's page."""
    counts: dict[str, int] = {}
    for each in data.values():
        for name in each.names:
            counts[name] = counts.get(name, 0) + 1
    most = max(counts.values(), default=0)
    common = [name for name, number in counts.items() if number == most]
    leading = [name for name in ("loss", "val/loss", "val/accuracy") if name in common]
    others = [name for name in common if name not in leading]
    return (*leading, *by_interest(others), *by_interest([name for name in counts if name not in common]))


def grid_page(names: Sequence[str], metric: str | None, count: int) -> tuple[str, ...]:
    """The page of ``count`` metrics that holds ``metric``."""
    place = names.index(metric) if metric in names else 0
    start = place // max(1, count) * max(1, count)
    return tuple(names[start : start + max(1, count)])


def differing(rows: Sequence[RunRow]) -> dict[str, tuple[str | None, ...]]:
    """The launch parameters, and the code, in which runs differ, with the text of each run's value; None for a run
    without it. Nested parameters are named ``outer.inner``."""
    launched = [dict(_flat(launched_params(row.run))) for row in rows]
    for row, params in zip(rows, launched, strict=True):
        if (code := launched_code(row.run)) is not None:
            params.setdefault("code", code)
    names = dict.fromkeys(name for params in launched for name in params)
    found = {}
    for name in names:
        values = tuple(_text(params[name]) if name in params else None for params in launched)
        if len(set(values)) > 1:
            found[clean(name)] = values
    return found


def compare(rows: Sequence[RunRow], data: Mapping[str, ChartData], comparison: Comparison, now: float) -> list[Group]:
    """The table: sorted runs in groups. Unknown values come last in any order."""
    by_id = {row.run.run_id: row for row in rows}
    chosen = [by_id[run_id] for run_id in comparison.run_ids if run_id in by_id]
    params = differing(chosen)
    runs = []
    for number, row in enumerate(chosen):
        run_id = row.run.run_id
        own = {name: values[number] or UNSET for name, values in params.items()}
        curve = None
        if comparison.metric is not None and run_id in data:
            curve = data[run_id].curves.get(comparison.metric)
        is_more = curve is not None and is_more_better(curve.name)
        best, best_x, is_exact = _best(() if curve is None else curve.bins, is_more=is_more)
        started, ended = row.run.started_at, row.run.ended_at
        runs.append(
            ComparedRun(
                row,
                comparison.drawn.index(run_id) if run_id in comparison.drawn else None,
                own,
                curve.last if curve is not None else None,
                best,
                best_x,
                is_exact,
                None if started is None else max(0.0, (now if ended is None else ended) - started),
            )
        )
    runs = _ordered(runs, comparison)
    if comparison.group is None or comparison.group not in params:
        return [Group(None, tuple(runs))]
    values = dict.fromkeys(run.params[comparison.group] for run in runs)
    return [Group(value, tuple(run for run in runs if run.params[comparison.group] == value)) for value in values]


def group_next(comparison: Comparison, rows: Sequence[RunRow]) -> Comparison:
    """The comparison grouped by the next parameter in which the runs differ; after the last, ungrouped."""
    by_id = {row.run.run_id: row for row in rows}
    names = list(differing([by_id[run_id] for run_id in comparison.run_ids if run_id in by_id]))
    if comparison.group not in names:
        return replace(comparison, group=names[0] if names else None)
    place = names.index(comparison.group) + 1
    return replace(comparison, group=names[place] if place < len(names) else None)


def param_texts(rows: Sequence[RunRow], comparison: Comparison) -> list[str]:
    """Each parameter in which the runs differ, with its values and the runs that have each."""
    by_id = {row.run.run_id: row for row in rows}
    chosen = [run_id for run_id in comparison.run_ids if run_id in by_id]
    texts: list[str] = []
    for name, values in differing([by_id[run_id] for run_id in chosen]).items():
        texts += [""] if texts else []
        for value in dict.fromkeys(values):
            who = [clean(run_id) for run_id, own in zip(chosen, values, strict=True) if own == value]
            texts.append(f"{name} {value or UNSET} · {', '.join(who)}")
    return texts or ["These runs were launched with the same parameters."]


def best_of(groups: Sequence[Group], metric: str) -> float | None:
    """The best value of all runs; None if fewer than two runs have one."""
    values = [run.best for group in groups for run in group.runs if run.best is not None]
    if len(values) < 2:
        return None
    return max(values) if is_more_better(metric) else min(values)


def in_order(groups: Sequence[Group]) -> list[ComparedRun]:
    """The runs of all groups."""
    return [run for group in groups for run in group.runs]


def best_words(groups: Sequence[Group], metric: str) -> str:
    """The best value of the groups in words: "best 0.31"."""
    values = [run.best for group in groups for run in group.runs if run.best is not None]
    if not values:
        return "nothing measured"
    return f"best {metric_value(max(values) if is_more_better(metric) else min(values))}"


def _ordered(runs: list[ComparedRun], comparison: Comparison) -> list[ComparedRun]:
    sort = comparison.sort
    if sort == "chosen":
        return runs[::-1] if comparison.is_reversed else runs
    if comparison.sort_param is not None:
        return _by_param(runs, comparison.sort_param, is_reversed=comparison.is_reversed)
    more_first = comparison.metric is not None and is_more_better(comparison.metric)
    if sort in ("step", "hours"):
        more_first = True
    keys: dict[str, float | None] = {}
    for run in runs:
        step = run.row.progress.step
        keys[run.row.run.run_id] = {
            "best": run.best, "last": run.last, "step": None if step is None else float(step), "hours": run.seconds,
        }[sort]  # fmt: skip
    known = [run for run in runs if _is_finite(keys[run.row.run.run_id])]
    rest = [run for run in runs if not _is_finite(keys[run.row.run.run_id])]
    known.sort(key=lambda run: keys[run.row.run.run_id] or 0.0, reverse=more_first != comparison.is_reversed)
    return [*known, *rest]


def _by_param(runs: list[ComparedRun], name: str, *, is_reversed: bool) -> list[ComparedRun]:
    """Sort by a parameter: numbers before words, runs without it last."""

    def key(run: ComparedRun) -> tuple[bool, float, str]:
        text = run.params[name]
        try:
            return False, float(text), ""
        except ValueError:
            return True, 0.0, text

    known = [run for run in runs if run.params.get(name, UNSET) != UNSET]
    rest = [run for run in runs if run.params.get(name, UNSET) == UNSET]
    return [*sorted(known, key=key, reverse=is_reversed), *rest]


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _best(bins: Sequence[Bin], *, is_more: bool) -> tuple[float | None, float | None, bool]:
    """The best value of a curve, its place, and whether that is exact."""
    best: float | None = None
    found: Bin | None = None
    for stretch in bins:
        value = stretch.high if is_more else stretch.low
        if value is not None and (best is None or (value > best if is_more else value < best)):
            best, found = value, stretch
    if found is None:
        return None, None, True
    if best == found.first:
        return best, found.first_x, True
    return best, found.last_x, best == found.last


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
