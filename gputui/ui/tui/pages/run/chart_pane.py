"""The charts of a run's page: their actions, the line above them, and the request to the feed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from functools import partialmethod
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.files import replaced
from gputui.core.text import cell_width, clean
from gputui.core.units import count_of, short_number
from gputui.metrics.curves.model import Axis, ChartData, ChartRequest, Frame, HardwareField
from gputui.metrics.curves.plot import drawing, hardware_drawing, values_at
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.picture import Drawing
from gputui.metrics.draw.raster import Span
from gputui.metrics.draw.viewport import Viewport
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.snapshot import RunPage
from gputui.ui.tui.layout.chart_settings import LAYOUTS, ChartSettings, after
from gputui.ui.tui.layout.charts import (
    AXIS_NAMES,
    GUTTER,
    MARKER_STYLES,
    ChartLook,
    counted_checkpoints,
    extent_of,
    frame_clock,
    grid_lines,
    is_by_rank,
    markers_near,
    next_marker,
    place_words,
    plot_columns,
)
from gputui.ui.tui.layout.columns import clip_line, fit_line, framed, rule
from gputui.ui.tui.layout.panels import USUAL, Panel, PanelPlace, Panels, panels, places
from gputui.ui.tui.widgets.chart_controller import ChartController
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import SlowPane

AT_CROSSHAIR: dict[HardwareField, tuple[str, str]] = {
    "utilization": ("util ", "%"),
    "power": ("power ", " W"),
    "temperature": ("", " °C"),
}
"""Fields whose values the line above the charts has at the crosshair, and the words around."""

_GLYPHS = {"incident": "✗ ", "alert": "▲ "}
_BINS_STEP = 128

FOLDER = "charts"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_MAX = 100


class RunCharts(ChartController):
    """The state and the pane of a run's charts. ``request`` is what they need from the feed."""

    def __init__(self, settings: ChartSettings, set_up: Callable[[ChartSettings], object]) -> None:
        super().__init__(settings, set_up)
        self.pane = SlowPane(id="charts")
        self.edit: LineEdit | None = None
        self.is_maximised = False
        self.request = ChartRequest(names=USUAL, axis=settings.axis, smoothing=settings.smoothing,
                                    hardware=("utilization",))  # fmt: skip
        # The first chart until another one is chosen: that of the loss may come later than those of the hardware.
        self._is_focus_chosen = False
        self._data = ChartData(self.request, Frame(settings.axis))
        self._look: ChartLook | None = None
        self._panels = Panels((), 0)
        self._visible: Sequence[Panel] = ()
        self._places: Sequence[PanelPlace] = ()
        self._window = (0.0, 1.0)
        self._unused_lines = 0
        self._has_step = True
        self._is_over = False
        self._is_framed = False

    # --- drawing

    def prepare(self, width: int) -> None:
        """Request as many bins as fit into this width, before anything is known of the run."""
        self.request = replace(self.request, bins=_bins_for(width))

    def draw(
        self, page: RunPage, gpus: Sequence[GpuView], size: tuple[int, int], *, is_focused: bool, is_framed: bool
    ) -> None:
        """Draw the known data in a pane of this width and height, and update the request."""
        width, height = size if not is_framed else (size[0] - 2, size[1] - 1)
        self._is_framed, self._is_over = is_framed, page.run.state.is_over
        self._unused_lines = page.intake.rejected if page.intake is not None else 0
        former = self._axis
        self._has_step = bool(page.progress.step or any(one.last_step for one in page.attempts))
        if self._axis != former:
            self.viewport, self.cursor = Viewport(), None
        data = self._data = page.charts or ChartData(self.request, Frame(self.request.axis))
        has_gpus = bool(page.run.gpus)
        self._panels = panels(data.names or page.metric_names, self.settings, has_gpus=has_gpus)
        self._choose_visible(width, height - 1)
        self.request = self._wanted(width, has_gpus=has_gpus)
        look = self._look = ChartLook(
            self.settings,
            self._window,
            self.cursor if self._is_on_axis else None,
            self.focused_key if is_focused and len(self._visible) > 1 else None,
            {gpu.uuid: gpu.index for gpu in gpus},
            frozenset(number for number, rank in page.progress.ranks.items() if rank.is_slow),
        )
        shown = {panel.key for panel in self._visible}
        drawn_as = (look.settings, look.window, look.cursor, look.focus, look.slow_ranks, self.edit, self._visible)
        curves = (data.curves[name] for name in data.curves if name in shown)
        self.pane.show_when(
            (size, is_framed, page.run.gpus, drawn_as, data.request, self._is_over),
            (self._unused_lines, data.markers, data.hardware, *curves, *data.ranked.values()),
            lambda: self._lines(data, look, size),
            height=size[1],
        )

    def _choose_visible(self, width: int, height: int) -> None:
        """Choose the screenful of charts that holds the focused one."""
        shown = self._panels.shown
        keys = [panel.key for panel in shown]
        if self.focused_key not in keys or not self._is_focus_chosen:
            self.focused_key = keys[0] if keys else None
        at = keys.index(self.focused_key) if self.focused_key is not None else 0
        layout = "one" if self.is_maximised else self.settings.layout
        at_once = max(1, len(places(len(shown), width, height, layout)))
        first = at // at_once * at_once
        self._places = places(min(at_once, len(shown) - first), width, height, layout)
        self._visible = shown[first : first + len(self._places)]
        if self._places:
            place = self._places[at - first]
            self.columns = max(8, plot_columns(place.width, place.height))
        extent = extent_of(self._data, is_log=self.settings.is_log_x)
        viewport = self.viewport if self._is_on_axis else Viewport()
        self._window = (0.0, 1.0) if extent is None else viewport.window(extent)
        self.extent = extent if self._is_on_axis else None
        self.has_epochs = "epoch" in self._data.names
        # Without a curve of the focused chart, the crosshair steps along the first one.
        curves = sorted(self._data.curves.values(), key=lambda one: one.name != self.focused_key)
        self.bins = next((each.bins for each in curves if each.bins), ())

    def _wanted(self, width: int, *, has_gpus: bool) -> ChartRequest:
        is_zoomed = self.viewport.span is not None and self.extent is not None
        fields = [panel.field for panel in self._visible if panel.field is not None]
        if self.cursor is not None and has_gpus:
            fields += [field for field in AT_CROSSHAIR if field not in fields]
        return ChartRequest(
            # Until the run's own names are known, the usual ones are requested.
            names=tuple(panel.key for panel in self._visible if panel.field is None) if self._panels.shown else USUAL,
            axis=self._axis,
            window=self._window if is_zoomed else None,
            bins=_bins_for(width),
            smoothing=self.settings.smoothing,
            hardware=tuple(fields),
            is_log=self.settings.is_log_x,
            ranked=tuple(panel.key for panel in self._visible if is_by_rank(panel, self._data, self.settings)),
        )

    def _lines(self, data: ChartData, look: ChartLook, size: tuple[int, int]) -> list[Line]:
        width, height = (size[0] - 2, size[1] - 1) if self._is_framed else size
        head = self._head(data, look, width)
        if self._visible:
            lines = grid_lines(self._visible, self._places, data, look, width, height - 1)
        else:
            text = "No metric matches the filter; esc clears it." if self.settings.filter_text else "No metric yet."
            lines = [fit_line([("  " + text, "dim")], width)]
        return framed(head, lines, *size) if self._is_framed else [head, *lines][:height]

    def _head(self, data: ChartData, look: ChartLook, width: int) -> Line:
        """The filter being typed; or with a crosshair, what happened there; or the settings."""
        problem = self._panels.problem
        if self.edit is not None:
            note = clean(problem or f"{len(self._panels.shown)} of {self._panels.count} charts")
            typed = self.edit.spans(max(8, width - 11 - len(note)))
            spans = [(" filter ", "title"), *typed, (f" {note}", "warn" if problem else "dim")]
        elif look.cursor is None and self._is_framed:
            return rule("CHARTS", width, notes=self._settings_parts(data, look, width))
        else:
            parts = (
                self._settings_parts(data, look, width)
                if look.cursor is None
                else at_cursor(data, look, look.cursor, self._visible)
            )
            spans = [(f"{' · ' if number else ' '}{text}", style) for number, (text, style) in enumerate(parts)]
        line = clip_line([*spans, (" ", "text")], width)
        rest = width - sum(cell_width(text) for text, _ in line)
        # In a frame, the rest is the frame's upper side.
        return [*line, ("─" * rest, "rule")] if self._is_framed else fit_line(line, width)

    def _settings_parts(self, data: ChartData, look: ChartLook, width: int) -> list[Span]:
        settings, axis, shown, visible = look.settings, data.frame.axis, self._panels.shown, self._visible
        extent = extent_of(data, is_log=settings.is_log_x)
        is_log = extent is None or extent.kind == "log"
        is_zoomed = extent is not None and look.window != extent.whole
        start, end = (place_words(data.frame, x) for x in look.window)
        first = shown.index(visible[0]) + 1 if visible else 0
        of_all = f" ({self._panels.count} in all)" if len(shown) < self._panels.count else ""
        saved = counted_checkpoints(data.markers, look, width) if visible else 0
        redone = any(curve.redone for curve in data.curves.values())
        non_finite = sum(each.non_finite for curve in data.curves.values() for each in curve.bins)
        parts: list[tuple[object, str, str]] = [
            (True, f"x {AXIS_NAMES[axis]}", "dim"),
            (axis != settings.axis and axis == "time", f"no step {'known' if self._is_over else 'yet'}", "dim"),
            (settings.is_log_x, "log x" if is_log else "log x: nothing above 0", "accent"),
            (is_zoomed, f"{start} to {end.removeprefix('step ')}", "accent"),
            (settings.smoothing, f"smoothing {settings.smoothing:g}", "accent"),
            (settings.filter_text, f"/{clean(settings.filter_text)}", "accent"),
            (self._panels.problem, clean(self._panels.problem or ""), "warn"),
            (
                0 < len(visible) < self._panels.count,
                f"charts {first}–{first + len(visible) - 1} of {len(shown)}{of_all}",
                "dim",
            ),
            (saved, f"{saved} checkpoints", "good"),
            (redone and settings.axis in ("step", "epoch"), "grey: redone", "dim"),
            (non_finite, f"× {short_number(non_finite)} values not finite", "bad"),
            (self._unused_lines, f"{count_of(self._unused_lines, 'line')} could not be used", "warn"),
        ]
        return [(text, style) for is_so, text, style in parts if is_so]

    # --- what is there

    @property
    def _axis(self) -> Axis:
        """The chosen axis; before the first step, time instead of steps and epochs, on which nothing has a place."""
        is_too_early = not self._has_step and self.settings.axis in ("step", "epoch")
        return "time" if is_too_early else self.settings.axis

    @property
    def _is_on_axis(self) -> bool:
        """Whether the data lie on the axis; after a change, the answer takes a moment."""
        return self._data.frame.axis == self._axis

    @property
    def focus(self) -> Panel | None:
        return next((panel for panel in self._panels.shown if panel.key == self.focused_key), None)

    def why_not_by_rank(self, ranks: int) -> str | None:
        """Why the focused chart cannot be drawn by rank; None if it can."""
        panel = self.focus
        if panel is None:
            return "There is no chart yet."
        if panel.field is not None:
            return "Charts of the hardware show each GPU already."
        if ranks < 2:
            return "This run has one rank, and its curve is what you see."
        if panel.key not in self._data.rank_names:
            names = [name for name in self._data.names if name in self._data.rank_names]
            ranked = ", ".join(names[:4]) or "nothing of their own"
            return f"Only one rank reports {panel.title}; several report {ranked}."
        return None

    @property
    def head_text(self) -> str:
        """The line above the charts, for copying: the values at the crosshair."""
        return self.pane.text.partition("\n")[0].strip("╭╮─ ")

    # --- the crosshair

    @property
    def cursor_at(self) -> float | None:
        """The moment under the crosshair, in UTC unix seconds."""
        return None if self.cursor is None or not self._is_on_axis else self._data.frame.moment_at(self.cursor)

    def _move_to_marker(self, by: int) -> None:
        found = next_marker(self._data.markers, self.cursor, by) if self._is_on_axis else None
        if found is not None:
            self.point_at(found.x)

    do_marker_previous = partialmethod(_move_to_marker, -1)
    do_marker_next = partialmethod(_move_to_marker, 1)

    sideways = ChartController.move_cursor

    def scroll_to(self, *, end: bool) -> None:
        """Remove the crosshair and follow the newest values; or, if not ``end``, move it to the first place."""
        extent = self.extent
        if end or extent is None:
            self.cursor = None
            self.viewport = replace(self.viewport, end=None)
        else:
            self.point_at(extent.first)

    # --- the settings

    def do_layout(self) -> None:
        self.change(replace(self.settings, layout=after(LAYOUTS, self.settings.layout)))

    def do_pin(self) -> None:
        if (key := self.focused_key) is not None:
            self.change(self.settings.with_pin(key))

    def scroll(self, by: int) -> None:
        keys = [panel.key for panel in self._panels.shown]
        if keys and self.focused_key in keys:
            self._is_focus_chosen = True
            self.focused_key = keys[min(max(keys.index(self.focused_key) + by, 0), len(keys) - 1)]

    def scroll_page(self, by: int) -> None:
        self.scroll(by * max(1, len(self._places)))

    def filter_to(self, edit: LineEdit | None, text: str) -> None:
        self.edit = edit
        self.change(replace(self.settings, filter_text=text))

    def file(self, folder: Path, run_id: str) -> ChartFile | None:
        panel = self.focus
        if panel is None or self._look is None:
            return None
        return chart_file(folder, run_id, panel, self._data, self._look)

    def click(self, x: int, y: int) -> None:
        """Focus the clicked chart, and move the crosshair there."""
        x -= self._is_framed
        for panel, place in zip(self._visible, self._places, strict=False):
            column = x - place.left - GUTTER - 2
            if 0 <= y - 1 - place.top < place.height and 0 <= x - place.left < place.width:
                self.focused_key, self._is_focus_chosen = panel.key, True
                self.point_at_column(column, plot_columns(place.width, place.height))


