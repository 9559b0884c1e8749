"""The focused chart as files: a picture and its numbers."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.files import replaced
from gputui.metrics.curves.model import ChartData
from gputui.metrics.curves.plot import COLOURS
from gputui.metrics.draw.parts import Curve
from gputui.metrics.draw.picture import Drawing
from gputui.ui.tui.layout.charts import ChartLook, drawn_markers, is_by_rank, panel_curves, within, x_axis, y_axis
from gputui.ui.tui.layout.panels import Panel

FOLDER = "charts"

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_MAX = 100


class ChartFile(Struct, frozen=True):
    """A chart to be written. ``name`` has no file extension."""

    folder: Path
    name: str
    drawing: Drawing


def chart_file(folder: Path, run_id: str, panel: Panel, data: ChartData, look: ChartLook) -> ChartFile:
    """The chart as it is on the screen, without the crosshair."""
    look = replace(look, cursor=None, focus=None)
    if is_by_rank(panel, data, look.settings) and panel.key in data.ranked:
        drawn = [
            Curve(
                within(each.bins, look.window),
                f"series.{each.rank % COLOURS}",
                f"{panel.key} rank {each.rank}",
                each.last,
            )
            for each in data.ranked[panel.key].curves
        ]
    elif panel.field is not None:
        devices = [curve for curve in data.hardware if curve.field == panel.field]
        devices.sort(key=lambda curve: look.gpus.get(curve.uuid or "", 1 << 20))
        # A GPU that is gone is named by its UUID, the host by nothing.
        names = [
            panel.title if curve.uuid is None else f"{panel.title} GPU {look.gpus.get(curve.uuid, curve.uuid)}"
            for curve in devices
        ]
        drawn = [
            Curve(within(curve.bins, look.window), f"series.{number % COLOURS}", name, curve.last)
            for number, (curve, name) in enumerate(zip(devices, names, strict=True))
        ]
    else:
        drawn = [_named(curve, panel) for curve in panel_curves(panel, data, look)]
    drawing = Drawing(
        [curve for curve in drawn if curve.bins],
        f"{run_id}: {panel.title}",
        x_axis(data, look),
        y_axis(panel, look),
        [marker for marker in drawn_markers(data.markers, with_words=True) if marker.is_line],
    )
    return ChartFile(folder / FOLDER, f"{_file_name(panel.key)}-{data.frame.axis}", drawing)


def _file_name(key: str) -> str:
    """A unique file name for a metric: ``val.loss`` for ``val/loss``; with a checksum if characters had to go."""
    name = _UNSAFE.sub("_", key.replace("/", ".")).strip(".")
    if len(name) <= _NAME_MAX and name.replace(".", "/") == key:
        return name
    return f"{name[:_NAME_MAX]}-{zlib.crc32(key.encode(errors='surrogatepass')):08x}".lstrip("-")


def _named(curve: Curve, panel: Panel) -> Curve:
    """The curve with a name for the legend and the table; shadows get none in the legend."""
    if curve.is_shadow:
        return replace(curve, style="dim", label=f"{panel.key} (measured)" if curve.value is not None else
                       f"{panel.key} (redone)")  # fmt: skip
    return replace(curve, label=f"{panel.key} (smoothed)" if curve.label else panel.key)


def write(file: ChartFile) -> str:
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
