"""The charts of a run's page or of a comparison: their actions, their pane, and their request to the feed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from typing import Any

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import short_number
from gputui.metrics.curves.model import AXES, Axis, ChartRequest, HardwareField
from gputui.metrics.curves.names import filter_names
from gputui.metrics.draw.parts import Line, Span
from gputui.metrics.draw.viewport import Extent, Viewport, next_point
from gputui.store.metrics.roles import NO_ROLES, MetricRoles
from gputui.ui.tui.layout import charts
from gputui.ui.tui.layout.chart_settings import LAYOUTS, SMOOTHINGS, ChartView
from gputui.ui.tui.layout.charts import ChartLook, plot_columns, x_words
from gputui.ui.tui.layout.columns import clip_line, clip_words, draw_panel, fit_line, line_width, rule
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

AT_CROSSHAIR: dict[HardwareField, tuple[str, str]] = {
    "utilization": ("util ", "%"),
    "power": ("power ", " W"),
    "temperature": ("", " °C"),
}
"""Fields whose values the line above the charts has at the crosshair, and the words around."""

_GLYPHS = {"incident": "✗ ", "alert": "▲ "}


class Charts:
    """The state of a page's charts, and the actions that change it.

    Attributes:
        view: the settings of the charts, of which ``keep`` is told.
        edit: the filter that is being typed.
        is_maximised: whether only one chart is shown.
        look: what the charts were drawn from.
        panels: the charts that match the filter.
        extent: the whole x axis; None while it is unknown.
        request: what the charts need from the feed.
    """

    def __init__(self, view: ChartView, keep: Callable[[ChartView], object], say: Callable[[str], object]) -> None:
        self.view = view
        self.pane = SlowPane(id="charts")
        self.edit: LineEdit | None = None
        self.is_maximised = False
        self.look = ChartLook(view)
        self.panels = ChosenPanels()
        self.extent: Extent | None = None
        self.request = ChartRequest(USUAL, view.axis, smoothing=view.smoothing, hardware=("utilization",))
        self._keep = keep
        self._say = say
        self._rects_on_axes: dict[Axis, tuple[Viewport, float | None]] = {}
        self._names: Sequence[str] = ()
        self._hardware: Sequence[str] = ()
        self._visible: Sequence[Panel] = ()
        self._rects: Sequence[PanelRect] = ()
        self._is_framed = self._is_tab = False

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
        self._names = names
        self._hardware = hardware
        self.panels = choose_panels(names, hardware, self.view, roles)

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
        width = size[0]
        height = size[1] - 1
        if is_framed:
            width = width - 2
            height = height - 1
        axis = look.view.axis
        self._is_framed = is_framed
        self._is_tab = is_focused and not look.is_compared
        if axis != self.request.axis:
            # A past moment before the first step has another axis than the present, to which the crosshair returns.
            self._rects_on_axes[self.request.axis] = self.view.viewport, self.view.cursor
            viewport, cursor = self._rects_on_axes.get(axis, (Viewport(), None))
            self.view = replace(self.view, viewport=viewport, cursor=cursor)
        drawn = next((run.data.frame.axis for run in look.runs), axis)
        look = replace(look, view=replace(self.view, axis=drawn))
        extent = charts.extent_of(look)
        self.extent = extent if drawn == axis else None
        self._choose_visible(look, width, height)
        if extent is not None:
            look = replace(look, window=look.view.viewport.window(extent))
        if is_focused and len(self._visible) > 1:
            look = replace(look, focus=self.focused_key)
        self.look = look
        self.request = self._request_for(look, axis)
        runs = [(run.name, run.colour, run.is_in_front, run.data.request) for run in look.runs]
        parts: list[object] = [notes]
        for run in look.runs:
            data = run.data
            parts += [data.markers, data.hardware, *data.curves.values(), *data.ranked.values()]
        self.pane.show_when(
            (size, is_framed, is_focused, self.edit, self._visible, replace(look, runs=()), runs),
            parts,
            lambda: draw_panel(partial(self._lines, look, notes), *size, is_framed=is_framed),
            height=size[1],
        )

    def _choose_visible(self, look: ChartLook, width: int, height: int) -> None:
        """Choose the screenful of charts that holds the focused one."""
        chosen = self.panels.chosen
        layout = "one" if self.is_maximised else self.view.layout
        least_width = LEAST_NAMED_WIDTH if look.is_compared else LEAST_WIDTH
        at_once = max(1, len(panel_rects(len(chosen), width, height, layout, least_width)))
        first = index_of(self.keys, self.focused_key) // at_once * at_once
        self._rects = panel_rects(min(at_once, len(chosen) - first), width, height, layout, least_width)
        self._visible = chosen[first : first + len(self._rects)]

    def _request_for(self, look: ChartLook, axis: Axis) -> ChartRequest:
        """The request for the visible charts over an axis."""
        view = look.view
        # Until the run's own names are known, the usual ones are requested.
        names: Sequence[str] = USUAL
        if self._names:
            names = [panel.key for panel in self._visible if panel.field is None]
        fields = [panel.field for panel in self._visible if panel.field is not None]
        window = None
        if view.viewport.span is not None and self.extent is not None:
            window = look.window
        if view.cursor is not None and "gpu/utilization" in self._hardware:
            fields += [field for field in AT_CROSSHAIR if field not in fields]
        return ChartRequest(
            names=tuple(names),
            axis=axis,
            window=window,
            smoothing=view.smoothing,
            hardware=tuple(fields),
            is_log=view.is_log_x,
            ranked=tuple(panel.key for panel in self._visible if look.is_by_rank(panel)),
            cursor=view.cursor,
        )

    def _lines(self, look: ChartLook, notes: Sequence[Span], width: int, height: int) -> list[Line]:
        head = self._head(look, width, notes)
        if self._visible:
            lines = charts.grid_lines(self._visible, self._rects, look, width, height - 1)
        else:
            text = "No metric matches the filter; esc clears it." if look.view.filter_text else "No metric yet."
            lines = [fit_line([("  " + text, "dim")], width)]
        return [head, *lines]

    def _head(self, look: ChartLook, width: int, notes: Sequence[Span]) -> Line:
        """The filter being typed; or with a crosshair, what happened there; or the settings."""
        if self.edit is not None:
            note = clean(self.panels.problem or f"{len(self.panels.chosen)} of {self.panels.count} charts")
            typed = self.edit.spans(max(8, width - 11 - len(note)))
            note_style = "warn" if self.panels.problem else "dim"
            spans = [(" filter ", "title"), *typed, (f" {note}", note_style)]
        else:
            parts = crosshair_parts(look, self._visible) or [*self._settings_parts(look, width), *notes]
            if look.view.cursor is None and self._is_framed:
                title_style = "tab" if self._is_tab else "title"
                return rule("CHARTS", width, notes=parts, style=title_style)
            spans = []
            lead = " "
            for text, style in parts:
                # A long sentence of an event leaves room for what was measured.
                spans.append((lead + clip_words(text, width // 2), style))
                lead = " · "
            while len(spans) > 1 and line_width(spans) > width:
                spans.pop()
        line, rest = clip_line([*spans, (" ", "text")], width)
        # In a frame, the rest is the frame's upper side.
        if self._is_framed:
            return [*line, ("─" * rest, "rule")]
        return fit_line(line, width)

    def _settings_parts(self, look: ChartLook, width: int) -> list[Span]:
        """The settings that are not the usual ones, which charts are in sight, and what they hide."""
        view = look.view
        visible = self._visible
        parts: list[Span] = [(f"x {charts.AXIS_NAMES[view.axis]}", "dim")]
        if view.is_log_x and self.extent is not None and self.extent.kind != "log":
            parts.append(("log x: nothing above 0", "accent"))
        elif view.is_log_x:
            parts.append(("log x", "accent"))
        if view.is_cut:
            parts.append(("cut to the shortest", "accent"))
        if view.viewport.span is not None:
            start, end = (x_words(look.data.frame, x) for x in look.window)
            parts.append((f"{start} to {end.removeprefix('step ')}", "accent"))
        if view.smoothing:
            parts.append((f"smoothing {view.smoothing:g}", "accent"))
        if view.filter_text:
            parts.append((f"/{clean(view.filter_text)}", "accent"))
        if self.panels.problem:
            parts.append((clean(self.panels.problem), "warn"))
        if 0 < len(visible) < self.panels.count:
            parts.append((_visible_words(self.panels, visible), "dim"))
        if visible and (saved := charts.counted_checkpoints(look, width)):
            parts.append((f"{saved} checkpoints", "good"))
        curves = look.data.curves.values()
        if view.axis in ("step", "epoch") and any(curve.redone for curve in curves):
            parts.append(("grey: redone", "dim"))
        if non_finite := sum(stretch.non_finite for curve in curves for stretch in curve.bins):
            parts.append((f"× {short_number(non_finite)} values not finite", "bad"))
        return parts

    # --- which chart

    @property
    def keys(self) -> list[str]:
        """The keys of the charts that match the filter."""
        return [panel.key for panel in self.panels.chosen]

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
        return next((panel for panel in self.panels.chosen if panel.key == self.focused_key), None)

    def scroll(self, by: int) -> None:
        """Choose the chart ``by`` charts further."""
        if (key := self.focused_key) is not None:
            self.change(focus=self.keys[min(max(self.keys.index(key) + by, 0), len(self.keys) - 1)])

    def scroll_page(self, by: int) -> None:
        """Choose a chart ``by`` screenfuls further."""
        self.scroll(by * max(1, len(self._rects)))

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

    @property
    def _columns(self) -> int:
        """Cells of the focused chart along the x axis."""
        for panel, rect in zip(self._visible, self._rects, strict=False):
            if panel.key == self.focused_key:
                return plot_columns(self.look, rect.width, rect.height)
        return 80

    def sideways(self, by: int) -> None:
        """Move the crosshair to the next measured place, at least one column further; begin at the newest one."""
        extent = self.extent
        view = self.view
        if extent is None:
            self._say("There is no curve yet to move a crosshair along.")
            return
        start, end = view.viewport.window(extent)
        if view.cursor is None:
            self.change(cursor=min(extent.newest, end))
            return
        target = extent.beside(view.cursor, (start, end), by / self._columns)
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
        if (extent := self.extent) is not None:
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
        if end or self.extent is None:
            self.change(cursor=None, viewport=replace(self.view.viewport, end=None))
        else:
            self.point_at(self.extent.first)

    def click(self, x: int, y: int) -> None:
        """Focus the clicked chart, and move the crosshair there."""
        x -= self._is_framed
        for panel, rect in zip(self._visible, self._rects, strict=False):
            if 0 <= y - 1 - rect.y < rect.height and 0 <= x - rect.x < rect.width:
                self.change(focus=panel.key)
                columns = plot_columns(self.look, rect.width, rect.height)
                # The newest values are right of their place.
                column = min(x - rect.x - charts.GUTTER - 2, columns - 1)
                if self.extent is not None and column >= 0:
                    self.point_at(self.extent.between(self.look.window, (column + 0.5) / columns))

    # --- the axes

    def _move_window(self, move: Callable[[Viewport, Extent], Viewport], why_not: str) -> None:
        if self.extent is None:
            self._say("There is no curve yet.")
        elif (moved := move(self.view.viewport, self.extent)) == self.view.viewport:
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
        axes = [axis for axis in AXES if axis != "epoch" or "epoch" in self._names]
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


WHOLE = "The charts show the whole run; + zooms in."


def _visible_words(panels: ChosenPanels, visible: Sequence[Panel]) -> str:
    """Which charts are in sight: ``charts 4–6 of 9 (31 in all)``."""
    chosen = panels.chosen
    first = chosen.index(visible[0]) + 1
    text = f"charts {first}–{first + len(visible) - 1} of {len(chosen)}"
    if len(chosen) < panels.count:
        text += f" ({panels.count} in all)"
    return text


def crosshair_parts(look: ChartLook, visible: Sequence[Panel]) -> list[Span]:
    """The place of the crosshair, what happened there, and the hardware that no chart shows; nothing without it."""
    x = look.view.cursor
    data = look.data
    frame = look.data.frame
    reach = look.reach
    if x is None:
        return []
    parts: list[Span] = [(f"│ {x_words(frame, x)}", "cursor")]
    if frame.axis != "time" and (moment := frame.moment_at(x)) is not None:
        parts.append((charts.frame_clock(frame, moment), "cursor"))
    near = [marker for marker in data.markers if abs(marker.x - x) <= reach]
    near.sort(key=lambda marker: (charts.GRAVITY.index(marker.kind), abs(marker.x - x)))
    for marker in near[:3]:
        text = f"{_GLYPHS.get(marker.kind, '')}{marker.text or marker.word}"
        if marker.at is not None and frame.axis != "time":
            text += f" {charts.frame_clock(frame, marker.at)}"
        parts.append((text, charts.MARKER_STYLES[marker.kind]))
    shown_fields = {panel.field for panel in visible}
    for field, (title, unit) in AT_CROSSHAIR.items():
        curves = (curve for curve in data.hardware if curve.field == field and curve.uuid is not None)
        values = [value for curve in curves if (value := charts.crosshair_value(curve, look)) is not None]
        if values and field not in shown_fields:
            # One number where all round to it.
            ends = dict.fromkeys(f"{value:.0f}" for value in (min(values), max(values)))
            parts.append((f"{title}{'–'.join(ends)}{unit}", "text"))
    return parts
