"""A file that is rewritten and replaced as a whole, so that readers always find a complete one. It is updated rarely:
once a minute, later less often, and at the end."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gputui.reports.export.line_file import LineFile
from gputui.reports.export.sink import Begun, Position
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item


class WholeFileSink(ABC):
    """A sink whose updates write everything again. Subclasses define `fill`."""

    def __init__(self, subject: Subject, target: str, key: str) -> None:
        self._subject = subject
        self._target = Path(target)
        self.written = 0

    @abstractmethod
    def fill(self, subject: Subject, file: IO[bytes]) -> int:
        """Write the whole run into an empty file. Returns the rows. Raises ExportError or OSError."""

    def refuse_taken(self) -> None:
        LineFile(self._target).refuse_taken()

    def origin(self) -> Position:
        return {}

    def begin(self, position: Position) -> Begun:
        return Begun({}, bool(position.get("is_behind")) or not self._target.exists())

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        if has_more:
            return {"is_behind": True}
        beside = self._target.with_name(f".{self._target.name}.{os.getpid()}.new")
        try:
            with beside.open("wb") as file:
                self.written = self.fill(self._subject.with_current_metrics(), file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._target)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()
        return {}

    def finish(self, state: str, ended_at: float) -> Position:
        return {}
