"""JSON lines: each line of the run, with run and attempt, and the events of gputui in between.

Exactly once: the position is the length of the file, and what lies behind it is removed before it is written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from gputui.reports.export.line_file import LineFile
from gputui.reports.export.sink import NOTE, Begun, ExportError, Position, cleaned
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.queries import NOT_METRICS, StoredLine, as_float


class JsonlSink:
    def __init__(self, subject: Subject, target: str, key: str) -> None:
        self._about = subject.about(key)
        self._file = LineFile(Path(target))
        self.written = 0

    def refuse_taken(self) -> None:
        self._file.refuse_taken()

    def origin(self) -> Position:
        return {"bytes": 0}

    def begin(self, position: Position) -> Begun:
        size = int(position["bytes"])
        there = self._file.open()
        if size and there and not self._file.starts_with(self._mark()):
            raise ExportError(f"{self._file.path} is not the file that was written there; move it away")
        is_new = size == 0 or there < size
        self._file.cut(0 if is_new else size)
        if is_new:
            self._file.append(self._head())
            self.written += 1
        return Begun({"bytes": self._file.size}, is_new)

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        if not self._file.is_still_there():
            raise ExportError(f"{self._file.path} was moved or removed")
        self._file.append(b"".join(_encoded(self._shape(item)) for item in items))
        self.written += len(items)
        return {"bytes": self._file.size}

    def finish(self, state: str, ended_at: float) -> Position:
        self._file.close()
        return {"bytes": self._file.size}

    def _head(self) -> bytes:
        launched = {"profile": self._about.profile, "params": cleaned(self._about.params)}
        return _encoded({**self._identity(), "event": f"{NOTE}run", **launched})

    def _mark(self) -> bytes:
        """The beginning of a file of this run."""
        return _encoded(self._identity()).rstrip(b"}\n") + b","

    def _identity(self) -> dict[str, Any]:
        return {"run": self._about.run_id, "time": self._about.created_at}

    def _shape(self, item: Item) -> dict[str, Any]:
        head = {"run": self._about.run_id, "attempt": item.attempt}
        if isinstance(item, Note):
            return {**head, "time": item.at, "event": f"{NOTE}{item.kind}", **cleaned(item.data)}
        return {**head, **cleaned(self._wanted(item))}

    def _wanted(self, line: StoredLine) -> dict[str, Any]:
        """The line without metrics that were not requested."""
        if not self._about.metrics:
            return dict(line.data)
        kept = {*self._about.metrics, *NOT_METRICS}
        return {name: value for name, value in line.data.items() if name in kept or as_float(value) is None}


def _encoded(shape: dict[str, Any]) -> bytes:
    return orjson.dumps(shape, option=orjson.OPT_APPEND_NEWLINE)
