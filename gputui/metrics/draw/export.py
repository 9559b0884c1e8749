"""A chart as a file: the bins as CSV, the picture as SVG, or as PNG where pillow is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from gputui.metrics.draw.chart import Curve
from gputui.metrics.draw.picture import Drawing, Label, Path, Picture, picture

ExportKind = Literal["csv", "svg", "png"]

CSV_COLUMNS = ("name", "x_first", "x_last", "first", "last", "low", "high", "points", "not_finite")

PNG_SCALE = 2
_FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"
_AREA_OPACITY = 0.22
# The typeface that comes with pillow lacks them.
_SPELLED = str.maketrans({"↻": "restart ", "…": "...", "–": "-"})
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


class ChartExportError(Exception):
    """The file cannot be made; the text says why and what helps."""


def export(kind: ExportKind, drawing: Drawing) -> bytes:
    """The content of a file of that kind. Raises ChartExportError."""
    return EXPORTS[kind](drawing)


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
        for each in curve.bins:
            table.writerow(
                (
                    curve.label, repr(each.first_x), repr(each.last_x), each.first, each.last, each.low, each.high,
                    each.points, each.non_finite,
                )
            )  # fmt: skip
    return text.getvalue()


def svg_text(sheet: Picture) -> str:
    """A picture as SVG: text stays text."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{sheet.width}" height="{sheet.height}" '
        f'viewBox="0 0 {sheet.width} {sheet.height}" font-family={quoteattr(_FONT)}>',
        f'<rect width="{sheet.width}" height="{sheet.height}" fill="#ffffff"/>',
    ]
    for shape in sheet.shapes:
        lines.append(_svg_label(shape) if isinstance(shape, Label) else _svg_path(shape))
    return "\n".join([*lines, "</svg>", ""])


def _svg_label(label: Label) -> str:
    text = escape("".join(char for char in label.text if char.isprintable()))
    return (
        f'<text x="{label.at[0]:g}" y="{label.at[1]:g}" font-size="{label.size}" fill="{label.colour}" '
        f'text-anchor="{label.anchor}">{text}</text>'
    )


def _svg_path(path: Path) -> str:
    points = " ".join(f"{x:g},{y:g}" for x, y in path.points)
    if path.is_area:
        return f'<polygon points="{points}" fill="{path.colour}" fill-opacity="{_AREA_OPACITY}"/>'
    dashes = ' stroke-dasharray="4 4"' if path.is_dashed else ""
    return (
        f'<polyline points="{points}" fill="none" stroke="{path.colour}" stroke-width="{path.width:g}" '
        f'stroke-linejoin="round" stroke-linecap="round"{dashes}/>'
    )


def png_bytes(sheet: Picture, scale: int = PNG_SCALE) -> bytes:
    """A picture as PNG, `scale` pixels to a unit. Raises ChartExportError if pillow is not installed."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise ChartExportError("a PNG needs pillow: pip install pillow, or export an .svg") from None
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
                for start, end in _dashes(points, 4.0 * scale):
                    pen.line([start, end], shape.colour, width)
            elif len(set(points)) == 1:
                (x, y), radius = points[0], width / 2
                pen.ellipse((x - radius, y - radius, x + radius, y + radius), shape.colour)
            else:
                pen.line(points, shape.colour, width, joint="curve")
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def _dashes(
    points: Sequence[tuple[float, float]], length: float
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The dashes of a vertical line."""
    (x, top), (_, bottom) = points[0], points[-1]
    count = int((bottom - top) / (2 * length))
    return [((x, top + 2 * i * length), (x, top + (2 * i + 1) * length)) for i in range(count)]


EXPORTS: Mapping[ExportKind, Callable[[Drawing], bytes]] = {
    "csv": lambda drawing: csv_text(drawing.curves).encode(),
    "svg": lambda drawing: svg_text(picture(drawing)).encode(),
    "png": lambda drawing: png_bytes(picture(drawing)),
}
