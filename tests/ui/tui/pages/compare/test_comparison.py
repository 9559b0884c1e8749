"""The comparison of runs as values: what differs, what was best, order and groups."""

from __future__ import annotations

import json

from msgspec.structs import replace

from gputui.metrics.curves.model import ChartData, ChartRequest, Frame, MetricCurve
from gputui.metrics.curves.names import is_more_better
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.ticks import time_text
from gputui.metrics.progress import Progress
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.ui.tui.layout.chart_settings import ChartView
from gputui.ui.tui.layout.charts import ChartedRun, ChartLook, panel_curves, panel_lines
from gputui.ui.tui.layout.panels import Panel, choose_panels
from gputui.ui.tui.pages.compare.comparison import (
    ComparedRun,
    Comparison,
    best_of,
    compared_runs,
    comparison_listing,
    metric_names,
    param_texts,
    parameter_differences,
)
from gputui.ui.views.metric_words import metric_words
from gputui.ui.views.snapshot import RunRow


def row(run_id: str, step: int | None = None, started_at: float | None = 100.0, **params: object) -> RunRow:
    run = Run(
        run_id=run_id, sequence=1, name=run_id, profile="p", state=RunState.RUNNING, attempt=1, params=params,
        spec_json=json.dumps({"params": params}), created_at=0.0, started_at=started_at, attempt_state="running",
        attempt_started_at=started_at,
    )  # fmt: skip
    return RunRow(run, Progress(step=step))


def measured(name: str, *values: float, names: tuple[str, ...] = ()) -> ChartData:
    bins = []
    for x, value in enumerate(values):
        column = Bin(float(x), float(x))
        column.add(float(x), value)
        bins.append(column)
    last = values[-1] if values else None
    curve = MetricCurve(name, tuple(bins), last=last)
    return ChartData(ChartRequest((name,)), Frame("step"), names or (name,), {name: curve})


ROWS = [
    row("a", 10, lr=0.1, batch=64, note=None),
    row("b", 30, lr=0.01, batch=64, note=None),
    row("c", None, lr=0.1, batch=32, note=None, extra=True),
]
DATA = {"a": measured("loss", 3.0, 0.5, 1.0), "b": measured("loss", 2.0, 1.5, 0.9), "c": measured("loss")}
ALL = Comparison.of(("a", "b", "c"))


def compared(comparison: Comparison, rows: list[RunRow] = ROWS) -> list[ComparedRun]:
    return compared_runs(rows, DATA, comparison, "loss", 200.0)


def ids(comparison: Comparison) -> list[str]:
    return [run.run_id for run in compared(comparison)]


def test_only_what_differs_is_told() -> None:
    assert parameter_differences(ROWS) == {
        "lr": ("0.1", "0.01", "0.1"), "batch": ("64", "64", "32"), "extra": ("–", "–", "true"),
    }  # fmt: skip
    assert parameter_differences(ROWS[:1]) == {}
    nested = [row("a", model={"depth": 2, "width": 8}, data={}), row("b", model={"depth": 4, "width": 8}, data={})]
    assert parameter_differences(nested) == {"model.depth": ("2", "4")}

    def with_code(row: RunRow, commit: str) -> RunRow:
        spec = json.loads(row.run.spec_json) | {"code": {"commit": commit * 8, "branch": "main", "changed_files": 1}}
        return replace(row, run=replace(row.run, spec_json=json.dumps(spec)))

    rows = [with_code(ROWS[0], "a1"), with_code(ROWS[2], "b2")]
    assert [difference.split()[0] for difference in parameter_differences(rows)["code"]] == ["a1a1a1a1", "b2b2b2b2"]
    assert "code" not in parameter_differences([with_code(ROWS[0], "a1"), with_code(ROWS[2], "a1")])


def test_the_best_value_and_where_it_was() -> None:
    first, second, third = runs = compared(ALL)
    assert (first.best, first.best_x, first.last, first.seconds) == (0.5, 1.0, 1.0, 100.0)
    assert (second.best, second.best_x) == (0.9, 2.0)
    assert (third.best, third.last) == (None, None)
    assert third.params == {"lr": "0.1", "batch": "32", "extra": "true"}
    assert first.params["extra"] == "–"
    assert best_of(runs, "loss") == 0.5
    assert best_of((), "loss") is None
    assert param_texts(runs)[:3] == ["lr 0.1 · a, c", "lr 0.01 · b", ""]


def test_a_run_took_as_long_as_its_attempts() -> None:
    """As in all lists, without the time between them."""
    over = replace(ROWS[0].run, state=RunState.FAILED, ended_at=213.0, ended_seconds=110.0)
    (run,) = compared_runs([replace(ROWS[0], run=over)], DATA, Comparison((over.run_id,)), "loss", 900.0)
    assert run.seconds == 110.0


def test_orders_with_what_is_unknown_last_and_colours_kept() -> None:
    orders = {"chosen": "abc", "best": "abc", "last": "bac", "step": "bac", "hours": "abc"}
    assert {sort: "".join(ids(replace(ALL, sort=sort))) for sort in orders} == orders
    assert ids(replace(ALL, sort="best", is_reversed=True)) == ["b", "a", "c"]
    assert ids(replace(ALL, is_reversed=True)) == ["c", "b", "a"]
    for sort in orders:
        runs = compared(replace(ALL, sort=sort))
        assert {run.run_id: run.colour for run in runs} == {"a": 0, "b": 1, "c": 2}, sort


