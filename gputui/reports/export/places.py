"""Where an export may go."""

from __future__ import annotations

from pathlib import Path

from gputui.reports.export.line_file import cannot_write
from gputui.reports.export.sink import ExportError


def refuse_full_folder(target: Path) -> None:
    """Raise ExportError unless a folder is new or empty: TensorBoard and W&B take all in one folder for one run."""
    try:
        if target.is_dir() and any(target.iterdir()):
            raise ExportError(f"{target} is not empty; choose another place")
        if target.exists() and not target.is_dir():
            raise ExportError(f"{target} is a file; choose another place")
    except OSError as error:
        raise cannot_write(target, error) from error
