"""A chart as a file (CSV, SVG, PNG where pillow is installed) or as plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from xml.sax.saxutils import escape, quoteattr

from gputui.core.errors import ExplainedError
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.parts import Chart, Curve
from gputui.metrics.draw.picture import Label, Picture, picture
from gputui.metrics.draw.scales import AxisKind, Scale, round_outward, value_scale
from gputui.metrics.draw.ticks import linear_ticks, log_ticks, tick_labels

ExportKind = Literal["csv", "svg", "png"]

CSV_COLUMNS = ("name", "x_first", "x_last", "first", "last", "low", "high", "points", "not_finite")

PNG_SCALE = 2  # sharp on screens with two pixels for each point
_FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"
_AREA_OPACITY = 0.22  # lets the grid and other curves show through
# The typeface that comes with pillow lacks them.
_SPELLED = str.maketrans({"↻": "restart ", "…": "...", "–": "-"})
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


class ChartExportError(ExplainedError):
    """The file cannot be made; the text says why and what helps."""


def export(kind: ExportKind, chart: Chart) -> bytes:
    """The content of a file of that kind. Raises ChartExportError."""
    return EXPORTS[kind](chart)


def kind_of(name: str) -> ExportKind:
    """The kind that a file name asks for by its ending. Raises ChartExportError."""
    ending = name.rpartition(".")[2].lower()
    for kind in EXPORTS:
        if ending == kind:
            return kind
    raise ChartExportError(f"{name}: a chart is exported as .csv, .svg or .png")


def csv_text(curves: Sequence[Curve]) -> str:
    """A row per bin of each curve; what is unknown is empty. x is in the units of the axis."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for curve in curves:
        for one_bin in curve.bins:
            ends = (repr(one_bin.first_x), repr(one_bin.last_x))
            values = (one_bin.first, one_bin.last, one_bin.low, one_bin.high)
            table.writerow((curve.label, *ends, *values, one_bin.points, one_bin.non_finite))
    return text.getvalue()


def svg_text(sheet: Picture) -> str:
    """A picture as SVG: text stays text."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{sheet.width}" height="{sheet.height}" '
        f'viewBox="0 0 {sheet.width} {sheet.height}" font-family={quoteattr(_FONT)}>',
        f'<rect width="{sheet.width}" height="{sheet.height}" fill="#ffffff"/>',
    ]
    for shape in sheet.shapes:
        if isinstance(shape, Label):
            text = escape("".join(char for char in shape.text if char.isprintable()))
            lines.append(
                f'<text x="{shape.at[0]:g}" y="{shape.at[1]:g}" font-size="{shape.size}" fill="{shape.colour}" '
                f'text-anchor="{shape.anchor}">{text}</text>'
            )
            continue
        points = " ".join(f"{x:g},{y:g}" for x, y in shape.points)
        dashes = ' stroke-dasharray="4 4"' if shape.is_dashed else ""
        if shape.is_area:
            lines.append(f'<polygon points="{points}" fill="{shape.colour}" fill-opacity="{_AREA_OPACITY}"/>')
        else:
            lines.append(
                f'<polyline points="{points}" fill="none" stroke="{shape.colour}" stroke-width="{shape.width:g}" '
                f'stroke-linejoin="round" stroke-linecap="round"{dashes}/>'
            )
    return "\n".join([*lines, "</svg>", ""])


def png_bytes(sheet: Picture, scale: int = PNG_SCALE) -> bytes:
    """A picture as PNG, `scale` pixels to a unit. Raises ChartExportError if pillow is not
    installed."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise ChartExportError("a PNG needs pillow: pip install pillow, or export .svg") from None
    image = Image.new("RGB", (sheet.width * scale, sheet.height * scale), "#ffffff")
    for shape in sheet.shapes:
        if isinstance(shape, Label):
            font = ImageFont.load_default(shape.size * scale)
            at = (shape.at[0] * scale, shape.at[1] * scale)
            ImageDraw.Draw(image).text(at, shape.text.translate(_SPELLED), shape.colour, font, _ANCHORS[shape.anchor])
            continue
        points = [(x * scale, y * scale) for x, y in shape.points]
        if shape.is_area:
            faint = Image.new("L", image.size, 0)
            ImageDraw.Draw(faint).polygon(points, fill=round(255 * _AREA_OPACITY))
            image.paste(shape.colour, (0, 0, *image.size), faint)
        elif len(points) > 1:
            pen = ImageDraw.Draw(image)
            width = max(1, round(shape.width * scale))
            if shape.is_dashed:
                # A vertical line.
                x, top = points[0]
                _, bottom = points[-1]
                for start in range(int(top), int(bottom), 8 * scale):
                    pen.line([(x, start), (x, min(start + 4 * scale, bottom))], shape.colour, width)
            elif len(set(points)) == 1:
                x, y = points[0]
                radius = width / 2
                pen.ellipse((x - radius, y - radius, x + radius, y + radius), shape.colour)
            else:
                pen.line(points, shape.colour, width, joint="curve")
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


