"""The focused chart as files: a picture and its numbers."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from msgspec import Struct

from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.files import replaced
from gputui.metrics.curves.model import ChartData
from gputui.metrics.curves.plot import drawing, hardware_drawing
from gputui.metrics.draw.picture import Drawing
from gputui.ui.tui.layout.charts import ChartLook, is_by_rank
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
        drawn = hardware_drawing(data, title, ranks, [f"{panel.key} rank {each.rank}" for each in ranks])
    else:
        drawn = drawing(data, title, [panel.key], is_log=panel.key in look.settings.logs)
    return ChartFile(folder / FOLDER, f"{_file_name(panel.key)}-{data.frame.axis}", drawn)


def _file_name(key: str) -> str:
    """A unique file name for a metric: ``val.loss`` for ``val/loss``; with a checksum if characters had to go."""
    name = _UNSAFE.sub("_", key.replace("/", ".")).strip(".")
    if len(name) <= _NAME_MAX and name.replace(".", "/") == key:
        return name
    return f"{name[:_NAME_MAX]}-{zlib.crc32(key.encode(errors='surrogatepass')):08x}".lstrip("-")


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
