"""Follow the growing files of another tracker, record by record: TensorBoard's event files, W&B's offline runs.

They are only appended to, and each start of a script creates a new one. The newest match is read, after the one before
it to its end. `tensorboard_files` and `wandb_files` parse them without the trackers' libraries.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.batch import BATCH_BYTES, BATCH_LINES, READ_SECONDS, Batch, SourceState
from gputui.metrics.contract import ParsedLine, Rejected, parse_values
from gputui.metrics.files import FileFollower
from gputui.metrics.source_reader import Boundary, owning_attempt
from gputui.metrics.tensorboard_files import event_end, event_frames, event_scalars
from gputui.metrics.tracker_files import LARGEST_READ_BYTES, DamagedRecordError, RecordFrame
from gputui.metrics.wandb_files import wandb_end, wandb_frames, wandb_scalars

# Kind of a source → the glob of its files below the profile's folder, and functions that split data into records, find
# the end of a record that is too large to read, and parse a record.
TRACKERS = {
    "tensorboard": ("events.out.tfevents.*", event_frames, event_end, event_scalars),
    "wandb": ("offline-run-*/run-*.wandb", wandb_frames, wandb_end, wandb_scalars),
}


class RecordReader(FileFollower):
    """A `SourceReader` of the newest file of a tracker below the folders that ``path`` (a glob) matches."""

    def __init__(self, source_id: int, path: str, kind: str, redactor: Redactor = BY_LOOK) -> None:
        name, self._frames, self._end, self._scalars = TRACKERS[kind]
        super().__init__(f"{path}/{name}")
        self._source_id = source_id
        self._redactor = redactor

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """As SourceReader.read. ``ended`` is ignored, because a record is either complete or not."""
        status = self._file.status(at_once=ended) if boundaries else None
        if status is None:
            return None
        if state.inode is None:
            state = SourceState(status.st_ino, state.generation)
        is_current = state.inode == status.st_ino
        assert state.inode is not None
        self._file.keep_only(state.inode)
        descriptor = (
            self._file.open_current(state.inode) if is_current else self._file.open_former(state.inode, 0, None)
        )
        batch = None if descriptor is None else self._read_from(descriptor, state, boundaries, budget_bytes)
        if batch is not None or is_current:
            return batch
        following = Batch(state, 0, self._redactor, more=True)
        following.state = SourceState(status.st_ino, state.generation + 1)
        return following

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """As SourceReader.end_state; with ``at_most`` always the start."""
        status = self._file.status(at_once=True)
        following = state.generation + (state.inode is not None)
        if status is None:
            return SourceState(None, following)
        generation = state.generation if state.inode == status.st_ino else following
        return SourceState(status.st_ino, generation, status.st_size if at_most is None else 0)

    def _read_from(
        self, descriptor: int, state: SourceState, boundaries: Sequence[Boundary], budget_bytes: int
    ) -> Batch | None:
        attempt, segment_end = owning_attempt(boundaries, state.position)
        size = os.fstat(descriptor).st_size if segment_end is None else segment_end
        offset = state.byte_offset
        if attempt is None or offset >= size:
            return None
        batch = Batch(state, attempt, self._redactor, os.fstat(descriptor).st_mtime)
        until = time.monotonic() + READ_SECONDS
        end: int | None = None
        try:
            for limit in (min(budget_bytes, BATCH_BYTES), LARGEST_READ_BYTES):
                data = os.pread(descriptor, min(limit, size - offset), offset)
                for number, frame in enumerate(self._frames(data, offset)):
                    if number >= BATCH_LINES or (number and time.monotonic() >= until):
                        break
                    self._take(batch, state.generation, offset, frame)
                    end = offset + frame.end
                if end is not None or offset + len(data) >= size:
                    break
            else:
                behind = self._end(lambda length, begin: os.pread(descriptor, length, begin), offset)
                end = behind if behind is not None and behind <= size else None
        except DamagedRecordError as error:
            # The start of the next record is unknown, but data that is appended later may begin with one.
            batch.reject(state.generation, offset if end is None else end, b"", Rejected(str(error)))
            end = size
        if end is None:
            if segment_end is None:
                return None
            end = segment_end  # a killed script left half a record, and the next attempt began behind it
        batch.bytes_read = end - offset
        batch.state = SourceState(state.inode, state.generation, end)
        batch.more = end < size or segment_end is not None
        return batch

    def _take(self, batch: Batch, generation: int, offset: int, frame: RecordFrame) -> None:
        parsed: ParsedLine | Rejected | None
        if frame.content is None:
            parsed = Rejected("its checksum is wrong, or a part of it is missing")
        else:
            try:
                values = self._scalars(frame.content)
                parsed = None if values is None else parse_values(values)
            except DamagedRecordError as error:
                # The frame is intact, so the next record can be read.
                parsed = Rejected(str(error))
        if isinstance(parsed, ParsedLine):
            batch.take(self._source_id, generation, offset + frame.start, parsed)
        elif parsed is not None:
            batch.reject(generation, offset + frame.start, (frame.content or b"")[:200], parsed)
