"""Several runs beside each other: what they differ in, how well each did, in what order and groups. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gputui.charts.envelope import Bin
from gputui.charts.safe_text import clean
from gputui.charts.units import metric_value
from gputui.curves.metric_names import is_more_better
from gputui.curves.model import ChartData
from gputui.runs.command import format_value
from gputui.tui.data.run_details import launched_code, launched_params
from gputui.tui.data.snapshot import RunRow
from gputui.tui.layout.panels import by_interest

MOST_CURVES = 6
"""There are as many colours; more curves would look alike."""

MOST_RUNS = 24
"""Rows of the table; each run's curve is read, drawn or not."""

SORT_KEYS = ("chosen", "best", "last", "step", "hours")
"""Orders that every comparison has; behind them come the parameters in which its runs differ."""


_PARAM = "param:"
UNSET = "–"
"""Stands for a parameter that a run was launched without."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the page is looked at. ``drawn`` are the runs that have a curve, each at the place of its colour, None where
    a colour is free; the others stay in the table. ``group`` is a parameter's name; the ``cursor`` is on a run,
    whatever the order."""

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
        """The first runs have curves, as many as there are colours. Each has its own of ``colours``, wherever it is
        compared; where two share one, the later has the next that is free."""
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
        """The next order; ``params`` are those in which the runs differ."""
        keys = [*SORT_KEYS, *(_PARAM + name for name in params)]
        place = keys.index(self.sort) if self.sort in keys else -1
        return replace(self, sort=keys[(place + 1) % len(keys)])

    @property
    def sort_param(self) -> str | None:
        """The parameter that the runs are sorted by."""
        return self.sort.removeprefix(_PARAM) if self.sort.startswith(_PARAM) else None

    def toggled(self, run_id: str) -> Comparison:
        """A run's curve hidden, or shown in a colour that is free; where none is, nothing changes."""
        if run_id in self.drawn:
            return replace(self, drawn=tuple(None if each == run_id else each for each in self.drawn))
        if None not in self.drawn:
            return self
        free = self.drawn.index(None)
        return replace(self, drawn=(*self.drawn[:free], run_id, *self.drawn[free + 1 :]))

    def without(self, run_id: str) -> Comparison:
        """One run less."""
        left = tuple(each for each in self.run_ids if each != run_id)
        return replace(self, run_ids=left, drawn=tuple(None if each == run_id else each for each in self.drawn))


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run in the table. ``colour`` is its curve's, whatever the order, None where it has none; ``params`` are those
    in which the runs differ, as text; ``best`` is the best value of the metric and ``best_x`` where on the axis it was.
    ``seconds`` is how long the run took until now."""

    row: RunRow
    colour: int | None
    params: Mapping[str, str] = field(default_factory=dict)
    last: float | None = None
    best: float | None = None
    best_x: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that have one parameter in common; ``value`` is None where nothing is grouped."""

    value: str | None
    runs: tuple[ComparedRun, ...]


def metric_names(data: Mapping[str, ChartData]) -> tuple[str, ...]:
    """What any of the runs measured: what all of them have first, each kind as the page of a run has its charts."""
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
    """The metrics of the grid: the page of ``count`` on which ``metric`` is."""
    place = names.index(metric) if metric in names else 0
    start = place // max(1, count) * max(1, count)
    return tuple(names[start : start + max(1, count)])


def differing(rows: Sequence[RunRow]) -> dict[str, tuple[str | None, ...]]:
    """The launch parameters in which runs differ, and their code, each with its value per run as text; None where a run
    has none. Those within others are named with a dot between."""
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
    """The table: runs in order, in groups. Unknown values come last, whatever the order."""
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
        best, best_x = _best(curve.bins, is_more_better(curve.name)) if curve is not None else (None, None)
        started, ended = row.run.started_at, row.run.ended_at
        runs.append(
            ComparedRun(
                row,
                comparison.drawn.index(run_id) if run_id in comparison.drawn else None,
                own,
                curve.last if curve is not None else None,
                best,
                best_x,
                None if started is None else max(0.0, (now if ended is None else ended) - started),
            )
        )
    runs = _ordered(runs, comparison)
    if comparison.group is None or comparison.group not in params:
        return [Group(None, tuple(runs))]
    values = dict.fromkeys(run.params[comparison.group] for run in runs)
    return [Group(value, tuple(run for run in runs if run.params[comparison.group] == value)) for value in values]


def group_next(comparison: Comparison, rows: Sequence[RunRow]) -> Comparison:
    """Grouped by the next parameter in which the runs differ; after the last, not at all."""
    by_id = {row.run.run_id: row for row in rows}
    names = list(differing([by_id[run_id] for run_id in comparison.run_ids if run_id in by_id]))
    if comparison.group not in names:
        return replace(comparison, group=names[0] if names else None)
    place = names.index(comparison.group) + 1
    return replace(comparison, group=names[place] if place < len(names) else None)


def param_texts(rows: Sequence[RunRow], comparison: Comparison) -> list[str]:
    """Every parameter in which the runs differ: its values, and the runs that have each."""
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
    """The best value of all; None where fewer than two runs have one, and nothing is better than anything."""
    values = [run.best for group in groups for run in group.runs if run.best is not None]
    if len(values) < 2:
        return None
    return max(values) if is_more_better(metric) else min(values)


def in_order(groups: Sequence[Group]) -> list[ComparedRun]:
    """All runs below each other."""
    return [run for group in groups for run in group.runs]


def best_words(groups: Sequence[Group], metric: str) -> str:
    """The best value of a group in words: "best 0.31"."""
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
    """Numbers by their size, before words; runs without the parameter last."""

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


def _best(bins: Sequence[Bin], is_more: bool) -> tuple[float | None, float | None]:
    """The extreme of a curve and where it was."""
    best: float | None = None
    place: float | None = None
    for each in bins:
        value = each.high if is_more else each.low
        if value is not None and (best is None or (value > best if is_more else value < best)):
            best, place = value, each.last_x
    return best, place


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
