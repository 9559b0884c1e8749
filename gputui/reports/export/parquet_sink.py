"""Parquet: one file, written whole each time and put in place of the one before, so that whoever opens it always finds
a complete one. It cannot be appended to, and is brought up to date seldom: once a minute, later less often, and at the
end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gputui.reports.export.line_file import LineFile
from gputui.reports.export.parquet_file import write_parquet
from gputui.reports.export.sink import Begun, Position
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item


class ParquetSink:
    def __init__(self, subject: Subject, target: str, key: str) -> None:
        self._subject = subject
        self._target = Path(target)
        self.written = 0

    def refuse_taken(self) -> None:
        LineFile(self._target).refuse_taken()

    def origin(self) -> Position:
        return {}

    def begin(self, position: Position) -> Begun:
        return Begun({}, bool(position.get("is_behind")) or not self._target.exists())

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        if has_more:
            return {"is_behind": True}
        self.written = write_parquet(self._subject.now(), self._target)
        return {}

    def finish(self, state: str, ended_at: float) -> Position:
        return {}
