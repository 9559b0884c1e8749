"""The page that compares runs: charts with a curve per run, and a table of differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partialmethod
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.widget import Widget

from gputui.core.units import count_of
from gputui.metrics.curves.model import ChartData
from gputui.metrics.draw.parts import Span
from gputui.ui.tui.actions import Scope
from gputui.ui.tui.dialogs.sheet import DiffScreen, SheetScreen
from gputui.ui.tui.layout.chart_settings import SMOOTHINGS, ChartView
from gputui.ui.tui.layout.charts import ChartedRun, ChartLook
from gputui.ui.tui.layout.columns import is_boxed
from gputui.ui.tui.layout.lists import Listing, ListState, next_choice
from gputui.ui.tui.pages.compare.comparison import (
    MOST_CURVES,
    SORT_KEYS,
    ComparedRun,
    Comparison,
    compared_runs,
    comparison_listing,
    metric_names,
    param_texts,
)
from gputui.ui.tui.widgets.chart_pane import Charts
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.list_page import ListingPage
from gputui.ui.tui.widgets.pane import Pane
from gputui.ui.views.metric_words import metric_heading
from gputui.ui.views.run_words import run_colour, run_title
from gputui.ui.views.snapshot import Interest

LEAST_TABLE_ROWS = 4


class CompareScreen(ListingPage[ComparedRun]):
    """Charts, and a table of runs; the curve of the run under the cursor is on top."""

    SCOPE: ClassVar[Scope] = "compare"

    def __init__(self, run_ids: Sequence[str], view: ChartView | None = None) -> None:
        super().__init__(ListState())
        view = view or ChartView()
        # Several raw curves over each other are illegible.
        view = replace(view, smoothing=view.smoothing or SMOOTHINGS[1])
        self.charts = Charts(view, lambda _: None, lambda text: self.shell.say(text))
        self.parts = (self.charts,)
        self.list = Pane(id="runs")
        self.body = (self.charts.pane, self.list)
        self.comparison = Comparison.of(run_ids)
        self._has_colours = False

    def interest(self) -> Interest:
        return Interest(compared=self.comparison.run_ids, charts=self.charts.request)

    def show_runs(self, run_ids: Sequence[str], cursor: str | None) -> None:
        """Move the cursor to a run; if it is not compared yet, compare ``run_ids`` instead."""
        if cursor is not None and cursor not in self.comparison.run_ids:
            self.comparison = Comparison.of(run_ids)
            self._has_colours = False
        if cursor is not None:
            self.point_at(cursor)

    # --- the table

    @property
    def _data(self) -> Mapping[str, ChartData]:
        compared = self.snapshot.compared
        return {run_id: compared[run_id] for run_id in self.comparison.run_ids if run_id in compared}

    def make_listing(self) -> Listing[ComparedRun]:
        metric = self.charts.focused_key or ""
        runs = compared_runs(self.snapshot.runs, self._data, self.comparison, metric, self.snapshot.at)
        return comparison_listing(runs, self.comparison.group, metric)

    def run_id_of(self, row: ComparedRun) -> str:
        return row.run_id

    @property
    def _params(self) -> tuple[str, ...]:
        return next((tuple(run.params) for run in self.listing.rows), ())

    def summary(self) -> list[Span]:
        runs = count_of(len(self.comparison.run_ids), "run")
        metric = metric_heading(self.charts.focused_key or "–")
        return [(f" · {runs} · {metric}", "text"), *((f" · {note}", "accent") for note in self.comparison.notes)]

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        body = max(0, height - 1 - self.draw_frame(width))
        charts = self.charts
        data = self._data
        run_ids = self.comparison.run_ids
        by_id = {row.run.run_id: row.run for row in self.snapshot.runs if row.run.run_id in run_ids}
        if by_id and not self._has_colours:
            self._has_colours = True
            self.comparison = Comparison.of(run_ids, {run_id: run_colour(run) for run_id, run in by_id.items()})
        charts.choose(metric_names(data.values()))
        self._made = None
        self.keep_cursor()
        self.show_head(width)
        is_framed = is_boxed(width, height)
        rows = min(len(self.listing.items) + self.listing.head_lines + is_framed, body // 2)
        rows = min(body, max(LEAST_TABLE_ROWS, rows))
        runs = tuple(
            ChartedRun(data[run_id], run_title(by_id[run_id]), colour, run_id == self.table.cursor)
            for colour, run_id in enumerate(self.comparison.drawn)
            if run_id in data and run_id in by_id
        )
        charts.draw(ChartLook(charts.view, runs), (width, body - rows), is_framed=is_framed)
        self.list.draw(lambda: self.list_lines(width, rows), height=rows)

    # --- keys

    def do_back(self) -> None:
        if not self.charts.clear():
            self.app.pop_screen()

    def do_hide(self) -> None:
        if (run := self.run_in_question) is not None:
            before = self.comparison
            self.comparison = self.comparison.toggle(run.run_id)
            if self.comparison == before:
                self.shell.say(f"{MOST_CURVES} curves is the limit: there are no more colours; hide one first.")

    def do_leave_out(self) -> None:
        run = self.run_in_question
        if run is not None and len(self.comparison.run_ids) > 1:
            self.comparison = self.comparison.without(run.run_id)

    def do_sort(self) -> None:
        order = next_choice([*SORT_KEYS, *self._params], self.comparison.sort)
        self.comparison = replace(self.comparison, sort=order)

    def do_reverse(self) -> None:
        self.comparison = replace(self.comparison, is_reversed=not self.comparison.is_reversed)

    def do_params(self) -> None:
        """Show all parameters in which the runs differ; a narrow table leaves some out."""
        self.app.push_screen(SheetScreen("Parameters that differ", param_texts(self.listing.rows)))

    def do_code(self) -> None:
        """Show how the code of the run under the cursor differs from the first other run's."""
        run = self.run_in_question
        others = [run_id for run_id in self.comparison.run_ids if run is not None and run_id != run.run_id]
        if run is None or not others:
            self.shell.say("There is no other run to compare its code with.")
            return
        runs = self.shell.workspace.runs
        run_id = run.run_id

        def work() -> str | tuple[str, ...]:
            from gputui.runs.code_diff import CodeUnknownError, run_code_diff
            from gputui.runs.spec import SpecError

            try:
                return tuple(run_code_diff(runs, others[0], run_id))
            except (CodeUnknownError, SpecError) as error:
                return str(error)

        def take(diff: str | tuple[str, ...]) -> None:
            if isinstance(diff, str):
                self.shell.say(diff, "warning")
            else:
                self.shell.say("")
                self.app.push_screen(DiffScreen("Code", diff))

        self.shell.say("Comparing the code…")
        self.in_thread(work, take)

    def do_group(self) -> None:
        if not self._params:
            self.shell.say("These runs were launched with the same parameters.")
        self.comparison = replace(self.comparison, group=next_choice([None, *self._params], self.comparison.group))

    def do_cut(self) -> None:
        """End the x axis with the shortest run, or with the longest again."""
        self.charts.show(self.charts.view.rescaled(is_cut=not self.charts.view.is_cut))

    def _step_metric(self, by: int) -> None:
        if (key := self.charts.focused_key) is not None:
            self.charts.change(focus=next_choice(self.charts.keys, key, by))

    do_metric_next = partialmethod(_step_metric, 1)
    do_metric_previous = partialmethod(_step_metric, -1)

    # --- the filter of the charts

    def do_find(self) -> None:
        self.charts.edit = LineEdit.at_end(self.charts.view.filter_text)

    @property
    def line(self) -> LineEdit | None:
        return self.charts.edit

    def type_line(self, line: LineEdit | None, text: str) -> None:
        self.charts.filter_to(line, text)

    # --- the mouse

    def wheel(self, pane: Widget | None, by: int) -> None:
        if pane is self.list:
            self.move(by)
        elif pane is self.charts.pane:
            self.charts.zoom(-by)
            self.changed()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked run, which a double click opens, or the crosshair."""
        if event.widget is self.charts.pane:
            self.charts.click(event.x, event.y)
            self.changed()
        else:
            super().on_click(event)
