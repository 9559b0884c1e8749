"""The ledger of checkpoints after a scan of the folder: which attempt wrote which file. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.checkpoint_ledger import CheckpointCourse
from gputui.recovery.ledger_inputs import FILE_CLOCK_SECONDS, LINE_CLOCK_SECONDS, AttemptSpan, FoundCheckpoint, Rows
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import AFTER_END_SECONDS, CheckpointRow, Neighbour

# Longer than several scan intervals.
JUST_WRITTEN_SECONDS = 60.0
# A file that is unchanged for this long has stopped growing.
SETTLED_SECONDS = 3.0
# Number of checkpoints whose content is compared with a possible copy.
MOST_COMPARED = 8

StepAt = Callable[[int, float], int | None]
"""A step of an attempt, by its number, at a time (UTC unix seconds); None if unknown."""


class ScanContext(Struct, frozen=True, kw_only=True):
    """What is known about a checkpoint folder when it is scanned. Times are UTC unix seconds.

    Attributes:
        attempts: the run's attempts, oldest first.
        now: the time of the scan.
        recorded_step: the newest step that an attempt had recorded at a time.
        latest_step: the latest step that it may have reached at a time, between two of its lines.
        has_stepped: whether an attempt recorded a step between two times: saves begun before are then complete.
        steps_inside: the steps in a checkpoint's content, by its path.
        has_same_content: whether two checkpoints of equal size, by their paths, have the same content.
        folder: the checkpoint folder, with links resolved.
        neighbours: attempts of other runs that may write into the folder.
        rebuilt: the attempts that are older than the ledger.
    """

    attempts: Sequence[AttemptSpan]
    now: float
    recorded_step: StepAt
    latest_step: StepAt = lambda _, __: None
    has_stepped: Callable[[int, float, float], bool] = lambda _, __, ___: False
    steps_inside: Callable[[str], Collection[int]] = lambda _: ()
    has_same_content: Callable[[str, str], bool] = lambda _, __: False
    folder: PurePath | None = None
    neighbours: Sequence[Neighbour] = ()
    rebuilt: Collection[int] = ()

    @property
    def newest_attempt(self) -> AttemptSpan | None:
        return self.attempts[-1] if self.attempts else None

    def attempt(self, number: int) -> AttemptSpan | None:
        return next((span for span in self.attempts if span.number == number), None)

    def writer_of(self, file: FoundCheckpoint) -> AttemptSpan | None:
        """The attempt that lived when the file was written; None if none did."""
        at, newest = file.modified_at, self.newest_attempt
        if newest is not None:
            # The clock was set back after the attempt began: its new files are dated before its begin.
            if newest.begun_at > self.now and 0.0 <= self.now - at <= JUST_WRITTEN_SECONDS:
                return newest
            # A file server's clock may be ahead.
            if at > self.now and (newest.ended_at is None or self.now <= newest.ended_at + JUST_WRITTEN_SECONDS):
                return newest
        return next((span for span in reversed(self.attempts) if _was_alive(span, at)), None)

    def other_writer_of(self, file: FoundCheckpoint) -> Neighbour | None:
        """An attempt of another run that may have written the file."""
        return next(
            (
                neighbour
                for neighbour in self.neighbours
                if _was_alive(neighbour, file.modified_at) and neighbour.may_have_written(file.path)
            ),
            None,
        )

    def step_of(self, file: FoundCheckpoint, attempt: int) -> int | None:
        """The step at which an attempt wrote the file; without metrics, the one in its name. The times leave a range of
        steps, of which the name or the content selects one."""
        recorded = self.recorded_step(attempt, min(file.modified_at, self.now))
        if recorded is None:
            return self._named_step(file, attempt)
        path = PurePath(file.path)
        is_certain = explicit_step(path.name) is not None
        # A bare number may count epochs: it is a step only where the metrics may have reached it.
        named = explicit_step(path.name) if is_certain else step_in_name(path, self.folder)
        if named is not None and (is_certain or named >= recorded):
            within_tick = self.recorded_step(attempt, min(file.modified_at + FILE_CLOCK_SECONDS, self.now))
            # A name may count completed steps where the metrics count from 0.
            if within_tick is not None and named <= within_tick + 1:
                return max(recorded, min(named, within_tick))
        latest = self.last_possible_step(attempt, file.modified_at)
        if latest is None:
            return recorded
        if named is not None and recorded <= named <= latest:
            return named
        if is_certain:
            return recorded
        # Some scripts save the number of the current step, others the number of completed steps.
        return max((step for step in self.steps_inside(file.path) if recorded <= step <= latest + 1), default=recorded)

    def _named_step(self, file: FoundCheckpoint, attempt: int) -> int | None:
        """The step in the file's name. A bare number may count epochs: of an attempt with steps, it is one only if the
        attempt may have reached it."""
        path = PurePath(file.path)
        named, span = step_in_name(path, self.folder), self.attempt(attempt)
        is_inside = self.folder is not None and path.is_relative_to(self.folder)
        parts = path.relative_to(self.folder).parts if self.folder and is_inside else (path.name,)
        is_bare = not any(explicit_step(part) is not None for part in parts)
        if named is None or not is_bare or span is None or span.last_step is None:
            return named
        latest = self.last_possible_step(attempt, file.modified_at)
        return named if latest is not None and named <= latest + 1 else None

    def last_possible_step(self, attempt: int, at: float) -> int | None:
        """The last step that an attempt may have reached at a time: a line may be read late, or skip steps."""
        late_line = self.recorded_step(attempt, min(at + LINE_CLOCK_SECONDS, self.now))
        between_lines = self.latest_step(attempt, min(at + FILE_CLOCK_SECONDS, self.now))
        return max((step for step in (late_line, between_lines) if step is not None), default=None)

    def is_settled(self, file: FoundCheckpoint, attempt: int) -> bool:
        """Whether the file was unchanged for SETTLED_SECONDS while its attempt could still write."""
        writer = self.attempt(attempt)
        until = self.now if writer is None or writer.ended_at is None else writer.ended_at
        return until - file.modified_at >= SETTLED_SECONDS


def _was_alive(attempt: AttemptSpan | Neighbour, at: float) -> bool:
    return attempt.begun_at <= at and (attempt.ended_at is None or at <= attempt.ended_at + AFTER_END_SECONDS)


def after_scan(rows: Sequence[CheckpointRow], files: Sequence[FoundCheckpoint], context: ScanContext) -> Rows:
    """The ledger after a scan that found ``files``.

    A file with the time and size of a known one was moved or copied from it, and keeps its entry under the new path.
    Any other new or rewritten checkpoint belongs to the attempt that lived at its time. It is foreign if none did, and
    contested if an attempt of another run lived too. Entries of missing files are dropped, except those that must be
    recognized if the file comes back.
    """
    rows = _stamped_by_saved_files(rows, files)
    row_by_path = {row.path: row for row in rows}
    # A copy of a struck checkpoint is struck too, whatever else has its time and size.
    row_by_stamp = {row.stamp: row for row in sorted(rows, key=lambda row: row.verdict == "struck")}
    # In a folder that was copied here as a whole, without the exact times, no file is recognized.
    is_same_folder = not rows or any(file.path in row_by_path or file.stamp in row_by_stamp for file in files)
    updated = dict(row_by_path)
    moved: set[str] = set()
    for file in files:
        row = row_by_path.get(file.path)
        if (row is None or row.stamp != file.stamp) and (source := row_by_stamp.get(file.stamp)) is not None:
            moved.add(source.path)
            row = replace(source, path=file.path)
        if row is None:
            entry = _new_entry(file, context)
            if is_same_folder:
                entry = _unless_placed_later(entry, file, context)
            updated[file.path] = _unless_copied(entry, rows, context)
        elif row.stamp == file.stamp:
            updated[file.path] = _unchanged_entry(row, file, context)
        else:
            updated[file.path] = _changed_entry(row, file, rows, context)
    present = {file.path for file in files}
    # If no known file is left in a folder, it may be a mount that went away: keep all its entries.
    present_folders = {_folder_of(path, context) for path in present & row_by_path.keys()}
    for row in rows:
        if row.path in present:
            continue
        folder = _folder_of(row.path, context)
        # Those that a person chose elsewhere are not looked for.
        is_moved = row.path in moved and (row.origin != "named" or folder == context.folder)
        must_be_recognized = row.origin == "named" or row.verdict not in ("unexamined", "valid", "cut")
        if is_moved or (folder in present_folders and not must_be_recognized):
            del updated[row.path]
    return tuple(updated.values())


def _stamped_by_saved_files(rows: Sequence[CheckpointRow], files: Sequence[FoundCheckpoint]) -> Rows:
    """The ledger with folders dated by the files that each save writes; that of version 0.1 has them by all files."""
    folders = {file.path: file for file in files if file.with_all_files is not None}
    return tuple(
        row
        if (folder := folders.get(row.path)) is None or row.stamp != folder.with_all_files
        else replace(row, modified_ns=folder.modified_ns, size_bytes=folder.size_bytes)
        for row in rows
    )


def _folder_of(path: str, context: ScanContext) -> PurePath | None:
    """The checkpoint folder of a path, which may be an earlier one of the run."""
    is_inside = context.folder is None or PurePath(path).is_relative_to(context.folder)
    return context.folder if is_inside else PurePath(path).parent


def _new_entry(file: FoundCheckpoint, context: ScanContext) -> CheckpointRow:
    """The entry of a file that was written since the last scan."""
    writer, newest = context.writer_of(file), context.newest_attempt
    number = writer.number if writer is not None else 0 if newest is None else newest.number
    step = step_in_name(PurePath(file.path), context.folder)
    entry = CheckpointRow(file.path, number, "run", file.modified_ns, file.size_bytes, step, context.now)
    if writer is None:
        return replace(entry, origin="foreign", why="lay there before this run could have written it")
    if (other := context.other_writer_of(file)) is not None:
        return _contested(entry, other)
    return replace(
        entry,
        origin="rebuilt" if number in context.rebuilt else "run",
        step=context.step_of(file, number),
        is_settled=context.is_settled(file, number),
    )


def _contested(row: CheckpointRow, other: Neighbour) -> CheckpointRow:
    return replace(row, origin="contested", why=f"may be of {other.run_id}, which had the same folder")


def _unchanged_entry(row: CheckpointRow, file: FoundCheckpoint, context: ScanContext) -> CheckpointRow:
    """The entry of a file that has the time and size of ``row``."""
    # The neighbour may have become known after the last scan.
    if row.is_written and (other := context.other_writer_of(file)) is not None:
        return _contested(row, other)
    was_unchanged = context.now - row.first_seen_at >= SETTLED_SECONDS
    is_settled = row.is_settled or was_unchanged or context.is_settled(file, row.attempt)
    newest = context.newest_attempt
    if row.is_written and newest is not None and row.attempt == newest.number:
        # The first scan may have preceded the lines of its step.
        return replace(row, is_settled=is_settled, step=context.step_of(file, row.attempt))
    return replace(row, is_settled=is_settled)


def _changed_entry(
    row: CheckpointRow, file: FoundCheckpoint, rows: Sequence[CheckpointRow], context: ScanContext
) -> CheckpointRow:
    """The entry of a file whose time or size differs from those of ``row``."""
    unsaved = _entry_if_not_saved(row, file, context)
    if unsaved is not None:
        return unsaved
    entry = _new_entry(file, context)
    # Checkpoints of one training may have equal heads and tails: a rewrite after the first step is no copy.
    if entry.is_written and context.recorded_step(entry.attempt, entry.modified_at) is None:
        entry = _unless_copied(entry, rows, context)
    if row.origin == "named" and not entry.is_written:
        # What a person chose counts as gone until this training writes there.
        return row
    # A scan may find a folder half written.
    is_complete = row.attempt != entry.attempt or context.has_stepped(row.attempt, row.modified_at, entry.modified_at)
    return replace(entry, before_ns=row.modified_ns if is_complete else row.before_ns)


def _entry_if_not_saved(row: CheckpointRow, file: FoundCheckpoint, context: ScanContext) -> CheckpointRow | None:
    """The entry of a changed file that the training cannot have saved; None for any other.

    Its name has the step of its save, and the attempt was at another step when it changed: it was touched or copied, or
    its deletion was interrupted. The entry keeps its time, so that the next scan decides with more lines.
    """
    named, writer = explicit_step(row.name), context.writer_of(file)
    if named is None or writer is None or row.step is None or row.modified_ns == file.modified_ns:
        return None
    # A name may count completed steps where the metrics count from 0.
    if not named - 1 <= row.step <= named or context.other_writer_of(file) is not None:
        return None
    at = file.modified_at
    is_bounded = context.latest_step(writer.number, min(at + FILE_CLOCK_SECONDS, context.now)) is not None
    latest = context.last_possible_step(writer.number, at)
    if is_bounded and latest is not None and named > latest + 1:
        return row
    earliest = context.recorded_step(writer.number, min(at, context.now))
    has_shrunk = row.size_bytes is not None and file.size_bytes is not None and file.size_bytes < row.size_bytes
    if has_shrunk and earliest is not None and earliest > named:
        return replace(row, verdict="struck", why=f"lost a part of it at step {earliest}, after it was written")
    return None


def _unless_placed_later(entry: CheckpointRow, file: FoundCheckpoint, context: ScanContext) -> CheckpointRow:
    """The entry, made foreign if the file was placed there after its attempt's end and was not there before: a copy may
    preserve the file's time. A change of owner or mode changes the inode's time as a copy does."""
    writer = context.attempt(entry.attempt)
    if not entry.is_written or writer is None or writer.ended_at is None or file.changed_ns is None:
        return entry
    if not writer.was_scanned_at_end or file.changed_ns / 1e9 <= writer.ended_at + AFTER_END_SECONDS:
        return entry
    return replace(entry, origin="foreign", why=f"came there after attempt {writer.number} had ended")


def _unless_copied(entry: CheckpointRow, rows: Sequence[CheckpointRow], context: ScanContext) -> CheckpointRow:
    """The entry, made foreign if it is a copy of a checkpoint that may not be resumed from. Deterministic training
    saves equal content at equal steps, which is no copy."""
    if not entry.is_written:
        return entry
    has_stepped = context.recorded_step(entry.attempt, entry.modified_at) is not None
    others = [
        row
        for row in rows
        if row.path != entry.path
        and row.size_bytes == entry.size_bytes
        and not (has_stepped and row.step is not None and row.step == entry.step)
    ]
    course = CheckpointCourse.of(rows, context.attempts)
    excluded = [(row, reason) for row in others if (reason := course.exclusion_reason(row)) is not None]
    excluded.sort(key=lambda pair: pair[0].write_order, reverse=True)
    for row, reason in excluded[:MOST_COMPARED]:
        if context.has_same_content(entry.path, row.path):
            return replace(entry, origin="foreign", why=f"is a copy of {row.name}, which {reason}")
    return entry
