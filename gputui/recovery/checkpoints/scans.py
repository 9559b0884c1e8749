"""Scans of a checkpoint folder as the ledger takes them in, and the steps of checkpoints, from the
metrics and from their names."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.checkpoints.attempt_spans import Spans
from gputui.recovery.checkpoints.files import FoundCheckpoint, is_part_of
from gputui.recovery.checkpoints.ledger import LINE_CLOCK_SECONDS, UnsoundLoss, new_row
from gputui.recovery.checkpoints.resumable import AnyRows, CheckpointCourse, Rows, newest_first
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.step_times import StepTimes

# Lines are read at most this much after they were written: until then a step may become known.
LINES_SECONDS = 60.0
# A line may be dated a little before the attempt's row was written.
BEFORE_BEGIN_SECONDS = 5.0


class FolderScan(Struct, frozen=True, kw_only=True):
    """A scan of a checkpoint folder at ``now``, the one before ``since`` (UTC unix seconds).

    ``writer`` is the attempt that lived between them; ``step_of`` gives the step of an entry,
    ``may_be_at`` whether an attempt may have been at a step between two times, ``intruder`` why
    what appeared at a path may be of somebody else. ``is_dated``: the times of all that appeared
    lie between the scans, so they can be true.
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
        own = row if row is not None and row.is_written and row.attempt == self.writer else None
        is_larger = own is not None and (own.size_bytes or 0) < (file.size_bytes or 0)
        growing = own if own is not None and is_larger and not own.is_settled else None
        attempt = self.writer or (self.attempts[-1].number if self.attempts else 0)
        entry = new_row(file, attempt, self.now, step_in_name(PurePath(file.path), self.folder))
        entry = replace(
            entry,
            unseen_at=min(self.since, self.now) if growing is None else growing.unseen_at,
            saved_at=entry.modified_at if self.is_dated else None,
            is_rewrite=own is not None if growing is None else growing.is_rewrite,
        )
        if self.writer is None:
            when = "came there while no attempt lived"
            why = when if self.attempts else "lay there before this run began"
            return replace(entry, origin="foreign", why=why)
        if not PurePath(file.path).is_relative_to(self.folder):
            # A place that a person named, or a former folder: the attempt does not save there.
            return replace(entry, origin="foreign", why="was written over by somebody else")
        if (other := self.intruder(file.path)) is not None:
            return replace(entry, origin="contested", why=other)
        return replace(entry, step=self.step_of(entry))

    def saves_again(self, known: CheckpointRow, file: FoundCheckpoint, is_left: bool) -> bool:
        """Whether the writer may have saved a known content anew at its place, which was left or
        was not the run's: deterministic training has equal content at equal steps."""
        is_left |= known.verdict == "left" or known.origin in ("foreign", "contested")
        is_same = known.stamp == file.stamp and known.gone_at is None
        if not is_left or known.verdict == "struck" or known.path != file.path or is_same:
            return False
        if self.writer in (None, known.attempt) or known.step is None:
            return False
        if known.verdict == "left" and not self.since <= file.modified_ns / 1e9 <= self.now:
            return False  # a person may have touched it
        return self.may_be_at(self.writer or 0, known.step, self.since, self.now)


