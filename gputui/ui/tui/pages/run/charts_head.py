"""The line above the charts: the values at the crosshair, or the settings of the charts."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.core.text import clean
from gputui.core.units import count, short_number
from gputui.metrics.curves.model import ChartData
from gputui.metrics.curves.plot import values_at
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.layout.charts import (
    AXIS_NAMES,
    MARKER_STYLES,
    ChartLook,
    counted_checkpoints,
    extent_of,
    frame_clock,
    markers_near,
    place_words,
)
from gputui.ui.tui.layout.columns import fit_line, fitting
from gputui.ui.tui.layout.panels import Panel, Panels
from gputui.ui.tui.widgets.line_edit import LineEdit

_GLYPHS = {"incident": "✗ ", "alert": "▲ "}


def filter_head(edit: LineEdit, panels: Panels, width: int) -> Line:
    """The filter being typed, and how many charts match."""
    note = f" {clean(panels.problem)}" if panels.problem else f" {len(panels.shown)} of {panels.count} charts "
    room = max(8, width - 9 - len(note))
    return fit_line([(" filter ", "title"), *edit.spans(room), (note, "warn" if panels.problem else "dim")], width)


def chart_head(
    data: ChartData,
    panels: Panels,
    look: ChartLook,
    visible: Sequence[Panel],
    width: int,
    *,
    unused_lines: int = 0,
    is_over: bool = False,
) -> Line:
    """With a crosshair, what happened there and the hardware's values that no chart shows; else the changed settings
    and the number of unusable metrics lines."""
    if look.cursor is not None:
        return fit_line([span for part in _at_cursor(data, look, visible) for span in part], width)
    parts = _settings_parts(data, panels, look, visible, width)
    if data.frame.axis == "time" and look.settings.axis in ("step", "epoch"):
        parts.insert(1, [(" · no step known" if is_over else " · no step yet", "dim")])
    if unused_lines:
        lines = "1 line" if unused_lines == 1 else f"{count(unused_lines)} lines"
        parts.append([(f" · {lines} could not be used", "warn")])
    return fitting(parts, width)


def _at_cursor(data: ChartData, look: ChartLook, visible: Sequence[Panel]) -> list[list[Span]]:
    assert look.cursor is not None
    frame = data.frame
    parts: list[list[Span]] = [[(" │ " + place_words(frame, look.cursor), "cursor")]]
    moment = None if frame.axis == "time" else frame.moment_at(look.cursor)
    if moment is not None:
        parts.append([(f" · {frame_clock(frame, moment)}", "cursor")])
    reach = (look.window[1] - look.window[0]) / 60
    for marker in markers_near(data.markers, look.cursor, reach)[:3]:
        at = f" {frame_clock(frame, marker.at)}" if marker.at is not None and frame.axis != "time" else ""
        text = marker.text or marker.word
        parts.append([(f" · {_GLYPHS.get(marker.kind, '')}{text}{at}", MARKER_STYLES[marker.kind])])
    shown = {panel.field for panel in visible}
    for field, title in (("utilization", "util"), ("power", "power"), ("temperature", "")):
        if field in shown:
            continue
        found = [curve for curve in data.hardware if curve.field == field and curve.uuid is not None]
        known = [at.value for at in values_at([curve.bins for curve in found], look.cursor)
                 if at.value is not None and at.x is not None and abs(at.x - look.cursor) <= reach * 3]  # fmt: skip
        if known:
            low, high = min(known), max(known)
            unit = {"utilization": "%", "power": " W", "temperature": " °C"}[field]
            span = f"{low:.0f}{unit}" if round(low) == round(high) else f"{low:.0f}–{high:.0f}{unit}"
            parts.append([(f" · {title} {span}".replace("  ", " "), "text")])
    return parts


def _settings_parts(
    data: ChartData, panels: Panels, look: ChartLook, visible: Sequence[Panel], width: int
) -> list[list[Span]]:
    settings = look.settings
    parts: list[list[Span]] = [[(f" x {AXIS_NAMES[data.frame.axis]}", "dim")]]
    extent = extent_of(data, is_log=settings.is_log_x)
    if settings.is_log_x:
        words = "log x" if extent is None or extent.kind == "log" else "log x: nothing above 0"
        parts.append([(f" · {words}", "accent")])
        if extent is not None and extent.kind == "log" and data.frame.start is not None and data.frame.start <= 0:
            parts.append([(", without 0", "dim")])
    if extent is not None and look.window != extent.whole:
        start, end = look.window
        last = count(end) if data.frame.axis == "step" else place_words(data.frame, end)
        parts.append([(f" · {place_words(data.frame, start)} to {last}", "accent")])
    if settings.smoothing:
        parts.append([(f" · smoothing {settings.smoothing:g}", "accent")])
    if settings.filter_text:
        parts.append([(f" · /{clean(settings.filter_text)}", "accent")])
    if panels.problem is not None:
        parts.append([(f" · {clean(panels.problem)}", "warn")])
    if visible and len(visible) < panels.count:
        first = panels.shown.index(visible[0]) + 1
        parts.append([(f" · charts {first}–{first + len(visible) - 1} of {len(panels.shown)}", "dim")])
        if len(panels.shown) < panels.count:
            parts.append([(f" ({panels.count} in all)", "dim")])
    if visible and (saved := counted_checkpoints(data.markers, look, width)):
        parts.append([(f" · {saved} checkpoints", "good")])
    redone = any(curve.redone for curve in data.curves.values())
    if redone and settings.axis in ("step", "epoch"):
        parts.append([(" · grey: redone", "dim")])
    non_finite = sum(each.non_finite for curve in data.curves.values() for each in curve.bins)
    if non_finite:
        parts.append([(f" · × {short_number(non_finite)} values not finite", "bad")])
    return parts
