"""What keys do to the charts of a run's page."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal, get_args

from gputui.tui.actions import Context
from gputui.tui.data.snapshot import Moment
from gputui.tui.layout.chart_settings import ChartMemory, ChartSettings
from gputui.tui.pages.run import chart_files
from gputui.tui.pages.run.chart_pane import RunCharts
from gputui.tui.widgets.page import ActionScreen

WIDE = 120
"""From this width on all sections stand side by side."""

Section = Literal["charts", "ranks", "log", "story", "params"]
SECTIONS: tuple[Section, ...] = get_args(Section)


class RunChartKeys(ActionScreen):
    """The page of one run as far as keys change its charts."""

    def __init__(self, run_id: str, memory: ChartMemory) -> None:
        super().__init__()
        self.run_id = run_id
        self.charts = RunCharts(memory.of(run_id))
        self.section: Section = "charts"
        self._memory = memory

    def context(self) -> Context:
        return replace(super().context(), section=self.section)

    def _keep_charts(self) -> None:
        self._memory.keep(self.run_id, self.charts.settings)

    def _set_charts(self, settings: ChartSettings) -> None:
        self.section = "charts"
        self.charts.settings = settings
        self._keep_charts()

    def do_smoothing_next(self) -> None:
        self._set_charts(self.charts.settings.with_smoothing(1))

    def do_smoothing_previous(self) -> None:
        self._set_charts(self.charts.settings.with_smoothing(-1))

    def do_log_axis(self) -> None:
        focus = self.charts.focus
        if focus is not None:
            self._set_charts(self.charts.settings.with_log(focus.key))

    def do_x_axis(self) -> None:
        self.charts.turn_axis()
        self._set_charts(self.charts.settings)

    def do_log_x_axis(self) -> None:
        self.charts.turn_log_x()
        self._set_charts(self.charts.settings)

    def do_by_rank(self) -> None:
        why_not = self.charts.why_not_by_rank(self.rank_count)
        if why_not is not None:
            self.shell.say(why_not)
        elif (focus := self.charts.focus) is not None:
            self._set_charts(self.charts.settings.with_ranks(focus.key))

    @property
    def rank_count(self) -> int:
        """How many ranks of the run have told anything."""
        raise NotImplementedError

    def do_layout(self) -> None:
        self._set_charts(self.charts.settings.with_next_layout())

    def do_pin(self) -> None:
        focus = self.charts.focus
        if focus is not None:
            self._set_charts(self.charts.settings.with_pin(focus.key))

    def do_cursor_left(self) -> None:
        self.charts.move_cursor(-1)

    def do_cursor_right(self) -> None:
        self.charts.move_cursor(1)

    def do_marker_previous(self) -> None:
        self.charts.move_to_marker(-1)

    def do_marker_next(self) -> None:
        self.charts.move_to_marker(1)

    def do_time_type(self) -> None:
        """With the crosshair on, its moment is the one that is meant."""
        at = self.charts.cursor_at
        if at is None:
            self.shell.type_moment()
        else:
            self.shell.look_back(Moment(at))

    def do_pan_left(self) -> None:
        self.charts.pan(-1)

    def do_pan_right(self) -> None:
        self.charts.pan(1)

    def do_zoom_in(self) -> None:
        self.charts.zoom(1)

    def do_zoom_out(self) -> None:
        self.charts.zoom(-1)

    def do_zoom_all(self) -> None:
        self.charts.zoom(0)

    def do_export(self) -> None:
        file = self.charts.file(self.shell.workspace.run_dir(self.run_id), self.run_id)
        if file is None:
            self.shell.say("There is no chart to write yet.", "warning")
        else:
            self.shell.work(partial(chart_files.write, file), "The chart cannot be written")
