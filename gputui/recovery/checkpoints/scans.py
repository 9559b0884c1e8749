"""Scans of a checkpoint folder as the ledger takes them in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

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
        entry = self._new_entry(file, row)
        foreign_reason = self._foreign_reason(file)
        if foreign_reason is not None:
            return replace(entry, origin="foreign", why=foreign_reason)
        suspicion = self.intruder(file.path)
        if suspicion is not None:
            return replace(entry, origin="contested", why=suspicion)
        return replace(entry, step=self.step_of(entry))

    def _new_entry(self, file: FoundCheckpoint, row: CheckpointRow | None) -> CheckpointRow:
        """The entry of a new content as if the attempt had written it, without its step."""
        attempt = self.writer or max((span.number for span in self.attempts), default=0)
        step = step_in_name(PurePath(file.path), self.folder)
        entry = replace(new_row(file, attempt, self.now, step), unseen_at=min(self.since, self.now))
        if self.is_dated:
            entry = replace(entry, saved_at=entry.modified_at)
        if row is None or not row.is_written or row.attempt != self.writer:
            return entry
        is_growing = not row.is_settled and (row.size_bytes or 0) < (file.size_bytes or 0)
        if is_growing:
            return replace(entry, unseen_at=row.unseen_at, is_rewrite=row.is_rewrite)
        return replace(entry, is_rewrite=True)

    def _foreign_reason(self, file: FoundCheckpoint) -> str | None:
        """Why no attempt of this run can have written a file; None if one may have."""
        if self.writer is None:
            if self.attempts:
                return "came there while no attempt lived"
            return "lay there before this run began"
        if not PurePath(file.path).is_relative_to(self.folder):
            # A place that a person named, or a former folder: the attempt does not save there.
            return "was written over by somebody else"
        return None

    def saves_again(self, entry: CheckpointRow, file: FoundCheckpoint, is_left: bool) -> bool:
        """Return whether the writer may have saved a known content anew at its place, which was
        left or was not the run's: deterministic training has equal content at equal steps."""
        is_of_others = entry.verdict == "left" or entry.origin in ("foreign", "contested")
        if entry.verdict == "struck" or not (is_left or is_of_others):
            return False
        is_untouched = entry.stamp == file.stamp and entry.gone_at is None
        if entry.path != file.path or is_untouched:
            return False
        if self.writer is None or self.writer == entry.attempt or entry.step is None:
            return False
        if entry.verdict == "left" and not self.since <= file.modified_ns / 1e9 <= self.now:
            return False  # a person may have touched it
        return self.may_be_at(self.writer, entry.step, self.since, self.now)


class _LedgerBefore:
    """The ledger before a scan."""

    def __init__(self, rows: AnyRows, attempts: Spans) -> None:
        self.present = {row.path: row for row in rows if row.gone_at is None}
        self.by_content = {row.content: row for row in sorted(rows, key=_precedence)}
        self.lineage = CheckpointLineage.of(rows, attempts)
        self.newest_place = max((row.place for row in self.present.values() if row.is_written), default=0)

    def entry_of(self, file: FoundCheckpoint, scan: FolderScan) -> CheckpointRow | None:
        """The entry of a file that is no new checkpoint; None for one that is."""
        row = self.present.get(file.path)
        if row is not None and row.content == file.content:
            entry: CheckpointRow | None = row
        else:
            entry = self.by_content.get(file.content)
        if entry is not None:
            is_left = self.lineage.departure_reason(entry) is not None
            if not scan.saves_again(entry, file, is_left):
                # What its attempt's end cut short does not grow any more either.
                is_settled = entry.is_settled or entry.attempt == scan.writer
                modified_at = file.modified_ns / 1e9
                return replace(_placed(entry, file), modified_at=modified_at, is_settled=is_settled, gone_at=None)
        if row is None:
            return None
        if is_part_of(file.content, row.content):
            # Its deletion goes on, or was interrupted.
            why = "lost a part of it since it was saved"
            return replace(_placed(row, file), content=file.content, verdict="struck", why=why)
        is_grown = row.is_settled and is_part_of(row.content, file.content)
        if is_grown and (scan.writer is None or row.place < self.newest_place):
            # A tool has added a file, such as merged weights: no save, and as sound as before.
            verdict = row.verdict
            if verdict in ("invalid", "cut"):
                verdict = "unexamined"
            return replace(_placed(row, file), content=file.content, verdict=verdict)
        return None


def _placed(entry: CheckpointRow, file: FoundCheckpoint) -> CheckpointRow:
    """The entry with the path, the stamp and the size of a file."""
    return replace(entry, path=file.path, stamp=file.stamp, size_bytes=file.size_bytes)


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
    dated_scan = replace(scan, is_dated=all(scan.since <= time <= scan.now for time in times))
    new_entries = [dated_scan.entry(file, before.present.get(file.path)) for file in appeared]
    newest_place = max((row.place for row in rows), default=0)
    for entry in _placed_in_order(new_entries, newest_place, dated_scan.is_dated):
        listed[entry.path] = entry
    _update_steps(listed, scan)
    return (*listed.values(), *_missing_entries(rows, listed, scan))


def _placed_in_order(entries: AnyRows, newest_place: int, is_dated: bool) -> list[CheckpointRow]:
    """The new entries of one scan at the places after the newest one, in the order of their steps.

    Copies that appear together with their original are one checkpoint, with its place and step.
    """
    originals: dict[str, CheckpointRow] = {}
    placed = []
    for entry in _in_order_of_steps(entries, is_dated):
        next_place = newest_place + 1 + len(originals)
        original = originals.setdefault(entry.content, replace(entry, place=next_place))
        placed.append(replace(entry, place=original.place, step=original.step))
    return placed


def _update_steps(listed: dict[str, CheckpointRow], scan: FolderScan) -> None:
    """Ask again for the steps of what the writer saved lately, since its lines may have come meanwhile."""
    steps: dict[int, int | None] = {}
    for row in newest_first(list(listed.values())):
        is_recent = scan.now - row.seen_at < LINES_SECONDS
        if row.is_written and row.attempt == scan.writer and is_recent:
            # Of copies, the name that tells its step comes first.
            if row.place not in steps:
                steps[row.place] = scan.step_of(row)
            listed[row.path] = replace(row, step=steps[row.place])


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
        if PurePath(path).is_relative_to(scan.folder):
            return scan.folder
        return PurePath(path).parent

    listed_entries = {(row.path, row.place) for row in listed.values()}
    contents = {row.content for row in listed.values()}
    present = [row for row in rows if row.gone_at is None]
    paths = {row.path for row in present}
    places = {row.place for row in present}
    # A folder is there if something known was found in it.
    folders = {folder_of(row.path) for row in listed.values() if row.path in paths or row.place in places}
    missing = []
    for row in rows:
        if (row.path, row.place) in listed_entries:
            continue
        is_gone = row.path in listed or row.content in contents or folder_of(row.path) in folders
        if row.gone_at is None and is_gone:
            missing.append(replace(row, gone_at=scan.now))
        else:
            missing.append(row)
    return missing
