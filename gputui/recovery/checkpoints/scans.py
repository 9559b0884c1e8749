"""Scans of a checkpoint folder as the ledger takes them in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.checkpoints.content import is_part_of
from gputui.recovery.checkpoints.ledger import new_row
from gputui.recovery.checkpoints.resumable import AnyRows, CheckpointLineage, Rows, Spans, newest_first
from gputui.runs.checkpoint_files import FoundCheckpoint
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow

# Lines are read at most this much after they were written: until then a step may become known.
LINES_SECONDS = 60.0


class FolderScan(Struct, frozen=True, kw_only=True):
    """A scan of a checkpoint folder.

    Attributes:
        now: its time (UTC unix seconds).
        since: that of the scan before.
        writer: the attempt that lived between them.
        step_of: gives the step of an entry.
        may_be_at: tells whether an attempt may have been at a step between two times.
        intruder: says why what appeared at a path may be of somebody else.
        is_dated: the times of all that appeared lie between the scans, so they can be true.
    """

    now: float
    since: float
    attempts: Spans
    writer: int | None
    step_of: Callable[[CheckpointRow], int | None]
    may_be_at: Callable[[int, int, float, float], bool]
    intruder: Callable[[str], str | None] = lambda _: None
    folder: PurePath
    is_dated: bool = False

    def entry(self, file: FoundCheckpoint, row: CheckpointRow | None) -> CheckpointRow:
        """The entry of a content that was not seen before, at the place of ``row``."""
        attempt = self.writer or max((span.number for span in self.attempts), default=0)
        entry = new_row(file, attempt, self.now, step_in_name(PurePath(file.path), self.folder))
        entry = replace(entry, unseen_at=min(self.since, self.now))
        if self.is_dated:
            entry = replace(entry, saved_at=entry.modified_at)
        if row is not None and row.is_written and row.attempt == self.writer:
            is_growing = not row.is_settled and (row.size_bytes or 0) < (file.size_bytes or 0)
            if is_growing:
                entry = replace(entry, unseen_at=row.unseen_at, is_rewrite=row.is_rewrite)
            else:
                entry = replace(entry, is_rewrite=True)
        if self.writer is None:
            why = "lay there before this run began"
            if self.attempts:
                why = "came there while no attempt lived"
            return replace(entry, origin="foreign", why=why)
        if not PurePath(file.path).is_relative_to(self.folder):
            # A place that a person named, or a former folder: the attempt does not save there.
            return replace(entry, origin="foreign", why="was written over by somebody else")
        if (suspicion := self.intruder(file.path)) is not None:
            return replace(entry, origin="contested", why=suspicion)
        return replace(entry, step=self.step_of(entry))

    def saves_again(self, entry: CheckpointRow, file: FoundCheckpoint, is_left: bool) -> bool:
        """Return whether the writer may have saved a known content anew at its place, which was
        left or was not the run's: deterministic training has equal content at equal steps."""
        is_left |= entry.verdict == "left" or entry.origin in ("foreign", "contested")
        if not is_left or entry.verdict == "struck":
            return False
        is_same = entry.stamp == file.stamp and entry.gone_at is None
        if entry.path != file.path or is_same:
            return False
        if self.writer in (None, entry.attempt) or entry.step is None:
            return False
        if entry.verdict == "left" and not self.since <= file.modified_ns / 1e9 <= self.now:
            return False  # a person may have touched it
        return self.may_be_at(self.writer or 0, entry.step, self.since, self.now)


class _LedgerBefore:
    """The ledger before a scan."""

    def __init__(self, rows: AnyRows, attempts: Spans) -> None:
        self.present = {row.path: row for row in rows if row.gone_at is None}
        self.by_content = {row.content: row for row in sorted(rows, key=_precedence)}
        self.lineage = CheckpointLineage.of(rows, attempts)
        self.newest = max((row.place for row in self.present.values() if row.is_written), default=0)

    def entry_of(self, file: FoundCheckpoint, scan: FolderScan) -> CheckpointRow | None:
        """The entry of a file that is no new checkpoint; None for one that is."""
        row = self.present.get(file.path)
        is_same = row is not None and row.content == file.content
        entry = row
        if not is_same:
            entry = self.by_content.get(file.content)
        is_left = entry is not None and self.lineage.departure_reason(entry) is not None
        now: dict[str, Any] = {"path": file.path, "stamp": file.stamp, "size_bytes": file.size_bytes}
        if entry is not None and not scan.saves_again(entry, file, is_left):
            # What its attempt's end cut short does not grow any more either.
            is_settled = entry.is_settled or entry.attempt == scan.writer
            return replace(entry, **now, modified_at=file.modified_ns / 1e9, is_settled=is_settled, gone_at=None)
        if row is not None and is_part_of(file.content, row.content):
            # Its deletion goes on, or was interrupted.
            why = "lost a part of it since it was saved"
            return replace(row, **now, content=file.content, verdict="struck", why=why)
        is_grown = row is not None and row.is_settled and is_part_of(row.content, file.content)
        if row is not None and is_grown and (scan.writer is None or row.place < self.newest):
            # A tool has added a file, such as merged weights: no save, and as sound as before.
            verdict = row.verdict
            if verdict in ("invalid", "cut"):
                verdict = "unexamined"
            return replace(row, **now, content=file.content, verdict=verdict)
        return None