def at_cursor(data: ChartData, look: ChartLook, x: float, visible: Sequence[Panel]) -> list[Span]:
    """The place of the crosshair, what happened there, and the hardware that no chart shows."""
    frame = data.frame
    parts: list[Span] = [(f"│ {place_words(frame, x)}", "cursor")]
    moment = None if frame.axis == "time" else frame.moment_at(x)
    if moment is not None:
        parts.append((frame_clock(frame, moment), "cursor"))
    reach = (look.window[1] - look.window[0]) / 60
    for marker in markers_near(data.markers, x, reach)[:3]:
        at = f" {frame_clock(frame, marker.at)}" if marker.at is not None and frame.axis != "time" else ""
        parts.append((f"{_GLYPHS.get(marker.kind, '')}{marker.text or marker.word}{at}", MARKER_STYLES[marker.kind]))
    for field, (title, unit) in AT_CROSSHAIR.items():
        bins = [one.bins for one in data.hardware if one.field == field and one.uuid is not None]
        near = (at for at in values_at(bins, x) if at.x is not None and abs(at.x - x) <= reach * 3)
        known = [at.value for at in near if at.value is not None]
        if known and field not in {panel.field for panel in visible}:
            low, high = f"{min(known):.0f}", f"{max(known):.0f}"
            parts.append((f"{title}{low}{unit}" if low == high else f"{title}{low}–{high}{unit}", "text"))
    return parts


