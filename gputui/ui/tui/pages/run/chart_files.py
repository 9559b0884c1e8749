"""A chart of a run's page as files: a picture and its numbers."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.files import replaced
from gputui.metrics.curves.plot import drawing, hardware_drawing
from gputui.metrics.draw.parts import Chart
from gputui.ui.tui.layout.charts import ChartLook, device_index
from gputui.ui.tui.layout.panels import Panel

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_MAX = 100


def file_name(key: str) -> str:
    """``val.loss`` for ``val/loss``; with a checksum if characters had to go."""
    name = _UNSAFE.sub("_", key.replace("/", ".")).strip(".")
    if len(name) <= _NAME_MAX and name.replace(".", "/") == key:
        return name
    return f"{name[:_NAME_MAX]}-{zlib.crc32(key.encode(errors='surrogatepass')):08x}".lstrip("-")


def chart_drawing(run_id: str, panel: Panel, look: ChartLook) -> Chart:
    data = look.data
    title = f"{run_id}: {panel.title}"
    key = panel.key
    if panel.field is not None:
        devices = [curve for curve in data.hardware if curve.field == panel.field]
        names = []
        for curve in devices:
            name = panel.title
            if curve.uuid:
                # The host has no name.
                name += f" GPU {device_index(curve, look)}"
            names.append(name)
        return hardware_drawing(data, title, devices, names)
    if look.is_by_rank(panel) and key in data.ranked:
        ranks = data.ranked[key].curves
        return hardware_drawing(data, title, ranks, [f"{key} rank {curve.rank}" for curve in ranks])
    return drawing(data, title, [key], is_log=key in look.view.logs)


def write_chart(chart: Chart, folder: Path, name: str) -> tuple[str, str]:
    """Write CSV, SVG and, if possible, PNG, each atomically. Returns a sentence and its kind."""
    from gputui.metrics.draw import export

    kinds = []
    hint = ""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR_MODE)
        for kind in export.EXPORTS:
            try:
                content = export.export(kind, chart)
            except export.ChartExportError as error:
                hint = f" No .{kind}: {error}."
                continue
            with replaced(folder / f"{name}.{kind}") as file:
                file.write(content)
            kinds.append(f".{kind}")
    except OSError as error:
        return f"The chart cannot be written: {error.strerror or error}.", "error"
    return f"Wrote {folder / name} ({', '.join(kinds)}).{hint}", "info"