def after_scan(rows: AnyRows, found: Sequence[FoundCheckpoint], scan: FolderScan) -> Rows:
    """The ledger after a scan that found these files. If nothing known is left in a folder, it may
    be a mount that went away, and its entries stay."""

    def standing(row: CheckpointRow) -> tuple[bool, bool, int]:
        """By which entry a content is known: a person's choice, what was struck, the newest."""
        is_struck = row.verdict == "struck"
        return (row.origin == "named" and not is_struck, is_struck, row.seen)

    present = {row.path: row for row in rows if row.gone_at is None}
    by_content = {row.content: row for row in sorted(rows, key=standing)}
    course = CheckpointCourse.of(rows, scan.attempts)
    newest = max((row.seen for row in present.values() if row.is_written), default=0)
    there: dict[str, CheckpointRow] = {}
    appeared = []
    for file in found:
        row = present.get(file.path)
        is_same = row is not None and row.content == file.content
        known = row if is_same else by_content.get(file.content)
        is_left = known is not None and course.departure_reason(known) is not None
        now: dict[str, Any] = {"path": file.path, "stamp": file.stamp, "size_bytes": file.size_bytes}
        if known is not None and not scan.saves_again(known, file, is_left):
            now |= {"modified_at": file.modified_ns / 1e9, "is_settled": True, "gone_at": None}
            there[file.path] = replace(known, **now)
        elif row is not None and is_part_of(file.content, row.content):
            # Its deletion goes on, or was interrupted.
            why = "lost a part of it since it was saved"
            there[file.path] = replace(row, **now, content=file.content, verdict="struck", why=why)
        elif (
            row is not None
            and row.is_settled
            and is_part_of(row.content, file.content)
            and (scan.writer is None or row.seen < newest)
        ):
            # A tool has added a file, such as merged weights: no save, and as sound as before.
            verdict = "unexamined" if row.verdict in ("invalid", "cut") else row.verdict
            there[file.path] = replace(row, **now, content=file.content, verdict=verdict)
        else:
            appeared.append((file, row))
    times = [file.modified_ns / 1e9 for file, _ in appeared]
    scan = replace(scan, is_dated=all(scan.since <= time <= scan.now for time in times))
    seen = max((row.seen for row in rows), default=0)
    first_of: dict[str, CheckpointRow] = {}
    for entry in _in_order([scan.entry(file, row) for file, row in appeared], scan.is_dated):
        # Copies that appear together with their original are one checkpoint.
        number = seen + 1 + len(first_of)
        first = first_of.setdefault(entry.content, replace(entry, seen=number))
        there[entry.path] = replace(entry, seen=first.seen, step=first.step)
    steps: dict[int, int | None] = {}
    for row in newest_first(list(there.values())):
        is_recent = scan.now - row.seen_at < LINES_SECONDS
        if row.is_written and row.attempt == scan.writer and is_recent:
            # Of copies, the name that tells its step comes first.
            if row.seen not in steps:
                steps[row.seen] = scan.step_of(row)
            there[row.path] = replace(row, step=steps[row.seen])
    return (*there.values(), *_not_found(rows, there, scan))


def _in_order(entries: AnyRows, is_dated: bool) -> list[CheckpointRow]:
    """What appeared in one scan in the order of the steps: of the names, if all tell one and no
    time that can be true contradicts; else of the metrics."""
    named = {row.path: explicit_step(row.name) for row in entries}
    by_name = sorted(entries, key=lambda row: (named[row.path] or 0, row.modified_at, row.path))
    times = [entry.modified_at for entry in by_name]
    if None not in named.values() and (not is_dated or times == sorted(times)):
        return by_name
    return sorted(by_name, key=lambda entry: -1 if entry.step is None else entry.step)


def _not_found(rows: AnyRows, there: Mapping[str, CheckpointRow], scan: FolderScan) -> list[CheckpointRow]:
    """The entries of what was not found, those that are gone among them."""

    def folder_of(path: str) -> PurePath:
        is_inside = PurePath(path).is_relative_to(scan.folder)
        return scan.folder if is_inside else PurePath(path).parent

    places = {(row.path, row.seen) for row in there.values()}
    contents = {row.content for row in there.values()}
    folders = {folder_of(row.path) for row in rows if row.gone_at is None and row.path in there}
    left = []
    for row in rows:
        if (row.path, row.seen) not in places:
            is_gone = row.path in there or row.content in contents or folder_of(row.path) in folders
            left.append(replace(row, gone_at=scan.now) if row.gone_at is None and is_gone else row)
    return left


