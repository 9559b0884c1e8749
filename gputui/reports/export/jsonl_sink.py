"""JSON lines: each line of the run, with run and attempt, and the events of gputui in between.

Exactly once: the position is the length of the file, and what lies behind it is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from gputui.reports.export.files import LineFile, refuse_full_file
from gputui.reports.export.sink import ExportError, Position, Sink
from gputui.reports.export.subject import Subject
from gputui.reports.export.texts import NOTE, clean_value
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.stored_lines import NOT_METRICS, StoredLine, as_float


class JsonlSink(Sink):
    def __init__(self, subject: Subject, target: str) -> None:
        super().__init__(subject, target)
        self._file = LineFile(Path(target))
        self._identity = {"run": subject.run.run_id, "time": subject.run.created_at}

    def refuse_taken(self) -> None:
        refuse_full_file(self._file.path)

    def begin(self, position: Position) -> bool:
        size = int(position.get("bytes", 0))
        current_size = self._file.open()
        mark = _encode(self._identity).rstrip(b"}\n") + b","
        if size and current_size and not self._file.starts_with(mark):
            raise ExportError(f"{self._file.path} is not the file that was written there; move it away")
        is_new = size == 0 or current_size < size
        if is_new:
            self._file.cut(0)
            launched = {"profile": self._subject.run.profile, "params": clean_value(self._subject.params)}
            self._file.append(_encode({**self._identity, "event": f"{NOTE}run", **launched}))
            self.written += 1
        else:
            self._file.cut(size)
        return is_new

    def write(self, items: Sequence[Item], has_more: bool) -> None:
        self._file.append(b"".join(_encode(self._shape(item)) for item in items))
        self.written += len(items)

    def position(self) -> Position:
        return {"bytes": self._file.size}

    def close(self) -> None:
        self._file.close()

    def _shape(self, item: Item) -> dict[str, Any]:
        head = {"run": self._subject.run.run_id, "attempt": item.attempt}
        if isinstance(item, Note):
            return {**head, "time": item.at, "event": f"{NOTE}{item.kind}", **clean_value(item.data)}
        return {**head, **clean_value(self._requested(item))}

    def _requested(self, line: StoredLine) -> dict[str, Any]:
        """The line without metrics that were not requested."""
        if not self._subject.requested_metrics:
            return dict(line.data)
        names = {*self._subject.requested_metrics, *NOT_METRICS}
        return {name: value for name, value in line.data.items() if name in names or as_float(value) is None}


def _encode(shape: dict[str, Any]) -> bytes:
    return orjson.dumps(shape, option=orjson.OPT_APPEND_NEWLINE)
