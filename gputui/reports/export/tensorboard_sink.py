"""TensorBoard event files in a separate folder for the run.

An attempt that continues from a checkpoint repeats steps. It begins with a START record, by which TensorBoard discards
what the previous attempt wrote from that step on: a curve shows the training that led to the result. Texts follow the
same rule, so each contains the whole history.

Exactly once: the position is the length of the newest event file. A new process truncates that file there and begins
another, because TensorBoard may have read beyond the position and reads files in the order of their names.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gputui.reports.export.line_file import LineFile, refuse_full_folder
from gputui.reports.export.sink import NOTE, Begun, ExportError, Position, cleaned, sentence
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.queries import StoredLine

_FILE_VERSION = "brain.Event:2"
_STORY_SENTENCES = 100


class TensorBoardSink:
    """Event files ``events.out.tfevents.gputui.<number>``, a new one for each process."""

    def __init__(self, subject: Subject, target: str, key: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

        self._event, self._session_log = event_pb2.Event, event_pb2.SessionLog
        self._summary, self._metadata = summary_pb2.Summary, summary_pb2.SummaryMetadata
        self._tensor, self._string = tensor_pb2.TensorProto, types_pb2.DT_STRING
        self._crc = masked_crc32c
        self._about = subject.about(key)
        self._target = Path(target)
        self._file: LineFile | None = None
        self._number = 0
        # The newest attempt and step.
        self._attempt = 0
        self._step = 0
        self._story: list[str] = []
        self.written = 0

    def refuse_taken(self) -> None:
        refuse_full_folder(self._target)

    def origin(self) -> Position:
        return {"file": 0, "bytes": 0, "attempt": 0, "step": 0, "story": []}

    def begin(self, position: Position) -> Begun:
        number, size = int(position["file"]), int(position["bytes"])
        self._target.mkdir(parents=True, exist_ok=True)
        is_new = number == 0 or not self._is_whole(number, size)
        for path in self._target.glob(_name("*")):
            if is_new or int(path.name.rpartition(".")[2]) > number:
                path.unlink()
        if is_new:
            number = 0
        else:
            last = LineFile(self._path(number))
            last.open()
            last.cut(size)
            last.close()
        known = self.origin() if is_new else position
        self._attempt, self._step = int(known["attempt"]), int(known["step"])
        self._story = [str(text) for text in known["story"]]
        self._number = number + 1
        self._file = LineFile(self._path(self._number))
        self._file.open()
        self._file.cut(0)
        head = [self._event(wall_time=self._about.created_at, file_version=_FILE_VERSION)]
        if is_new:
            head.append(self._parameters(0))
        self._file.append(b"".join(self._record(event) for event in head))
        return Begun(self._position(), is_new)

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        assert self._file is not None
        if not self._file.is_still_there():
            raise ExportError(f"{self._file.path} was moved or removed")
        self._file.append(b"".join(self._record(event) for event in self._events(items)))
        return self._position()

    def finish(self, state: str, ended_at: float) -> Position:
        assert self._file is not None
        self._file.close()
        return self._position()

    def _events(self, items: Sequence[Item]) -> Iterator[Any]:
        for index, item in enumerate(items):
            if isinstance(item, Note):
                self._story = [*self._story, sentence(item)][-_STORY_SENTENCES:]
                yield self._story_text(self._step, item.at)
                continue
            point = self._about.point(item)
            if point is None:
                continue
            step, at, values = point
            if item.attempt > self._attempt:
                first = _first_step(items[index:], item.attempt, step)
                if self._attempt:
                    log = self._session_log(status=self._session_log.START)
                    yield self._event(wall_time=at, step=first, session_log=log)
                    yield self._parameters(first)
                    yield self._story_text(first, at)
                self._attempt = item.attempt
            self._step = step
            self.written += 1
            scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            yield self._event(wall_time=at, step=step, summary=self._summary(value=scalars))

    def _parameters(self, step: int) -> Any:
        return self._text(f"{NOTE}parameters", _table(cleaned(self._about.params)), step, self._about.created_at)

    def _story_text(self, step: int, at: float) -> Any:
        return self._text(f"{NOTE}story", "\n".join(f"- {text}" for text in self._story), step, at)

    def _text(self, tag: str, text: str, step: int, at: float) -> Any:
        """A text for TensorBoard's text dashboard."""
        metadata = self._metadata(plugin_data=self._metadata.PluginData(plugin_name="text"))
        tensor = self._tensor(dtype=self._string, string_val=[text.encode()])
        value = self._summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        return self._event(wall_time=at, step=step, summary=self._summary(value=[value]))

    def _record(self, event: Any) -> bytes:
        """An event in its file: length, checksum, event, checksum."""
        data = event.SerializeToString()
        head = struct.pack("<Q", len(data))
        return b"".join((head, struct.pack("<I", self._crc(head)), data, struct.pack("<I", self._crc(data))))

    def _is_whole(self, number: int, size: int) -> bool:
        try:
            return self._path(number).stat().st_size >= size
        except FileNotFoundError:
            return False

    def _position(self) -> Position:
        assert self._file is not None
        return {
            "file": self._number,
            "bytes": self._file.size,
            "attempt": self._attempt,
            "step": self._step,
            "story": self._story,
        }

    def _path(self, number: int) -> Path:
        return self._target / _name(f"{number:05d}")


def _name(number: str) -> str:
    """The name of an event file. It has no host and no time, so that another process, perhaps in another container,
    finds the same file."""
    return f"events.out.tfevents.gputui.{number}"


def _first_step(items: Sequence[Item], attempt: int, step: int) -> int:
    """The first step of an attempt. The first lines of its ranks come in any order."""
    lines = (item for item in items if isinstance(item, StoredLine))
    return min((line.step for line in lines if line.attempt == attempt and line.step is not None), default=step)


def _table(params: Any) -> str:
    """Parameters as a Markdown table."""
    rows = (f"| {_cell(name)} | {_cell(value)} |" for name, value in params.items())
    return "\n".join(("| parameter | value |", "|---|---|", *rows))


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")
