"""A chart as a file: CSV, SVG, and PNG where pillow is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal
from xml.sax.saxutils import escape, quoteattr

from gputui.core.errors import ExplainedError
from gputui.metrics.draw.parts import Chart, Curve
from gputui.metrics.draw.picture import Label, Path, Picture, picture

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

ExportKind = Literal["csv", "svg", "png"]

CSV_COLUMNS = ("name", "x_first", "x_last", "first", "last", "low", "high", "points", "not_finite")

PNG_SCALE = 2  # sharp on screens with two pixels for each point
_FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"
_DASH = 4  # and as long a gap behind it
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
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{sheet.width}" height="{sheet.height}" '
            f'viewBox="0 0 {sheet.width} {sheet.height}" font-family={quoteattr(_FONT)}>',
            f'<rect width="{sheet.width}" height="{sheet.height}" fill="#ffffff"/>',
            *map(_svg_element, sheet.shapes),
            "</svg>",
            "",
        ]
    )


def _svg_element(shape: Label | Path) -> str:
    if isinstance(shape, Label):
        x, y = shape.at
        text = escape("".join(char for char in shape.text if char.isprintable()))
        return (
            f'<text x="{x:g}" y="{y:g}" font-size="{shape.size}" fill="{shape.colour}" '
            f'text-anchor="{shape.anchor}">{text}</text>'
        )
    points = " ".join(f"{x:g},{y:g}" for x, y in shape.points)
    if shape.is_area:
        return f'<polygon points="{points}" fill="{shape.colour}" fill-opacity="{_AREA_OPACITY}"/>'
    dashes = ""
    if shape.is_dashed:
        dashes = f' stroke-dasharray="{_DASH} {_DASH}"'
    return (
        f'<polyline points="{points}" fill="none" stroke="{shape.colour}" stroke-width="{shape.width:g}" '
        f'stroke-linejoin="round" stroke-linecap="round"{dashes}/>'
    )


def png_bytes(sheet: Picture, scale: int = PNG_SCALE) -> bytes:
    """A picture as PNG, ``scale`` pixels to a unit. Raises ChartExportError without pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise ChartExportError("a PNG needs pillow: pip install pillow, or export .svg") from None
    image = Image.new("RGB", (sheet.width * scale, sheet.height * scale), "#ffffff")
    for shape in sheet.shapes:
        if isinstance(shape, Label):
            _draw_label(image, shape, scale)
        elif shape.is_area:
            _draw_area(image, shape, scale)
        else:
            _draw_line(image, shape, scale)
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def _draw_label(image: PilImage, label: Label, scale: int) -> None:
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default(label.size * scale)
    x, y = label.at
    text = label.text.translate(_SPELLED)
    ImageDraw.Draw(image).text((x * scale, y * scale), text, label.colour, font, _ANCHORS[label.anchor])


def _draw_area(image: PilImage, area: Path, scale: int) -> None:
    """Lay a colour over what is drawn already."""
    from PIL import Image, ImageDraw

    faint = Image.new("L", image.size, 0)
    ImageDraw.Draw(faint).polygon(_pixels(area, scale), fill=round(255 * _AREA_OPACITY))
    image.paste(area.colour, (0, 0, *image.size), faint)


def _draw_line(image: PilImage, line: Path, scale: int) -> None:
    """Draw a line, a vertical dashed one, or a dot where all points are the same."""
    from PIL import ImageDraw

    points = _pixels(line, scale)
    width = max(1, round(line.width * scale))
    pen = ImageDraw.Draw(image)
    if len(points) < 2:
        return
    if line.is_dashed:
        x, top = points[0]
        _, bottom = points[-1]
        dash = _DASH * scale
        for start in range(int(top), int(bottom), 2 * dash):
            pen.line([(x, start), (x, min(start + dash, bottom))], line.colour, width)
    elif len(set(points)) == 1:
        x, y = points[0]
        radius = width / 2
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), line.colour)
    else:
        pen.line(points, line.colour, width, joint="curve")


def _pixels(path: Path, scale: int) -> list[tuple[float, float]]:
    return [(x * scale, y * scale) for x, y in path.points]


EXPORTS: Mapping[ExportKind, Callable[[Chart], bytes]] = {
    "csv": lambda chart: csv_text(chart.curves).encode(),
    "svg": lambda chart: svg_text(picture(chart)).encode(),
    "png": lambda chart: png_bytes(picture(chart)),
}