EXPORTS: Mapping[ExportKind, Callable[[Chart], bytes]] = {
    "csv": lambda chart: csv_text(chart.curves).encode(),
    "svg": lambda chart: svg_text(picture(chart)).encode(),
    "png": lambda chart: png_bytes(picture(chart)),
}


# plotext's markers, and how the heading shows them.
_MARKERS: Final = (("braille", "⠿"), *((sign, sign) for sign in "*o+x#"))


def plot_text(
    series: Sequence[tuple[str, Sequence[Bin]]],
    width: int,
    height: int,
    *,
    title: str = "",
    x_label: str = "",
    log_y: bool = False,
) -> str:
    """A framed plot of several series (label and bins) as text of ``width`` × ``height`` cells,
    without colours; with nothing to draw, a sentence that says so.

    What cannot be drawn (not finite, or for ``log_y`` not above 0) is counted in the line above the
    plot, which begins with ``title``. plotext needs about 20 × 8 cells. All texts must be harmless.
    """
    heading = [title]
    curves: list[tuple[str, list[tuple[float, float]]]] = []
    for number, (label, bins) in enumerate(series):
        marker, sign = _MARKERS[number % len(_MARKERS)]
        path = [(x, value) for x, value in _path(bins) if not log_y or value > 0]
        parts = [label]
        if len(series) > 1:
            parts.insert(0, sign)
        left_out = sum(one_bin.non_finite for one_bin in bins)
        if log_y:
            below = (one_bin for one_bin in bins if one_bin.high is not None and one_bin.high <= 0)
            left_out += sum(one_bin.points - one_bin.non_finite for one_bin in below)
        if left_out:
            parts.append(f"({left_out} left out)")
        heading.append(" ".join(filter(None, parts)))
        if path:
            curves.append((marker, path))
    first_line = "  ".join(filter(None, heading))[: max(0, width)].rstrip()
    if not curves:
        return f"{first_line}\nnothing to plot".strip()
    kind: AxisKind = "log" if log_y else "linear"
    body = _plotext(curves, width, height - bool(first_line), x_label, kind)
    lines = [line.rstrip() for line in body.rstrip().split("\n")]
    if first_line:
        lines.insert(0, first_line)
    return "\n".join(lines)


def _path(bins: Iterable[Bin]) -> Iterable[tuple[float, float]]:
    """Points through the first, lowest, highest and last value of each bin."""
    for one_bin in bins:
        if one_bin.low is None or one_bin.high is None or one_bin.first is None or one_bin.last is None:
            continue
        yield one_bin.first_x, one_bin.first
        if one_bin.low != one_bin.high:
            middle = one_bin.first_x / 2 + one_bin.last_x / 2
            yield from ((middle, one_bin.low), (middle, one_bin.high), (one_bin.last_x, one_bin.last))


def _plotext(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], width: int, height: int, x_label: str, kind: AxisKind
) -> str:
    import plotext

    xs = [x for _, path in curves for x, _ in path]
    values = [value for _, path in curves for _, value in path]
    x_scale = value_scale(min(xs), max(xs))
    y_scale = value_scale(min(values), max(values), kind)
    y_scale = value_scale(*round_outward(y_scale.low, y_scale.high, kind), kind)

    def places(scale: Scale, numbers: Iterable[float]) -> list[float]:
        # plotext's library aborts the process if differences of values overflow, so it gets only 0
        # … 1.
        return [min(1.0, max(0.0, scale.place(value) or 0.0)) for value in numbers]

    # One figure serves the whole process, and by default it is no larger than the terminal.
    figure: Any = plotext.figure
    plotext.terminal.limit(False, False)
    figure.clear()
    try:
        figure.theme("colorless")
        figure.plot_size(width, height)
        for marker, path in curves:
            across = places(x_scale, (x for x, _ in path))
            up = places(y_scale, (value for _, value in path))
            figure.draw(figure.signal(across, up, marker=marker).lines())
        # plotext's own logarithm fails on a constant, and its labels have an exponent in every
        # place.
        x_ticks = linear_ticks(x_scale.low, x_scale.high, max(2, width // 12))
        y_ticks_of = log_ticks if kind == "log" else linear_ticks
        y_ticks = y_ticks_of(y_scale.low, y_scale.high, max(2, height // 3))
        for name, scale, ticks in (("x", x_scale, x_ticks), ("y", y_scale, y_ticks)):
            ruler = figure.ruler(name)
            ruler.lim(0.0, 1.0)
            ruler.ticks(places(scale, ticks), tick_labels(ticks))
        if x_label:
            figure.label(x_label, "x")
        return str(figure.build().string(True))
    finally:
        figure.clear()