def _precedence(row: CheckpointRow) -> tuple[int, ...]:
    """A sort key of the entries of one content; by the last of them it is known.

    A person's choice comes last, before that what was struck, the newest, and of copies one that is known to be whole.
    """
    is_struck = row.verdict == "struck"
    return (row.origin == "named" and not is_struck, is_struck, row.place, row.is_settled)


def after_scan(rows: AnyRows, files: Sequence[FoundCheckpoint], scan: FolderScan) -> Rows:
    """The ledger after a scan that found these files.

    If nothing known is left in a folder, it may be a mount that went away, and its entries stay.
    """
    before = _LedgerBefore(rows, scan.attempts)
    listed: dict[str, CheckpointRow] = {}
    appeared = []
    for file in files:
        entry = before.entry_of(file, scan)
        if entry is None:
            appeared.append(file)
        else:
            listed[file.path] = entry
    times = [file.modified_ns / 1e9 for file in appeared]
    scan = replace(scan, is_dated=all(scan.since <= time <= scan.now for time in times))
    newest_seen = max((row.place for row in rows), default=0)
    first_of: dict[str, CheckpointRow] = {}
    entries = [scan.entry(file, before.present.get(file.path)) for file in appeared]
    for entry in _in_order_of_steps(entries, scan.is_dated):
        # Copies that appear together with their original are one checkpoint.
        number = newest_seen + 1 + len(first_of)
        first = first_of.setdefault(entry.content, replace(entry, place=number))
        listed[entry.path] = replace(entry, place=first.place, step=first.step)
    steps: dict[int, int | None] = {}
    for row in newest_first(list(listed.values())):
        is_recent = scan.now - row.seen_at < LINES_SECONDS
        if row.is_written and row.attempt == scan.writer and is_recent:
            # Of copies, the name that tells its step comes first.
            if row.place not in steps:
                steps[row.place] = scan.step_of(row)
            listed[row.path] = replace(row, step=steps[row.place])
    return (*listed.values(), *_missing_entries(rows, listed, scan))


def _in_order_of_steps(entries: AnyRows, is_dated: bool) -> list[CheckpointRow]:
    """The entries of one scan in the order of their steps.

    The steps are those of the names, if all tell one and no time that can be true contradicts; else of the metrics.
    """
    steps = {row.path: explicit_step(row.name) for row in entries}
    by_name = sorted(entries, key=lambda row: (steps[row.path] or 0, row.modified_at, row.path))
    times = [entry.modified_at for entry in by_name]
    if None not in steps.values() and (not is_dated or times == sorted(times)):
        return by_name
    return sorted(by_name, key=lambda entry: (entry.step is not None, entry.step or 0))


def _missing_entries(rows: AnyRows, listed: Mapping[str, CheckpointRow], scan: FolderScan) -> list[CheckpointRow]:
    """The entries of what was not found, those that are gone among them."""

    def folder_of(path: str) -> PurePath:
        is_inside = PurePath(path).is_relative_to(scan.folder)
        if is_inside:
            return scan.folder
        return PurePath(path).parent

    listed_entries = {(row.path, row.place) for row in listed.values()}
    contents = {row.content for row in listed.values()}
    present = [row for row in rows if row.gone_at is None]
    paths = {row.path for row in present}
    numbers = {row.place for row in present}
    folders = {folder_of(row.path) for row in listed.values() if row.path in paths or row.place in numbers}
    entries = []
    for row in rows:
        if (row.path, row.place) in listed_entries:
            continue
        is_gone = row.path in listed or row.content in contents or folder_of(row.path) in folders
        if row.gone_at is None and is_gone:
            row = replace(row, gone_at=scan.now)
        entries.append(row)
    return entries
