"""The charts of a run's page or of a comparison: their actions, their pane, and their request to the feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, partialmethod
from typing import Any

from msgspec.structs import replace

from gputui.metrics.curves.model import AXES, Axis, ChartRequest
from gputui.metrics.curves.names import filter_names
from gputui.metrics.draw.parts import Line, Span
from gputui.metrics.draw.viewport import Extent, Viewport, next_point
from gputui.store.metrics.roles import NO_ROLES, MetricRoles
from gputui.ui.tui.layout import charts
from gputui.ui.tui.layout.chart_settings import LAYOUTS, SMOOTHINGS, ChartView
from gputui.ui.tui.layout.charts import ChartLook
from gputui.ui.tui.layout.columns import draw_panel
from gputui.ui.tui.layout.drawn_charts import AT_CROSSHAIR, DrawnCharts
from gputui.ui.tui.layout.lists import index_of, next_choice
from gputui.ui.tui.layout.panels import (
    LEAST_NAMED_WIDTH,
    LEAST_WIDTH,
    ChosenPanels,
    Panel,
    PanelRect,
    choose_panels,
    panel_rects,
)
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import SlowPane
from gputui.ui.views.metric_words import USUAL

WHOLE = "The charts show the whole run; + zooms in."


class Charts:
    """The charts of a page, and the actions that change them.

    Attributes:
        view: the settings of the charts, of which ``keep`` is told.
        edit: the filter that is being typed.
        is_maximised: whether only one chart is shown.
        drawn: the charts in sight.
        request: what the charts need from the feed.
        _chosen: the charts that match the filter.
        _left_axes: viewport and crosshair on the axes that were shown before.
    """

    def __init__(self, view: ChartView, keep: Callable[[ChartView], object], say: Callable[[str], object]) -> None:
        self.view = view
        self.pane = SlowPane(id="charts")
        self.edit: LineEdit | None = None
        self.is_maximised = False
        self.drawn = DrawnCharts(ChartLook(view))
        self.request = ChartRequest(USUAL, view.axis, smoothing=view.smoothing, hardware=("utilization",))
        self._keep = keep
        self._say = say
        self._chosen = ChosenPanels()
        self._left_axes: dict[Axis, tuple[Viewport, float | None]] = {}

    @property
    def look(self) -> ChartLook:
        """What the charts were drawn from."""
        return self.drawn.look

    def change(self, **changes: Any) -> None:
        """Change the view."""
        self.show(replace(self.view, **changes))

    def show(self, view: ChartView) -> None:
        """Show another view."""
        self.view = view
        self._keep(view)

    # --- drawing

    def choose(self, names: Sequence[str], hardware: Sequence[str] = (), roles: MetricRoles = NO_ROLES) -> None:
        """Choose the charts among these metrics, of which some have ``roles``, and charts of the hardware."""
        self._chosen = choose_panels(names, hardware, self.view, roles)

    def draw(
        self,
        look: ChartLook,
        size: tuple[int, int],
        notes: Sequence[Span] = (),
        *,
        is_focused: bool = True,
        is_framed: bool = False,
    ) -> None:
        """Draw the chosen charts, and update the request.

        Args:
            look: what they are drawn from. Its axis is the chosen one; until the answer comes, the known curves are
                drawn over theirs.
            size: columns and rows of the pane.
            notes: the end of the line above the charts.
            is_focused: whether the charts have the keyboard.
            is_framed: whether the pane has a frame.
        """
        width, height = size
        axis = look.view.axis
        if axis != self.request.axis:
            self._change_axis(axis)
        drawn_axis = next((run.data.frame.axis for run in look.runs), axis)
        look = replace(look, view=replace(self.view, axis=drawn_axis))
        panels, rects = self._screenful(look, width - 2 * is_framed, height - 1 - is_framed)
        extent = charts.extent_of(look)
        if extent is not None:
            look = replace(look, window=look.view.viewport.window(extent))
        if is_focused and len(panels) > 1:
            look = replace(look, focus=self.focused_key)
        if drawn_axis != axis:
            extent = None
        drawn = DrawnCharts(look, self._chosen, panels, rects=rects, extent=extent, is_framed=is_framed)
        self.drawn = drawn
        self.request = self._request_for(drawn, axis)
        title_style = "tab" if is_focused and not look.is_compared else "title"
        lines = partial(self._lines, drawn, notes, title_style)
        runs = [(run.name, run.colour, run.is_in_front, run.data.request) for run in look.runs]
        self.pane.show_when(
            (size, is_framed, is_focused, self.edit, panels, replace(look, runs=()), runs),
            [notes, *_data_of(look)],
            lambda: draw_panel(lines, width, height, is_framed=is_framed),
            height=height,
        )

    def _change_axis(self, axis: Axis) -> None:
        """Show the viewport and the crosshair that this axis had before: a past moment before the first step has
        another axis than the present, to which the crosshair returns."""
        self._left_axes[self.request.axis] = self.view.viewport, self.view.cursor
        viewport, cursor = self._left_axes.get(axis, (Viewport(), None))
        self.view = replace(self.view, viewport=viewport, cursor=cursor)

    def _screenful(self, look: ChartLook, width: int, height: int) -> tuple[Sequence[Panel], Sequence[PanelRect]]:
        """The screenful of charts that holds the focused one, and their cells."""
        chosen = self._chosen.chosen
        layout = "one" if self.is_maximised else self.view.layout
        least_width = LEAST_NAMED_WIDTH if look.is_compared else LEAST_WIDTH
        at_once = max(1, len(panel_rects(len(chosen), width, height, layout, least_width)))
        first = index_of(self.keys, self.focused_key) // at_once * at_once
        rects = panel_rects(min(at_once, len(chosen) - first), width, height, layout, least_width)
        return chosen[first : first + len(rects)], rects

    def _request_for(self, drawn: DrawnCharts, axis: Axis) -> ChartRequest:
        """The request for the charts in sight over an axis."""
        look = drawn.look
        view = look.view
        # Until the run's own names are known, the usual ones are requested.
        names: Sequence[str] = USUAL
        if self._chosen.names:
            names = [panel.key for panel in drawn.panels if panel.field is None]
        fields = [panel.field for panel in drawn.panels if panel.field is not None]
        window = None
        if view.viewport.span is not None and drawn.extent is not None:
            window = look.window
        if view.cursor is not None and "gpu/utilization" in self._chosen.hardware:
            fields += [field for field in AT_CROSSHAIR if field not in fields]
        return ChartRequest(
            names=tuple(names),
            axis=axis,
            window=window,
            smoothing=view.smoothing,
            hardware=tuple(fields),
            is_log=view.is_log_x,
            ranked=tuple(panel.key for panel in drawn.panels if look.is_by_rank(panel)),
            cursor=view.cursor,
        )

    def _lines(
        self, drawn: DrawnCharts, notes: Sequence[Span], title_style: str, width: int, height: int
    ) -> list[Line]:
        if self.edit is None:
            head = drawn.status_line(notes, width, title_style)
        else:
            head = drawn.filter_line(self.edit.spans(drawn.filter_room(width)), width)
        return drawn.lines(head, width, height)

    # --- which chart

    @property
    def keys(self) -> list[str]:
        """The keys of the charts that match the filter."""
        return [panel.key for panel in self._chosen.chosen]

    @property
    def focused_key(self) -> str | None:
        """The chosen chart; until one is chosen the first, which may come later than those of the hardware."""
        keys = self.keys
        if self.view.focus in keys:
            return self.view.focus
        return next(iter(keys), None)

    @property
    def focus(self) -> Panel | None:
        """The chosen chart."""
        return next((panel for panel in self._chosen.chosen if panel.key == self.focused_key), None)

    def scroll(self, by: int) -> None:
        """Choose the chart ``by`` charts further."""
        if (key := self.focused_key) is not None:
            self.change(focus=self.keys[min(max(self.keys.index(key) + by, 0), len(self.keys) - 1)])

    def scroll_page(self, by: int) -> None:
        """Choose a chart ``by`` screenfuls further."""
        self.scroll(by * max(1, len(self.drawn.rects)))

    def filter_to(self, edit: LineEdit | None, text: str) -> None:
        """Show the charts that match a text, which is still being typed if there is an ``edit``."""
        self.edit = edit
        self.change(filter_text=text)
        if edit is None and (problem := filter_names((), text).problem) is not None:
            self._say(f"The filter {text} is {problem}. All charts are shown.")

    def clear(self) -> bool:
        """Remove the crosshair, else the filter; False if there is neither."""
        if self.view.cursor is None and not self.view.filter_text:
            return False
        if self.view.cursor is None:
            self.change(filter_text="")
        else:
            self.change(cursor=None)
        return True

    # --- the crosshair

    def sideways(self, by: int) -> None:
        """Move the crosshair to the next measured place, at least one column further; begin at the newest one."""
        extent = self.drawn.extent
        view = self.view
        if extent is None:
            self._say("There is no curve yet to move a crosshair along.")
            return
        start, end = view.viewport.window(extent)
        if view.cursor is None:
            self.change(cursor=min(extent.newest, end))
            return
        target = extent.beside(view.cursor, (start, end), by / self.drawn.columns_of(self.focused_key))
        front = sorted(self.look.runs, key=lambda run: not run.is_in_front)
        curves = [curve for run in front for curve in run.data.curves.values()]
        # Without a curve of the focused chart, the crosshair steps along the first one.
        curves.sort(key=lambda curve: curve.name != self.focused_key)
        bins = next((curve.bins for curve in curves if curve.bins), ())
        if bins:
            target = next_point(bins, view.cursor, by, abs(target - view.cursor))
        self.point_at(target)

    do_cursor_left = partialmethod(sideways, -1)
    do_cursor_right = partialmethod(sideways, 1)

    def point_at(self, x: float) -> None:
        """Move the crosshair to ``x``, and the window if ``x`` lies outside."""
        if (extent := self.drawn.extent) is not None:
            cursor = min(max(x, extent.first), extent.newest)
            self.change(cursor=cursor, viewport=self.view.viewport.holding(extent, cursor))

    def _move_to_marker(self, by: int) -> None:
        marker = charts.next_marker(self.look.data.markers, self.view.cursor, by)
        if marker is not None:
            self.point_at(marker.x)
        elif by < 0:
            self._say("There is no checkpoint or incident before this.")
        else:
            self._say("There is no checkpoint or incident after this.")

    do_marker_previous = partialmethod(_move_to_marker, -1)
    do_marker_next = partialmethod(_move_to_marker, 1)

    def scroll_to(self, *, end: bool) -> None:
        """Remove the crosshair and follow the newest values; or, if not ``end``, move it to the first place."""
        if end or self.drawn.extent is None:
            self.change(cursor=None, viewport=replace(self.view.viewport, end=None))
        else:
            self.point_at(self.drawn.extent.first)

    def click(self, x: int, y: int) -> None:
        """Focus the clicked chart, and move the crosshair there."""
        clicked = self.drawn.at(x, y)
        if clicked is None:
            return
        panel, rect = clicked
        self.change(focus=panel.key)
        place = self.drawn.axis_place(x, rect)
        if place is not None:
            self.point_at(place)

    # --- the axes

    def _move_window(self, move: Callable[[Viewport, Extent], Viewport], why_not: str) -> None:
        if self.drawn.extent is None:
            self._say("There is no curve yet.")
        elif (moved := move(self.view.viewport, self.drawn.extent)) == self.view.viewport:
            self._say(why_not)
        else:
            self.change(viewport=moved)

    def zoom(self, by: int) -> None:
        """Zoom in with 1, out with -1, around the crosshair if there is one."""
        cursor = self.view.cursor
        if by > 0:
            self._move_window(lambda at, extent: at.zoomed_in(extent, cursor), "The charts show no smaller stretch.")
        else:
            self._move_window(lambda at, extent: at.zoomed_out(extent, cursor), WHOLE)

    do_zoom_in = partialmethod(zoom, 1)
    do_zoom_out = partialmethod(zoom, -1)

    def do_zoom_all(self) -> None:
        self._move_window(lambda at, extent: Viewport(), WHOLE)

    def _pan(self, by: int) -> None:
        why_not = "The run begins here." if by < 0 else "The run ends here."
        if self.view.viewport.span is None:
            why_not = WHOLE
        self._move_window(lambda at, extent: at.panned(extent, by), why_not)

    do_pan_left = partialmethod(_pan, -1)
    do_pan_right = partialmethod(_pan, 1)

    def do_x_axis(self) -> None:
        axes = [axis for axis in AXES if axis != "epoch" or "epoch" in self._chosen.names]
        self.show(self.view.rescaled(axis=next_choice(axes, self.view.axis)))

    def do_log_x_axis(self) -> None:
        self.show(self.view.rescaled(is_log_x=not self.view.is_log_x))

    # --- the other settings

    def _smooth(self, by: int) -> None:
        self.change(smoothing=next_choice(SMOOTHINGS, self.view.smoothing, by))

    do_smoothing_next = partialmethod(_smooth, 1)
    do_smoothing_previous = partialmethod(_smooth, -1)

    def do_log_axis(self) -> None:
        if (key := self.focused_key) is not None:
            self.change(logs=self.view.logs ^ {key})

    def do_layout(self) -> None:
        self.change(layout=next_choice(LAYOUTS, self.view.layout))

    def do_pin(self) -> None:
        if (key := self.focused_key) is not None:
            others = tuple(pin for pin in self.view.pins if pin != key)
            if key in self.view.pins:
                self.change(pins=others)
            else:
                self.change(pins=(*others, key))

    def do_by_rank(self) -> None:
        panel = self.focus
        data = self.look.data
        ranked = [name for name in data.names if name in data.rank_names]
        if panel is None or panel.field is not None or not ranked:
            self._say("No metric here is reported by several ranks.")
        elif panel.key not in ranked:
            self._say(f"Only one rank reports {panel.title}; several report {', '.join(ranked[:4])}.")
        else:
            self.change(by_rank=self.view.by_rank ^ {panel.key})


def _data_of(look: ChartLook) -> Iterator[object]:
    """What is drawn of each run."""
    for run in look.runs:
        data = run.data
        yield from (data.markers, data.hardware, *data.curves.values(), *data.ranked.values())
