"""A screenful of charts, and the line above them: the filter, the crosshair or the settings."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gputui.core.text import clean
from gputui.core.units import short_number
from gputui.metrics.curves.model import HardwareField
from gputui.metrics.draw.parts import Line, Span
from gputui.metrics.draw.viewport import Extent
from gputui.ui.tui.layout import charts
from gputui.ui.tui.layout.charts import ChartLook, plot_columns, x_words
from gputui.ui.tui.layout.columns import clip_line, clip_words, fit_line, line_width, rule
from gputui.ui.tui.layout.panels import ChosenPanels, Panel, PanelRect

AT_CROSSHAIR: dict[HardwareField, tuple[str, str]] = {
    "utilization": ("util ", "%"),
    "power": ("power ", " W"),
    "temperature": ("", " °C"),
}
"""Fields whose values the line above the charts has at the crosshair, and the words around."""

MOST_MARKERS = 3
"""Markers that the line has at the crosshair; more would leave no room for what was measured."""

USUAL_COLUMNS = 80
"""Columns by which the crosshair moves while no chart is drawn."""

_GLYPHS = {"incident": "✗ ", "alert": "▲ "}


class DrawnCharts(Struct, frozen=True):
    """A screenful of charts.

    Attributes:
        look: what the charts are drawn from.
        chosen: all charts that match the filter, of which some are in sight.
        panels: the charts in sight.
        rects: the cells of each chart in sight, below the line above them.
        extent: the whole x axis; None while it is unknown.
        is_framed: whether they have a frame.
    """

    look: ChartLook
    chosen: ChosenPanels = ChosenPanels()
    panels: Sequence[Panel] = ()
    rects: Sequence[PanelRect] = ()
    extent: Extent | None = None
    is_framed: bool = False

    # --- places

    def columns_of(self, key: str | None) -> int:
        """The cells of a chart along the x axis."""
        for panel, rect in zip(self.panels, self.rects, strict=True):
            if panel.key == key:
                return plot_columns(self.look, rect.width, rect.height)
        return USUAL_COLUMNS

    def at(self, x: int, y: int) -> tuple[Panel, PanelRect] | None:
        """The chart at a cell of the pane, and its cells; None for no chart."""
        x -= self.is_framed
        # The first line is the one above the charts.
        y -= 1
        for panel, rect in zip(self.panels, self.rects, strict=True):
            if 0 <= y - rect.y < rect.height and 0 <= x - rect.x < rect.width:
                return panel, rect
        return None

    def axis_place(self, x: int, rect: PanelRect) -> float | None:
        """The place on the x axis at a column of the pane in a chart; None outside of the axis."""
        columns = plot_columns(self.look, rect.width, rect.height)
        # The newest values are right of their place.
        column = min(x - self.is_framed - rect.x - charts.GUTTER - 2, columns - 1)
        if self.extent is None or column < 0:
            return None
        return self.extent.between(self.look.window, (column + 0.5) / columns)

    # --- lines

    def lines(self, head: Line, width: int, height: int) -> list[Line]:
        """The line above the charts, and the charts."""
        if self.panels:
            return [head, *charts.grid_lines(self.panels, self.rects, self.look, width, height - 1)]
        text = "No metric yet."
        if self.look.view.filter_text:
            text = "No metric matches the filter; esc clears it."
        return [head, fit_line([("  " + text, "dim")], width)]

    def filter_line(self, typed: Sequence[Span], width: int) -> Line:
        """The line above the charts while the filter is ``typed``."""
        problem = self.chosen.problem
        if problem:
            note: Span = (f" {clean(problem)}", "warn")
        else:
            note = (f" {self._filter_count}", "dim")
        return self._to_width([(" filter ", "title"), *typed, note], width)

    def filter_room(self, width: int) -> int:
        """The cells for the filter that is typed."""
        note = clean(self.chosen.problem or self._filter_count)
        return max(8, width - 11 - len(note))

    @property
    def _filter_count(self) -> str:
        return f"{len(self.chosen.chosen)} of {self.chosen.count} charts"

    def status_line(self, notes: Sequence[Span], width: int, title_style: str) -> Line:
        """The line above the charts: what happened at the crosshair; or the settings, and ``notes``."""
        parts = crosshair_parts(self.look, self.panels) or [*self._settings_parts(width), *notes]
        if self.look.view.cursor is None and self.is_framed:
            return rule("CHARTS", width, notes=parts, style=title_style)
        spans: list[Span] = []
        separator = " "
        for text, style in parts:
            # A long sentence of an event leaves room for what was measured.
            spans.append((separator + clip_words(text, width // 2), style))
            separator = " · "
        while len(spans) > 1 and line_width(spans) > width:
            spans.pop()
        return self._to_width(spans, width)

    def _to_width(self, spans: Sequence[Span], width: int) -> Line:
        line, rest = clip_line([*spans, (" ", "text")], width)
        # In a frame, the rest is the frame's upper side.
        if self.is_framed:
            return [*line, ("─" * rest, "rule")]
        return fit_line(line, width)

    def _settings_parts(self, width: int) -> list[Span]:
        """The settings that are not the usual ones, which charts are in sight, and what they hide."""
        look = self.look
        view = look.view
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
        if self.chosen.problem:
            parts.append((clean(self.chosen.problem), "warn"))
        if 0 < len(self.panels) < self.chosen.count:
            parts.append((self._position, "dim"))
        if self.panels and (saved := charts.counted_checkpoints(look, width)):
            parts.append((f"{saved} checkpoints", "good"))
        curves = look.data.curves.values()
        if view.axis in ("step", "epoch") and any(curve.redone for curve in curves):
            parts.append(("grey: redone", "dim"))
        if non_finite := sum(stretch.non_finite for curve in curves for stretch in curve.bins):
            parts.append((f"× {short_number(non_finite)} values not finite", "bad"))
        return parts

    @property
    def _position(self) -> str:
        """Which charts are in sight: ``charts 4–6 of 9 (31 in all)``."""
        chosen = self.chosen.chosen
        first = chosen.index(self.panels[0]) + 1
        text = f"charts {first}–{first + len(self.panels) - 1} of {len(chosen)}"
        if len(chosen) < self.chosen.count:
            text += f" ({self.chosen.count} in all)"
        return text


def crosshair_parts(look: ChartLook, visible: Sequence[Panel]) -> list[Span]:
    """The place of the crosshair, what happened there, and the hardware that no chart shows; nothing without it."""
    x = look.view.cursor
    if x is None:
        return []
    frame = look.data.frame
    parts: list[Span] = [(f"│ {x_words(frame, x)}", "cursor")]
    if frame.axis != "time" and (moment := frame.moment_at(x)) is not None:
        parts.append((charts.frame_clock(frame, moment), "cursor"))
    return [*parts, *_marker_parts(look, x), *_hardware_parts(look, visible)]


def _marker_parts(look: ChartLook, x: float) -> list[Span]:
    """What happened near a place, the gravest and nearest first."""
    frame = look.data.frame
    near = [marker for marker in look.data.markers if abs(marker.x - x) <= look.reach]
    near.sort(key=lambda marker: (charts.GRAVITY.index(marker.kind), abs(marker.x - x)))
    parts: list[Span] = []
    for marker in near[:MOST_MARKERS]:
        text = f"{_GLYPHS.get(marker.kind, '')}{marker.text or marker.word}"
        if marker.at is not None and frame.axis != "time":
            text += f" {charts.frame_clock(frame, marker.at)}"
        parts.append((text, charts.MARKER_STYLES[marker.kind]))
    return parts


def _hardware_parts(look: ChartLook, visible: Sequence[Panel]) -> list[Span]:
    """The values of the GPUs at the crosshair that no chart shows: ``power 310–340 W``."""
    shown_fields = {panel.field for panel in visible}
    parts: list[Span] = []
    for field, (title, unit) in AT_CROSSHAIR.items():
        if field in shown_fields:
            continue
        curves = [curve for curve in look.data.hardware if curve.field == field and curve.uuid is not None]
        values = [value for curve in curves if (value := charts.crosshair_value(curve, look)) is not None]
        if values:
            # One number where all round to it.
            ends = dict.fromkeys(f"{value:.0f}" for value in (min(values), max(values)))
            parts.append((f"{title}{'–'.join(ends)}{unit}", "text"))
    return parts