def test_groups_have_a_heading_with_their_best_value() -> None:
    items = comparison_listing(compared(replace(ALL, group="lr")), "lr", "loss").items
    assert [row.run_id if row else heading for heading, row in items] == [
        "lr 0.1 · 2 runs · best 0.5", "a", "c", "lr 0.01 · 1 run · best 0.9", "b",
    ]  # fmt: skip


def test_as_many_curves_as_colours_and_all_runs_in_the_table() -> None:
    names = [f"run-{number}" for number in range(9)]
    comparison = Comparison.of(names)
    assert comparison.drawn == tuple(names[:6])
    assert comparison.notes == ["6 shown"]
    assert comparison.toggle("run-8") == comparison  # no colour is free
    changed = comparison.toggle("run-2").toggle("run-8")
    assert changed.drawn[2] == "run-8"
    assert "run-2" not in changed.drawn
    assert changed.without("run-8").toggle("run-2") == replace(comparison, run_ids=tuple(names[:8]))
    colours = [run.colour for run in compared(changed, [row(name) for name in names])]
    assert colours == [0, 1, None, 3, 4, 5, None, None, 2]


def test_where_more_is_better() -> None:
    more = ["val/accuracy", "samples_per_s", "F1", "eval_bleu", "mfu"]
    less = ["loss", "val/loss", "perplexity", "step_time", "grad_norm", "word_error", "mapping"]
    assert [name for name in more + less if is_more_better(name)] == more


def test_what_all_runs_measured_comes_first() -> None:
    data = [measured("loss", names=("lr", "own", "loss")), measured("loss", names=("lr", "loss", "val/loss"))]
    assert metric_names(data) == ["lr", "loss", "own", "val/loss"]


def test_the_place_of_the_best_is_named_as_on_the_axis() -> None:
    places = {"step": "~45k", "epoch": "~45k", "time": "~12h30", "trained": "~12h30"}
    for axis, text in places.items():
        run = replace(compared(ALL)[0], best_x=45_012.0, is_best_x_exact=False, axis=axis)
        [at] = [
            column for column in comparison_listing([run], group=None, metric="loss").columns if column.head == "AT"
        ]
        assert "".join(piece for piece, _ in at.cell(run, at.width)) == text
    assert [time_text(seconds) for seconds in (0.4, 59.0, 303.0, 3600.0, 400_000.0)] == [
        "0", "59s", "5:03", "1h", "111h07",
    ]  # fmt: skip


def test_a_stretch_knows_only_its_ends_exactly() -> None:
    bests = {}
    for values in ((0.5, 2.0, 1.0), (2.0, 1.0, 0.5), (2.0, 0.5, 1.0)):
        stretch = Bin(0.0, 0.0)
        for x, value in enumerate(values):
            stretch.add(float(x), value)
        data = ChartData(ChartRequest(("loss",)), Frame("step"), ("loss",), {"loss": MetricCurve("loss", (stretch,))})
        [run] = compared_runs(ROWS[:1], {"a": data}, Comparison.of(("a",)), "loss", 200.0)
        bests[values] = run.best, run.best_x, run.is_best_x_exact
    assert list(bests.values()) == [(0.5, 0.0, True), (0.5, 2.0, True), (0.5, 2.0, False)]


def test_bytes_are_gibibytes_in_the_title_at_the_axis_and_in_the_table() -> None:
    data = measured("gpu_mem_peak", 2.0**34, 1.5 * 2.0**34, 2.0**35)
    (panel,) = choose_panels(["gpu_mem_peak"], (), ChartView()).chosen
    legend, *plot = panel_lines(panel, ChartLook(ChartView(), (ChartedRun(data),), window=(0.0, 2.0)), 60, 8)
    assert "".join(text for text, _ in legend).split() == ["GPU", "memory", "peak", "GiB", "32"]
    assert {"".join(text for text, _ in line).split()[0] for line in plot} >= {"0", "20"}
    assert metric_words("gpu_mem_peak", 2.0**34) == "16.0"
    assert metric_words("loss", 2.5) == "2.5"


def test_the_label_at_a_curves_end_says_what_the_curve_shows() -> None:
    raw = measured("loss", 9.0, 5.0, 1.0)
    average = measured("loss", 9.0, 7.0, 5.0).curves["loss"]
    smoothed = replace(raw, curves={"loss": replace(raw.curves["loss"], smooth=average.bins)})
    look = ChartLook(ChartView(), (ChartedRun(smoothed, "a-1"), ChartedRun(raw, "b-1", 1)), window=(0.0, 2.0))
    panel = Panel("loss", "loss", 0)
    ends = [curve.end for curve in panel_curves(panel, look, 80, 12) if curve.end]
    assert ends == ["● a-1 ~5", "■ b-1 1"]
    cut = [curve.end for curve in panel_curves(panel, replace(look, window=(0.0, 1.0)), 80, 12) if curve.end]
    assert cut == ["● a-1 ~7", "■ b-1 5"], "where the charts end before the newest value"
