"""A chart as shapes on a white sheet, for files, with the same curves, axes and markers as in the
terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from gputui.core.units import metric_value, short_number
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.parts import Chart, Curve
from gputui.metrics.draw.scales import LinearScale, Scale
from gputui.metrics.draw.value_axis import value_scale_of, value_ticks
from gputui.metrics.draw.x_axis import x_scale_of, x_ticks

WIDTH = 1200
HEIGHT = 600
_LEFT = 90
_RIGHT = 20
_TOP = 50
_BOTTOM = 60
_TEXT_SIZE = 14
_TITLE_SIZE = 18
_LEGEND_APART = 18
_DOT_WIDTH = 7.0

# Okabe and Ito's colours, which the colour-blind tell apart (jfly.uni-koeln.de/color).
COLOURS: Mapping[str, str] = {
    "series.0": "#0072b2", "series.1": "#d55e00", "series.2": "#009e73", "series.3": "#cc79a7",
    "series.4": "#e69f00", "series.5": "#56b4e9", "good": "#009e73", "dim": "#9a9a9a",
    "shadow": "#b0b0b0", "marker": "#707070", "bad": "#c00000", "axis": "#505050",
    "text": "#202020", "grid": "#e4e4e4",
}  # fmt: skip

Point = tuple[float, float]


class Path(Struct, frozen=True):
    """A line through points; `is_area` fills what they enclose, faintly."""

    points: tuple[Point, ...]
    colour: str
    width: float = 1.5
    is_area: bool = False
    is_dashed: bool = False


class Label(Struct, frozen=True):
    """Text whose baseline begins, ends or has its middle at a point."""

    at: Point
    text: str
    colour: str
    size: int = _TEXT_SIZE
    anchor: Literal["start", "middle", "end"] = "start"


class Picture(Struct, frozen=True):
    """Shapes in the order in which they are drawn, in a coordinate system that grows down from the
    upper left."""

    width: int
    height: int
    shapes: tuple[Path | Label, ...]


def picture(chart: Chart, width: int = WIDTH, height: int = HEIGHT) -> Picture:
    """Lay a chart out on a sheet of at least 200 × 150."""
    sheet = _Sheet(chart, max(200, width), max(150, height))
    return Picture(sheet.width, sheet.height, tuple(sheet.shapes()))


class _Sheet:
    def __init__(self, chart: Chart, width: int, height: int) -> None:
        self.chart = chart
        self.width = width
        self.height = height
        bins = chart.bins
        self.is_empty = not bins
        self.y = value_scale_of(bins, chart.y_axis)
        self.x = x_scale_of(bins, chart.x_axis)

    def shapes(self) -> Iterator[Path | Label]:
        yield from self._grid()
        yield from self._markers()
        for curve in self.chart.curves:
            yield from self._curve(curve)
        yield from self._legend()
        if self.is_empty:
            middle = ((_LEFT + self.width - _RIGHT) / 2, self.height / 2)
            yield Label(middle, "no data yet", COLOURS["axis"], _TITLE_SIZE, "middle")

    def _across(self, x: float) -> float | None:
        return _on(self.x, x, _LEFT, self.width - _RIGHT)

    def _down(self, value: float) -> float | None:
        return _on(self.y, value, self.height - _BOTTOM, _TOP)

    def _grid(self) -> Iterator[Path | Label]:
        axis = COLOURS["axis"]
        bottom = self.height - _BOTTOM
        right = self.width - _RIGHT
        y_axis = self.chart.y_axis
        ticks, labels = value_ticks(self.y, y_axis, 8)
        for tick, text in zip(ticks, labels, strict=True):
            if (y := self._down(tick)) is not None:
                yield Path(((_LEFT, y), (right, y)), COLOURS["grid"], 1.0)
                yield Label((_LEFT - 8, y + _TEXT_SIZE / 3), text, axis, anchor="end")
        x_axis = self.chart.x_axis
        most = max(2, (right - _LEFT) // 110)
        for tick, text in zip(*x_ticks(self.x, x_axis, most), strict=True):
            if (x := self._across(tick)) is not None:
                yield Path(((x, bottom), (x, bottom + 6)), axis, 1.0)
                yield Label((x, bottom + 22), text, axis, anchor="middle")
        yield Path(((_LEFT, _TOP), (_LEFT, bottom), (right, bottom)), axis, 1.0)
        if axis_name := x_axis.title(self.x):
            yield Label((right, bottom + 44), axis_name, axis, anchor="end")

    def _markers(self) -> Iterator[Path | Label]:
        """Lines and notches; of overlapping labels, the first."""
        bottom = self.height - _BOTTOM
        free = 0.0
        for marker in sorted(self.chart.markers, key=lambda marker: marker.x):
            x = self._across(marker.x)
            if x is None:
                continue
            colour = COLOURS.get(marker.style, COLOURS["marker"])
            if not marker.is_line:
                yield Path(((x, bottom - 6), (x, bottom)), colour, 2.0)
                continue
            yield Path(((x, _TOP), (x, bottom)), colour, 1.0, is_dashed=True)
            width = _width(marker.label)
            start = max(free, x - width / 2)
            if marker.label and start <= x:
                yield Label((start, bottom + 40), marker.label, colour)
                free = start + width + _LEGEND_APART / 2

    def _curve(self, curve: Curve) -> Iterator[Path]:
        colour = COLOURS.get(curve.style, COLOURS["text"])
        if curve.is_shadow:
            colour = COLOURS["shadow"]
        for stretch in _stretches(curve.bins):
            upper = self._points((x, one_bin.high) for one_bin in stretch for x in (one_bin.first_x, one_bin.last_x))
            lower = self._points((x, one_bin.low) for one_bin in stretch for x in (one_bin.first_x, one_bin.last_x))
            line = self._points(
                pair
                for one_bin in stretch
                for pair in ((one_bin.first_x, one_bin.first), (one_bin.last_x, one_bin.last))
            )
            if upper != lower and len(upper) == len(lower):
                yield Path((*upper, *reversed(lower)), colour, is_area=True)
            if line:
                points = tuple(dict.fromkeys(line))
                # A single place is a dot: a line of no length with a round end.
                if len(points) == 1:
                    yield Path(points * 2, colour, _DOT_WIDTH)
                else:
                    yield Path(points, colour)
        for one_bin in curve.bins:
            if one_bin.non_finite and (place := self._across(one_bin.first_x)) is not None:
                yield Path(((place, _TOP), (place, _TOP + 10)), COLOURS["bad"], 2.0)

    def _points(self, pairs: Iterable[tuple[float, float | None]]) -> list[Point]:
        points = []
        for x, value in pairs:
            if value is None:
                continue
            across = self._across(min(max(x, self.x.low), self.x.high))
            down = self._down(value)
            if across is not None and down is not None:
                points.append((across, down))
        return points

    def _legend(self) -> Iterator[Label]:
        right = float(self.width - _RIGHT)
        non_finite = sum(one_bin.non_finite for one_bin in self.chart.bins)
        notes = []
        if non_finite:
            notes.append((f"{short_number(non_finite)} not finite", "bad"))
        if self.chart.y_axis.kind == "log":
            is_linear = isinstance(self.y, LinearScale) and not self.is_empty
            scale_note = "nothing above 0: linear" if is_linear else "log"
            notes.append((scale_note, "axis"))
        for text, key in notes:
            yield Label((right, 30), text, COLOURS[key], anchor="end")
            right -= _width(text) + _LEGEND_APART
        x = float(_LEFT)
        if self.chart.title:
            yield Label((x, 30), self.chart.title, COLOURS["text"], _TITLE_SIZE)
            x += _width(self.chart.title, _TITLE_SIZE) + _LEGEND_APART
        for curve in self.chart.curves:
            entry = curve.label
            if curve.value is not None:
                entry = f"{entry} {metric_value(curve.value)}".lstrip()
            if not entry or curve.is_shadow or x + _width(entry) > right:
                continue
            yield Label((x, 30), entry, COLOURS.get(curve.style, COLOURS["text"]))
            x += _width(entry) + _LEGEND_APART


def _on(scale: Scale, value: float, start: float, end: float) -> float | None:
    """A value as a place between two ends; None for one beyond them."""
    place = scale.place(value)
    if place is None or not -1e-9 <= place <= 1 + 1e-9:
        return None
    return round(start + (end - start) * place, 2)


def _stretches(bins: Sequence[Bin]) -> list[list[Bin]]:
    """The bins between gaps; what is not finite breaks a curve too."""
    stretches: list[list[Bin]] = [[]]
    for one_bin in bins:
        if one_bin.gap_before or one_bin.low is None:
            stretches.append([])
        if one_bin.low is not None:
            stretches[-1].append(one_bin)
    return [stretch for stretch in stretches if stretch]


def _width(text: str, size: int = _TEXT_SIZE) -> float:
    """About how wide text is in a common typeface."""
    return len(text) * size * 0.6
