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
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.metrics.draw.viewport import Extent, Viewport, stepped
from gputui.store.metrics.roles import NO_ROLES, MetricRoles
from gputui.ui.tui.layout import charts
from gputui.ui.tui.layout.chart_settings import LAYOUTS, SMOOTHINGS, ChartView
from gputui.ui.tui.layout.charts import ChartLook, place_words, plot_columns
from gputui.ui.tui.layout.columns import as_panel, cells_in, clip_words, cut_line, fit_line, rule
from gputui.ui.tui.layout.lists import after
from gputui.ui.tui.layout.panels import LEAST_NAMED_WIDTH, LEAST_WIDTH, Panel, PanelPlace, Panels, panels, places
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
    """The state of a page's charts. ``keep`` is called with each new view, ``say`` with reasons; ``request`` is what
    they need from the feed."""

    def __init__(self, view: ChartView, keep: Callable[[ChartView], object], say: Callable[[str], object]) -> None:
        self.view = view
        self.pane = SlowPane(id="charts")
        self.edit: LineEdit | None = None
        self.is_maximised = False
        self.look = ChartLook(view)
        self.panels = Panels()
        self.extent: Extent | None = None
        self.request = ChartRequest(USUAL, view.axis, smoothing=view.smoothing, hardware=("utilization",))
        self._keep = keep
        self._say = say
        self._left: dict[Axis, tuple[Viewport, float | None]] = {}
        self._names: Sequence[str] = ()
        self._hardware: Sequence[str] = ()
        self._visible: Sequence[Panel] = ()
        self._places: Sequence[PanelPlace] = ()
        self._is_framed = self._is_tab = False

    def change(self, **changes: Any) -> None:
        """Change the view."""
        self.show(replace(self.view, **changes))

    def show(self, view: ChartView) -> None:
        self.view = view
        self._keep(view)

    # --- drawing

    def choose(self, names: Sequence[str], hardware: Sequence[str] = (), roles: MetricRoles = NO_ROLES) -> None:
        """Choose the charts among these metrics, of which some have ``roles``, and charts of the hardware."""
        self._names, self._hardware = names, hardware
        self.panels = panels(names, hardware, self.view, roles)

    def draw(
        self,
        look: ChartLook,
        size: tuple[int, int],
        notes: Sequence[Span] = (),
        *,
        is_focused: bool = True,
        is_framed: bool = False,
    ) -> None:
        """Draw the chosen charts in a pane of this size, and update the request. The axis of ``look`` is the wanted
        one; until the answer comes, the known curves are drawn over theirs."""
        width, height = (size[0] - 2, size[1] - 2) if is_framed else (size[0], size[1] - 1)
        axis, self._is_framed, self._is_tab = look.view.axis, is_framed, is_focused and not look.is_compared
        if axis != self.request.axis:
            # A past moment before the first step has another axis than the present, to which the crosshair returns.
            self._left[self.request.axis] = self.view.viewport, self.view.cursor
            viewport, cursor = self._left.get(axis, (Viewport(), None))
            self.view = replace(self.view, viewport=viewport, cursor=cursor)
        drawn = next((run.data.frame.axis for run in look.runs), axis)
        look = replace(look, view=replace(self.view, axis=drawn))
        extent = charts.extent_of(look)
        self.extent = extent if drawn == axis else None
        self._choose_visible(look, width, height)
        self.look = look = replace(
            look,
            window=look.window if extent is None else look.view.viewport.window(extent),
            focus=self.focused_key if is_focused and len(self._visible) > 1 else None,
        )
        self.request = self._wanted(look, axis)
        runs = [(run.name, run.colour, run.is_in_front, run.data.request) for run in look.runs]
        data = [run.data for run in look.runs]
        self.pane.show_when(
            (size, is_framed, is_focused, self.edit, self._visible, replace(look, runs=()), runs),
            [notes, *(part for one in data
                      for part in (one.markers, one.hardware, *one.curves.values(), *one.ranked.values()))],
            lambda: as_panel(partial(self._lines, look, notes), *size, is_framed=is_framed),
            height=size[1],
        )  # fmt: skip

    def _choose_visible(self, look: ChartLook, width: int, height: int) -> None:
        """Choose the screenful of charts that holds the focused one."""
        shown, keys = self.panels.shown, self.keys
        at = keys.index(self.focused_key) if self.focused_key else 0
        layout = "one" if self.is_maximised else self.view.layout
        least_width = LEAST_NAMED_WIDTH if look.is_compared else LEAST_WIDTH
        at_once = max(1, len(places(len(shown), width, height, layout, least_width)))
        first = at // at_once * at_once
        self._places = places(min(at_once, len(shown) - first), width, height, layout, least_width)
        self._visible = shown[first : first + len(self._places)]

    def _wanted(self, look: ChartLook, axis: Axis) -> ChartRequest:
        view = look.view
        fields = [panel.field for panel in self._visible if panel.field is not None]
        if view.cursor is not None and "gpu/utilization" in self._hardware:
            fields += [field for field in AT_CROSSHAIR if field not in fields]
        return ChartRequest(
            # Until the run's own names are known, the usual ones are requested.
            names=tuple(panel.key for panel in self._visible if panel.field is None) if self._names else USUAL,
            axis=axis,
            window=look.window if view.viewport.span is not None and self.extent is not None else None,
            smoothing=view.smoothing,
            hardware=tuple(fields),
            is_log=view.is_log_x,
            ranked=tuple(panel.key for panel in self._visible if look.is_by_rank(panel)),
            cursor=view.cursor,
        )

    def _lines(self, look: ChartLook, notes: Sequence[Span], width: int, height: int) -> list[Line]:
        head = self._head(look, width, notes)
        if self._visible:
            lines = charts.grid_lines(self._visible, self._places, look, width, height - 1)
        else:
            text = "No metric matches the filter; esc clears it." if look.view.filter_text else "No metric yet."
            lines = [fit_line([("  " + text, "dim")], width)]
        return [head, *lines]

    def _head(self, look: ChartLook, width: int, notes: Sequence[Span]) -> Line:
        """The filter being typed; or with a crosshair, what happened there; or the settings."""
        if self.edit is not None:
            note = clean(self.panels.problem or f"{len(self.panels.shown)} of {self.panels.count} charts")
            typed = self.edit.spans(max(8, width - 11 - len(note)))
            spans = [(" filter ", "title"), *typed, (f" {note}", "warn" if self.panels.problem else "dim")]
        else:
            parts = at_cursor(look, self._visible) or [*self._settings_parts(look, width), *notes]
            if look.view.cursor is None and self._is_framed:
                return rule("CHARTS", width, notes=parts, style="tab" if self._is_tab else "title")
            # A long sentence of an event leaves room for what was measured.
            words = [(clip_words(text, width // 2), style) for text, style in parts]
            spans = [(f"{' · ' if number else ' '}{text}", style) for number, (text, style) in enumerate(words)]
            while len(spans) > 1 and cells_in(spans) > width:
                spans.pop()
        line, rest = cut_line([*spans, (" ", "text")], width)
        # In a frame, the rest is the frame's upper side.
        if self._is_framed:
            return [*line, ("─" * rest, "rule")]
        return fit_line(line, width)

    def _settings_parts(self, look: ChartLook, width: int) -> list[Span]:
        view, frame, shown, visible = look.view, look.data.frame, self.panels.shown, self._visible
        start, end = (place_words(frame, x) for x in look.window)
        first = shown.index(visible[0]) + 1 if visible else 0
        count = self.panels.count
        of_all = f" ({count} in all)" if len(shown) < count else ""
        saved = charts.counted_checkpoints(look, width) if visible else 0
        redone = any(curve.redone for curve in look.data.curves.values())
        non_finite = sum(each.non_finite for curve in look.data.curves.values() for each in curve.bins)
        is_log = self.extent is None or self.extent.kind == "log"
        parts: list[tuple[object, str, str]] = [
            (True, f"x {charts.AXIS_NAMES[view.axis]}", "dim"),
            (view.is_log_x, "log x" if is_log else "log x: nothing above 0", "accent"),
            (view.is_cut, "cut to the shortest", "accent"),
            (view.viewport.span is not None, f"{start} to {end.removeprefix('step ')}", "accent"),
            (view.smoothing, f"smoothing {view.smoothing:g}", "accent"),
            (view.filter_text, f"/{clean(view.filter_text)}", "accent"),
            (self.panels.problem, clean(self.panels.problem or ""), "warn"),
            (0 < len(visible) < count, f"charts {first}–{first + len(visible) - 1} of {len(shown)}{of_all}", "dim"),
            (saved, f"{saved} checkpoints", "good"),
            (redone and view.axis in ("step", "epoch"), "grey: redone", "dim"),
            (non_finite, f"× {short_number(non_finite)} values not finite", "bad"),
        ]
        return [(text, style) for is_so, text, style in parts if is_so]

    # --- which chart

    @property
    def keys(self) -> list[str]:
        return [panel.key for panel in self.panels.shown]

    @property
    def focused_key(self) -> str | None:
        """The chosen chart; until one is chosen the first, which may come later than those of the hardware."""
        keys = self.keys
        if self.view.focus in keys:
            return self.view.focus
        return next(iter(keys), None)

    @property
    def focus(self) -> Panel | None:
        return next((panel for panel in self.panels.shown if panel.key == self.focused_key), None)

    def scroll(self, by: int) -> None:
        if (key := self.focused_key) is not None:
            self.change(focus=self.keys[min(max(self.keys.index(key) + by, 0), len(self.keys) - 1)])

    def scroll_page(self, by: int) -> None:
        self.scroll(by * max(1, len(self._places)))

    def filter_to(self, edit: LineEdit | None, text: str) -> None:
        self.edit = edit
        self.change(filter_text=text)
        if edit is None and (problem := filter_names((), text).problem) is not None:
            self._say(f"The filter {text} is {problem}. All charts are shown.")

    def clear(self) -> bool:
        """Remove the crosshair, else the filter; False if there is neither."""
        if self.view.cursor is None and not self.view.filter_text:
            return False
        self.change(**({"filter_text": ""} if self.view.cursor is None else {"cursor": None}))
        return True

    # --- the crosshair

    @property
    def _columns(self) -> int:
        """Cells of the focused chart along the x axis."""
        found = [place for panel, place in zip(self._visible, self._places, strict=False)
                 if panel.key == self.focused_key]  # fmt: skip
        if found:
            return plot_columns(self.look, found[0].width, found[0].height)
        return 80

    def sideways(self, by: int) -> None:
        """Move the crosshair to the next measured place, at least one column further; begin at the newest one."""
        extent, view = self.extent, self.view
        if extent is None:
            self._say("There is no curve yet to move a crosshair along.")
            return
        start, end = view.viewport.window(extent)
        if view.cursor is None:
            self.change(cursor=min(extent.newest, end))
            return
        beside = extent.beside(view.cursor, (start, end), by / self._columns)
        front = sorted(self.look.runs, key=lambda run: not run.is_in_front)
        curves = [curve for run in front for curve in run.data.curves.values()]
        # Without a curve of the focused chart, the crosshair steps along the first one.
        curves.sort(key=lambda curve: curve.name != self.focused_key)
        bins = next((curve.bins for curve in curves if curve.bins), ())
        self.point_at(stepped(bins, view.cursor, by, abs(beside - view.cursor)) if bins else beside)

    do_cursor_left, do_cursor_right = partialmethod(sideways, -1), partialmethod(sideways, 1)

    def point_at(self, x: float) -> None:
        """Move the crosshair to ``x``, and the window if ``x`` lies outside."""
        if (extent := self.extent) is not None:
            cursor = min(max(x, extent.first), extent.newest)
            self.change(cursor=cursor, viewport=self.view.viewport.holding(extent, cursor))

    def _move_to_marker(self, by: int) -> None:
        found = charts.next_marker(self.look.data.markers, self.view.cursor, by)
        if found is None:
            self._say(f"There is no checkpoint or incident {'before' if by < 0 else 'after'} this.")
        else:
            self.point_at(found.x)

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
        for panel, place in zip(self._visible, self._places, strict=False):
            if 0 <= y - 1 - place.top < place.height and 0 <= x - place.left < place.width:
                self.change(focus=panel.key)
                columns = plot_columns(self.look, place.width, place.height)
                # The newest values are right of their place.
                column = min(x - place.left - charts.GUTTER - 2, columns - 1)
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

    do_zoom_in, do_zoom_out = partialmethod(zoom, 1), partialmethod(zoom, -1)

    def do_zoom_all(self) -> None:
        self._move_window(lambda at, extent: Viewport(), WHOLE)

    def _pan(self, by: int) -> None:
        end = WHOLE if self.view.viewport.span is None else "The run begins here." if by < 0 else "The run ends here."
        self._move_window(lambda at, extent: at.panned(extent, by), end)

    do_pan_left, do_pan_right = partialmethod(_pan, -1), partialmethod(_pan, 1)

    def do_x_axis(self) -> None:
        axes = [axis for axis in AXES if axis != "epoch" or "epoch" in self._names]
        self.show(self.view.rescaled(axis=after(axes, self.view.axis)))

    def do_log_x_axis(self) -> None:
        self.show(self.view.rescaled(is_log_x=not self.view.is_log_x))

    # --- the other settings

    def _smooth(self, by: int) -> None:
        self.change(smoothing=after(SMOOTHINGS, self.view.smoothing, by))

    do_smoothing_next, do_smoothing_previous = partialmethod(_smooth, 1), partialmethod(_smooth, -1)

    def do_log_axis(self) -> None:
        if (key := self.focused_key) is not None:
            self.change(logs=self.view.logs ^ {key})

    def do_layout(self) -> None:
        self.change(layout=after(LAYOUTS, self.view.layout))

    def do_pin(self) -> None:
        if (key := self.focused_key) is not None:
            pins = self.view.pins
            self.change(pins=tuple(pin for pin in pins if pin != key) if key in pins else (*pins, key))

    def do_by_rank(self) -> None:
        panel, data = self.focus, self.look.data
        ranked = [name for name in data.names if name in data.rank_names]
        if panel is None or panel.field is not None or not ranked:
            self._say("No metric here is reported by several ranks.")
        elif panel.key not in ranked:
            self._say(f"Only one rank reports {panel.title}; several report {', '.join(ranked[:4])}.")
        else:
            self.change(by_rank=self.view.by_rank ^ {panel.key})


WHOLE = "The charts show the whole run; + zooms in."


def at_cursor(look: ChartLook, visible: Sequence[Panel]) -> list[Span]:
    """The place of the crosshair, what happened there, and the hardware that no chart shows; nothing without it."""
    x, data, frame, reach = look.view.cursor, look.data, look.data.frame, look.reach
    if x is None:
        return []
    parts: list[Span] = [(f"│ {place_words(frame, x)}", "cursor")]
    moment = None if frame.axis == "time" else frame.moment_at(x)
    if moment is not None:
        parts.append((charts.frame_clock(frame, moment), "cursor"))
    near = [marker for marker in data.markers if abs(marker.x - x) <= reach]
    near.sort(key=lambda marker: (charts.GRAVITY.index(marker.kind), abs(marker.x - x)))
    for marker in near[:3]:
        at = f" {charts.frame_clock(frame, marker.at)}" if marker.at is not None and frame.axis != "time" else ""
        parts.append(
            (f"{_GLYPHS.get(marker.kind, '')}{marker.text or marker.word}{at}", charts.MARKER_STYLES[marker.kind])
        )
    for field, (title, unit) in AT_CROSSHAIR.items():
        of_gpus = (one for one in data.hardware if one.field == field and one.uuid is not None)
        known = [value for curve in of_gpus if (value := charts.at_crosshair(curve, look)) is not None]
        if known and field not in {panel.field for panel in visible}:
            low, high = f"{min(known):.0f}", f"{max(known):.0f}"
            parts.append((f"{title}{low}{unit}" if low == high else f"{title}{low}–{high}{unit}", "text"))
    return parts