def _bins_for(width: int) -> int:
    """Two bins per column, in steps, so that a terminal that is being resized does not request with every cell."""
    return -(-2 * width // _BINS_STEP) * _BINS_STEP


# --- the focused chart as files: a picture and its numbers


class ChartFile(Struct, frozen=True):
    """A chart to be written. ``name`` has no file extension."""

    folder: Path
    name: str
    drawing: Drawing


def chart_file(folder: Path, run_id: str, panel: Panel, data: ChartData, look: ChartLook) -> ChartFile:
    """The chart of the window that the screen shows."""
    title = f"{run_id}: {panel.title}"
    if panel.field is not None:
        devices = [curve for curve in data.hardware if curve.field == panel.field]
        # A GPU that is gone is named by its UUID, the host by nothing.
        names = [f"{panel.title} GPU {look.gpus.get(one.uuid, one.uuid)}" if one.uuid else panel.title
                 for one in devices]  # fmt: skip
        drawn = hardware_drawing(data, title, devices, names)
    elif is_by_rank(panel, data, look.settings) and panel.key in data.ranked:
        ranks = data.ranked[panel.key].curves
        drawn = hardware_drawing(data, title, ranks, [f"{panel.key} rank {one.rank}" for one in ranks])
    else:
        drawn = drawing(data, title, [panel.key], is_log=panel.key in look.settings.logs)
    return ChartFile(folder / FOLDER, f"{_file_name(panel.key)}-{data.frame.axis}", drawn)


def _file_name(key: str) -> str:
    """A unique file name for a metric: ``val.loss`` for ``val/loss``; with a checksum if characters had to go."""
    name = _UNSAFE.sub("_", key.replace("/", ".")).strip(".")
    if len(name) <= _NAME_MAX and name.replace(".", "/") == key:
        return name
    return f"{name[:_NAME_MAX]}-{zlib.crc32(key.encode(errors='surrogatepass')):08x}".lstrip("-")


def write_chart(file: ChartFile) -> str:
    """Write the chart as CSV, SVG and, if possible, PNG, each file atomically. Returns a sentence. Raises OSError."""
    from gputui.metrics.draw import export

    file.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR_MODE)
    kinds, hint = [], ""
    for kind in export.EXPORTS:
        try:
            content = export.export(kind, file.drawing)
        except export.ChartExportError as error:
            hint = f" No .{kind}: {error}."
            continue
        with replaced(file.folder / f"{file.name}.{kind}") as written:
            written.write(content)
        kinds.append(f".{kind}")
    return f"Wrote {file.folder / file.name} ({', '.join(kinds)}).{hint}"