class CheckpointSteps:
    """The steps of a run's checkpoints. Every method raises sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection, run_id: str, attempts: Spans, folder: PurePath) -> None:
        self._times = StepTimes(connection, run_id)
        self._attempts = {span.number: span for span in attempts}
        self._folder = folder

    def step_of(self, row: CheckpointRow) -> int | None:
        """The step at which its attempt wrote a checkpoint: of its name, if the attempt may have
        been there between the two scans, else the newest step in the metrics at the time of the
        file, if that can be true."""
        at = row.seen_at if row.saved_at is None else row.saved_at
        recorded = self._recorded(row.attempt, at)
        if (named := self._named(row)) is not None:
            return named
        path = PurePath(row.path)
        is_explicit = explicit_step(path.name) is not None
        bare = None if row.is_rewrite else step_in_name(path, self._folder)
        latest = self._latest(row.attempt, row.seen_at)
        if recorded is not None:
            # A bare number may count epochs: it is a step only where the metrics may be there.
            is_reached = bare is not None and not is_explicit and latest is not None
            is_step = is_reached and recorded <= (bare or 0) <= (latest or 0) + 1
            return bare if is_step else recorded
        span = self._attempts.get(row.attempt)
        if is_explicit or span is None or span.last_step is None:
            return step_in_name(path, self._folder)
        return bare if bare is not None and latest is not None and bare <= latest + 1 else None

    def may_be_at(self, number: int, step: int, since: float, now: float) -> bool:
        """Whether an attempt may have been at a step between two times."""
        # It resumed somewhere: before its first line it was at no step that is known.
        first_at = self._times.first_at(number)
        earliest = self._recorded(number, since if first_at is None else max(since, first_at))
        latest = self._latest(number, now)
        return latest is not None and earliest is not None and earliest <= step <= latest + 1

    def has_stepped(self, number: int, since: float) -> bool:
        """Whether an attempt did a step after a time, allowing for the delay of lines."""
        newest = self._times.newest_line(number, math.inf, self._lines_since(number))
        return newest is not None and newest[0] > since + LINE_CLOCK_SECONDS

    def trouble(self, rows: Rows, number: int, step: int | None) -> UnsoundLoss | None:
        """What the metrics tell of an attempt whose loss was no finite number in the end, whatever
        it ended by, or became bad at ``step``; None if it did not."""
        times, unsound = self._times, self._times.unsound_since(number)
        if unsound is not None and (step is None or unsound[0] <= step):
            step, bad_at = unsound
        elif step is not None:
            at = times.done_at(number, step)
            bad_at = at if at is not None else times.last_at(number, step) or math.inf
        else:
            return None
        # Lines without a time come in blocks, all of which have the time of the bad one.
        before = math.nextafter(bad_at, -math.inf)
        line = times.newest_line(number, before, self._lines_since(number))
        own = times.last_sound(number, step)
        sound = {number: (-1 if own is None else own, -math.inf if line is None else line[0])}
        for other in self._attempts if own is None else ():
            if other != number and (last := times.last_sound(other)) is not None:
                sound[other] = (last, times.last_at(other, last) or -math.inf)
        if times.start_again(number):
            return UnsoundLoss(step, sound)  # names count steps otherwise than the lines
        named: dict[int, int] = {}
        for row in rows:
            if row.attempt in sound and (told := self._named(row)) is not None:
                # Of copies, the name that tells its step counts.
                named[row.seen] = min(told, named.get(row.seen, told))
        return UnsoundLoss(step, sound, named)

    def _named(self, row: CheckpointRow) -> int | None:
        """The step in its name, as its lines count, if its attempt may have been there between the
        two scans. A name that is written again and again tells nothing."""
        named = explicit_step(row.name)
        if named is None or row.is_rewrite:
            return None
        at = row.unseen_at if row.saved_at is None else row.saved_at
        earliest = self._recorded(row.attempt, at)
        latest = self._latest(row.attempt, row.seen_at)
        # A name may count completed steps where the metrics count from 0.
        if latest is None or not (earliest or 0) <= named <= latest + 1:
            return None
        return max(earliest or 0, min(named, latest))

    def _recorded(self, number: int, at: float) -> int | None:
        return self._times.newest_at(number, at, self._lines_since(number))

    def _latest(self, number: int, at: float) -> int | None:
        """The latest step at which an attempt may have been at a moment."""
        late_line = self._recorded(number, at + LINE_CLOCK_SECONDS)
        between_lines = self._times.latest_at(number, at, self._lines_since(number))
        steps = [step for step in (late_line, between_lines) if step is not None]
        return max(steps, default=None)

    def _lines_since(self, number: int) -> float:
        return self._attempts[number].begun_at - BEFORE_BEGIN_SECONDS
