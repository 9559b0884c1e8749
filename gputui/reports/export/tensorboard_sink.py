"""TensorBoard event files in a separate folder for the run.

An attempt that continues from a checkpoint repeats steps. It begins with a START record, by which
TensorBoard discards what the previous attempt wrote from that step on: a curve shows the training
that led to the result. Texts follow the same rule, so each contains the whole history.

Exactly once: the position is the length of the newest event file. Another process truncates that
file there and begins a new one, because TensorBoard may have read beyond the position and reads
files in the order of their names.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gputui.reports.export.files import LineFile, refuse_full_folder
from gputui.reports.export.sink import Position, Sink
from gputui.reports.export.subject import Subject
from gputui.reports.export.texts import NOTE, STORY_SENTENCES, clean_value, sentence
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.stored_lines import StoredLine

_FILE_VERSION = "brain.Event:2"


class TensorBoardSink(Sink):
    """Event files ``events.out.tfevents.gputui.<number>``, a new one for each process. The name has
    no host and no time, so that another process, perhaps in a container, finds the same file."""

    def __init__(self, subject: Subject, target: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = Event
        self._session_log = SessionLog
        self._summary = Summary
        self._text = text_pb
        self._writer = RecordWriter
        super().__init__(subject, target)
        self._folder = Path(target)
        self._file = LineFile(self._path(0))
        self._number = 0
        # The newest attempt and step.
        self._attempt = self._step = 0
        self._story: list[str] = []

    def refuse_taken(self) -> None:
        refuse_full_folder(self._folder)

    def begin(self, position: Position) -> bool:
        number = int(position.get("file", 0))
        size = int(position.get("bytes", 0))
        self._folder.mkdir(parents=True, exist_ok=True)
        last = LineFile(self._path(number))
        is_new = not number or not last.path.exists() or last.path.stat().st_size < size
        for path in self._folder.glob("events.out.tfevents.gputui.*"):
            if is_new or int(path.name.rpartition(".")[2]) > number:
                path.unlink()
        if not is_new:
            last.open()
            last.cut(size)
            last.close()
            self._attempt = int(position["attempt"])
            self._step = int(position["step"])
            self._story = [str(text) for text in position["story"]]
        self._number = 1 if is_new else number + 1
        self._file = LineFile(self._path(self._number))
        self._file.open()
        self._file.cut(0)
        head = [self._event(wall_time=self._subject.run.created_at, file_version=_FILE_VERSION)]
        if is_new:
            head.append(self._parameters(0))
        self._append(head)
        return is_new

    def write(self, items: Sequence[Item], has_more: bool) -> None:
        self._append(list(self._events(items)))

    def close(self) -> None:
        self._file.close()

    def _append(self, events: Sequence[Any]) -> None:
        data = io.BytesIO()
        writer = self._writer(data)
        for event in events:
            writer.write(event.SerializeToString())
        self._file.append(data.getvalue())

    def _events(self, items: Sequence[Item]) -> Iterator[Any]:
        for index, item in enumerate(items):
            if isinstance(item, Note):
                self._story = [*self._story, sentence(item)][-STORY_SENTENCES:]
                yield self._story_text(self._step, item.at)
                continue
            point = self._subject.point(item)
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
        rows = [(_cell(key), _cell(value)) for key, value in clean_value(self._subject.params).items()]
        lines = [f"| {key} | {value} |" for key, value in rows]
        table = "\n".join(("| parameter | value |", "|---|---|", *lines))
        text = self._text(f"{NOTE}parameters", table)
        at = self._subject.run.created_at
        return self._event(wall_time=at, step=step, summary=text)

    def _story_text(self, step: int, at: float) -> Any:
        text = self._text(f"{NOTE}story", "\n".join(f"- {text}" for text in self._story))
        return self._event(wall_time=at, step=step, summary=text)

    def position(self) -> Position:
        return {
            "file": self._number,
            "bytes": self._file.size,
            "attempt": self._attempt,
            "step": self._step,
            "story": self._story,
        }

    def _path(self, number: int) -> Path:
        return self._folder / f"events.out.tfevents.gputui.{number:05d}"


def _first_step(items: Sequence[Item], attempt: int, step: int) -> int:
    """The first step of an attempt. The first lines of its ranks come in any order."""
    lines = (item for item in items if isinstance(item, StoredLine) and item.attempt == attempt)
    return min((line.step for line in lines if line.step is not None), default=step)


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")
