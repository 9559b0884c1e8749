"""The ledger of checkpoints: whose they are, what attempts change in it, and which may be resumed
from. Pure.

What appears in the folder while an attempt lives is that attempt's, in the order in which it was
seen; a content that was seen before is the same checkpoint, whatever its name, place or time. A
course is the chain of attempts linked by the checkpoints that they resumed from; an attempt without
one begins a new course. Candidates to resume from are entries of the newest attempt's course that
are not struck off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import count
from gputui.recovery.checkpoints.files import FoundCheckpoint
from gputui.runs.checkpoint_names import explicit_step, is_step_named, step_words
from gputui.runs.spec import known_spec
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.json_shapes import iso
from gputui.store.runs import Run

NUMERIC_INCIDENTS = frozenset({"nan_loss", "loss_spike"})
# Incidents that no checkpoint causes: a failure before the first step casts no doubt on it.
EXTERNAL_INCIDENTS = frozenset(
    [
        *("launch_failed", "import_error", "config_error", "driver_mismatch", "cuda_init"),
        *("cuda_oom", "host_oom", "shm_full", "resource_limit", "disk_full", "read_only_fs"),
        *("port_in_use", "rendezvous", "nvlink_error", "ecc", "overheating", "gpu_lost"),
        *("gpu_busy", "lease_conflict", "killed", "interrupted", "stopped_outside", "shim_lost"),
        *("preempted", "time_limit", "node_fail"),
    ]
)
# A run without metrics that lived this long has finished its setup.
WORKED_SECONDS = 60.0
# A line without a time gets the time when it is read, at most this much later.
LINE_CLOCK_SECONDS = 1.0
MOST_SHOWN = 5

Rows = tuple[CheckpointRow, ...]
AnyRows = Sequence[CheckpointRow]


class AttemptSpan(Struct, frozen=True):
    """An attempt as the ledger sees it, with times in UTC unix seconds: the end is None while it
    lives, ``resumed_from`` if it began from the start. ``has_worked``: it made a step. Attempts
    with as many GPUs have as many ranks."""

    number: int
    begun_at: float
    ended_at: float | None
    resumed_from: str | None
    last_step: int | None
    has_worked: bool
    gpu_count: int = 0


Spans = Sequence[AttemptSpan]


def attempt_spans(attempts: Sequence[Attempt], *, has_metrics: bool, now: float) -> tuple[AttemptSpan, ...]:
    """The attempts of a run, oldest first. ``now`` is UTC unix seconds."""
    spans = []
    for row in sorted(attempts, key=lambda row: row.number):
        started_at = row.started_at if row.started_at is not None else row.created_at
        ran_seconds = (row.ended_at if row.ended_at is not None else now) - started_at
        is_long = not has_metrics and ran_seconds >= WORKED_SECONDS
        has_worked = row.last_step is not None or is_long
        ends = (row.created_at, row.ended_at)
        base, last_step = row.resumed_from, row.last_step
        spans.append(AttemptSpan(row.number, *ends, base, last_step, has_worked, len(row.gpus)))
    return tuple(spans)


def spans_of(run: Run, attempts: Sequence[Attempt], now: float) -> tuple[AttemptSpan, ...]:
    """The same for a view, whose run has the specification as text."""
    spec = known_spec(run)
    return attempt_spans(attempts, has_metrics=spec is None or bool(spec.metrics), now=now)


def new_row(file: FoundCheckpoint, attempt: int, now: float, step: int | None) -> CheckpointRow:
    """An entry of the ledger for a file that was seen at ``now`` (UTC unix seconds)."""
    return CheckpointRow(
        file.path, seen=0, content=file.content, stamp=file.stamp, attempt=attempt, origin="run", unseen_at=now,
        seen_at=now, modified_at=file.modified_ns / 1e9, saved_at=None, step=step, size_bytes=file.size_bytes,
    )  # fmt: skip


# --- effects of attempts ----------------------------------------------------------------------


class UnsoundLoss(Struct, frozen=True):
    """Where an attempt's loss became NaN or jumped, as far as its metrics tell.

    Attributes:
        step: the first bad step; None if unknown.
        sound: by attempt, its last step with a sound loss (-1 for none) and the time of the last
            line before the bad one (UTC unix seconds); without those that tell no loss.
        named: the steps of checkpoints whose names tell them, by place in the order.
    """

    step: int | None = None
    sound: Mapping[int, tuple[int, float]] = MappingProxyType({})
    named: Mapping[int, int] = MappingProxyType({})

    def reason(self, row: CheckpointRow, number: int) -> str | None:
        """Why attempt ``number`` casts a checkpoint out, to complete "the checkpoint …"; None if it
        does not. One of an earlier attempt only if this attempt had no sound loss at all: the
        trouble may have come with it."""
        is_own = row.attempt == number
        if row.attempt not in self.sound or (not is_own and self.sound[number][0] >= 0):
            return None
        step, at = self.sound[row.attempt]
        named = self.named.get(row.seen)
        if row.seen_at + LINE_CLOCK_SECONDS <= at if named is None else named <= step:
            return None
        if self.step is not None and row.step is not None and row.step >= self.step:
            return f"was written after the trouble began at step {self.step}"
        last = "no step before was sound" if step < 0 else f"step {step} is the last sound one"
        return f"may have been written after the trouble began: {last}"


def attempt_begins(rows: AnyRows, attempts: Spans, number: int, resume_from: str | None) -> Rows:
    """The ledger when attempt ``number`` begins from ``resume_from``: checkpoints seen after that
    one leave the course, once the attempt has made a step. ``attempts`` are those before it."""
    worked = CheckpointCourse.of(rows, attempts).worked
    rows = tuple(row if row.left_by in worked else replace(row, left_by=None) for row in rows)
    if resume_from is None:
        return rows
    base = _at(rows, resume_from)
    return tuple(
        replace(row, base_of=number)
        if base is not None and row.seen == base.seen
        else replace(row, left_by=number)
        if row.left_by is None and row.attempt < number and (base is None or row.is_later_than(base))
        else row
        for row in rows
    )


def attempt_ended(
    rows: AnyRows, attempts: Spans, number: int, kind: str | None = None, trouble: UnsoundLoss | None = None
) -> Rows:
    """The ledger when attempt ``number`` has ended, with or without an incident of ``kind``; with
    ``trouble`` if its loss was bad in the end, whatever it ended by.

    What may have been written since is struck off, and a checkpoint that the attempt could not
    load. One from which it made no step becomes doubtful; one from which it did loses its doubt.
    """
    span = next((span for span in attempts if span.number == number), None)
    if span is None:
        return tuple(rows)

    def poisoned(row: CheckpointRow) -> CheckpointRow:
        is_open = row.is_written and row.verdict != "struck" and row.attempt <= number
        why = trouble.reason(row, number) if trouble is not None and is_open else None
        return row if why is None else replace(row, verdict="struck", why=why)

    def trusted(row: CheckpointRow) -> CheckpointRow:
        if row.base_of != number or row.verdict != "doubtful":
            return row
        return replace(row, verdict="unexamined", why="", failed_starts=0)

    def doubted(row: CheckpointRow) -> CheckpointRow:
        if row.base_of != number or row.verdict == "struck":
            return row
        if kind == "corrupt_checkpoint":
            return replace(row, verdict="struck", why=f"could not be loaded by attempt {number}")
        why = f"was resumed from by attempt {number}, which ended before its first step"
        return replace(row, verdict="doubtful", why=why, failed_starts=row.failed_starts + 1)

    rows = tuple(map(poisoned, rows))
    # Where steps are known, a checkpoint saved before the first of them is no progress.
    has_steps = any(attempt.last_step is not None for attempt in attempts)
    has_saved = any(row.is_written and row.attempt == number for row in rows)
    if span.has_worked or (not has_steps and has_saved):
        return tuple(map(trusted, rows))
    if kind is None or kind in EXTERNAL_INCIDENTS or span.resumed_from is None:
        return rows
    return tuple(map(doubted, rows))


def rolled_back(rows: AnyRows, path: str, why: str) -> Rows:
    """The ledger with everything left that was seen after the checkpoint at ``path``."""
    base = _at(rows, path)
    if base is None:
        return tuple(rows)
    return tuple(
        replace(row, verdict="left", why=why)
        if row.is_later_than(base) and row.verdict not in ("struck", "left") and row.origin in ("run", "named")
        else row
        for row in rows
    )


def chosen_by_person(rows: AnyRows, attempts: Spans, file: FoundCheckpoint, step: int | None, now: float) -> Rows:
    """The ledger when a person chose a checkpoint, at ``step`` if the ledger has no other: later
    ones are left; all others if it is not of this course. ``now`` is UTC unix seconds."""
    same = sorted((row for row in rows if row.content == file.content), key=lambda row: row.path != file.path)
    row = same[0] if same else None
    name = PurePath(file.path).name
    if row is not None and CheckpointCourse.of(rows, attempts).exclusion_reason(row) is None:
        chosen = {
            each.path: replace(each, verdict="valid", why="", failed_starts=0) for each in rows if each.seen == row.seen
        }
        place = replace(row, path=file.path, stamp=file.stamp, verdict="valid", gone_at=None)
        chosen.setdefault(file.path, place)
        others = (each for each in rows if each.seen != row.seen)
        why = f"was left when a person chose {row.name}"
        return rolled_back((*others, *chosen.values()), file.path, why)
    named = replace(
        new_row(file, attempts[-1].number if attempts else 0, now, step if row is None else row.step),
        seen=max((each.seen for each in rows), default=0) + 1,
        origin="named",
        is_settled=True,
        verdict="valid",
        why="was chosen by a person",
    )
    copies = (each for each in same if each.gone_at is None)
    taken = {copy.path: replace(named, path=copy.path, stamp=copy.stamp) for copy in copies}
    taken[named.path] = named
    why = f"was left when a person chose {name}"
    left = (each if each.verdict in ("struck", "left") else replace(each, verdict="left", why=why) for each in rows)
    return (
        *taken.values(),
        *(replace(each, gone_at=now) if each.gone_at is None and each.path in taken else each for each in left),
    )


def _at(rows: AnyRows, path: str) -> CheckpointRow | None:
    """The newest entry at a path, one that is still there first."""
    found = (row for row in rows if row.path == path)
    return max(found, key=lambda row: (row.gone_at is None, row.seen), default=None)


# --- which may be resumed from ----------------------------------------------------------------


class CheckpointCourse(Struct, frozen=True):
    """The course of the newest attempt.

    Attributes:
        first_attempt: the attempt that began it without a checkpoint; 0 if none did.
        worked: the attempts that made a step or wrote a checkpoint.
        parts: a file that is cut or struck off, by attempt and name of its save.
    """

    first_attempt: int
    worked: frozenset[int]
    parts: Mapping[tuple[int, str], CheckpointRow]

    @classmethod
    def of(cls, rows: AnyRows, attempts: Spans) -> CheckpointCourse:
        begun = (span.number for span in reversed(attempts) if span.resumed_from is None)
        worked = {row.attempt for row in rows if row.is_written}
        worked |= {span.number for span in attempts if span.has_worked}
        bad = (row for row in rows if row.verdict in ("cut", "struck") and row.ranks)
        parts = {(row.attempt, row.name_of_save): row for row in bad}
        return cls(next(begun, 0), frozenset(worked), parts)

    def exclusion_reason(self, row: CheckpointRow) -> str | None:
        """Why a checkpoint is no candidate, to complete "the checkpoint …"; None if it is one."""
        is_out = row.verdict in ("cut", "struck", "left")
        if is_out or row.origin in ("foreign", "contested"):
            return row.why
        part = self.parts.get((row.attempt, row.name_of_save)) if row.is_written else None
        if part is not None and part.path != row.path:
            return f"belongs to {part.name}, which {part.why}"
        return self.departure_reason(row)

    def departure_reason(self, row: CheckpointRow) -> str | None:
        """Why a checkpoint belongs to another course, as `exclusion_reason` puts it, or None."""
        if row.attempt < self.first_attempt:
            began = f"attempt {self.first_attempt} began from the start"
            return f"is of the training that was left when {began}"
        if row.left_by is not None and row.left_by in self.worked:
            return f"was left when attempt {row.left_by} went on from an earlier one"
        return None


def newest_first(rows: AnyRows) -> list[CheckpointRow]:
    """The rows of what is there, of copies the one that tells its step first."""
    there = (row for row in rows if row.gone_at is None)
    return sorted(there, key=lambda row: (-row.seen, explicit_step(row.name) is None, row.path))


def candidates_by_age(rows: AnyRows, attempts: Spans) -> list[CheckpointRow]:
    """The files that may be resumed from, the one seen last first."""
    course = CheckpointCourse.of(rows, attempts)
    return [row for row in newest_first(rows) if course.exclusion_reason(row) is None]


def candidates(rows: AnyRows, attempts: Spans) -> list[CheckpointRow]:
    """The checkpoints that may be resumed from, best first: the newest ones, then doubtful ones,
    which still lose less than a start from scratch. Of the files that the ranks wrote in one save,
    the last one."""
    one_per_save: dict[tuple[int, int, str], CheckpointRow] = {}
    for row in candidates_by_age(rows, attempts):
        save = (0, row.name_of_save) if row.ranks else (row.seen, row.path)
        one_per_save.setdefault((row.attempt, *save), row)
    return sorted(one_per_save.values(), key=lambda row: row.failed_starts)


def refused(rows: AnyRows, attempts: Spans) -> list[tuple[CheckpointRow, str]]:
    """The checkpoints that are passed over and why, newest first, with doubtful and cut ones."""
    course = CheckpointCourse.of(rows, attempts)
    found = []
    for row in newest_first(rows):
        weak = row.why if row.verdict in ("doubtful", "invalid") else None
        if (why := course.exclusion_reason(row) or weak) is not None:
            found.append((row, why))
    return found


def newest_uncertain(rows: AnyRows, attempts: Spans) -> CheckpointRow | None:
    """The newest contested or cut checkpoint that would otherwise be a candidate, or None."""
    course = CheckpointCourse.of(rows, attempts)
    own = (row for row in newest_first(rows) if course.departure_reason(row) is None)
    open_rows = (row for row in own if row.verdict not in ("struck", "left"))
    return next((row for row in open_rows if row.verdict == "cut" or row.origin == "contested"), None)


def lost_choice(rows: AnyRows, attempts: Spans) -> tuple[CheckpointRow, str] | None:
    """The checkpoint that a person chose for this course if it is gone or could not be loaded, and
    why it is lost. A start from scratch instead would overwrite earlier ones without consent."""
    course = CheckpointCourse.of(rows, attempts)
    path = attempts[-1].resumed_from if attempts else None
    there = {row.path: row.content for row in rows if row.gone_at is None}
    named = (row for row in rows if row.origin == "named")
    for row in sorted(named, key=lambda row: row.seen, reverse=True):
        if row.verdict == "struck" and row.path == path:
            return row, row.why
        if course.exclusion_reason(row) is None and row.content not in there.values():
            return row, "was written over" if row.path in there else "is gone"
    return None


# --- for people -------------------------------------------------------------------------------


def checkpoints_sentence(rows: AnyRows, attempts: Spans) -> str:
    """Text on what could be resumed from, and what is passed over. ``rows`` are not empty."""
    usable = candidates(rows, attempts)
    text = "Checkpoints: none of this training can be resumed from."
    if usable:
        newest = usable[0]
        words = "" if newest.step is None else step_words(newest.name, newest.step) + ", "
        place = f"{newest.name} ({words}attempt {newest.attempt})"
        text = f"Checkpoints: {count(len(usable))} of this training, the newest {place}."
    others = [f"{row.name} {why}" for row, why in refused(rows, attempts)]
    if len(others) > MOST_SHOWN:
        others[MOST_SHOWN:] = [f"and {count(len(others) - MOST_SHOWN)} more"]
    return clean(f"{text} Passed over: {'; '.join(others)}." if others else text)


def checkpoints_shape(rows: AnyRows, attempts: Spans) -> list[dict[str, Any]]:
    """One item per checkpoint for ``gputui show --json``, newest first; ``refused`` is why it would
    not be resumed from, or null."""
    reasons = {row.path: why for row, why in refused(rows, attempts)}
    return [
        {
            "path": row.path,
            "step": row.step,
            "step_is_estimated": row.step is not None and not is_step_named(row.name),
            "attempt": row.attempt if row.is_written else None,
            "origin": row.origin,
            "size_bytes": row.size_bytes,
            "seen_at": iso(row.seen_at),
            "modified_at": iso(row.modified_at),
            "verdict": row.verdict,
            "refused": reasons.get(row.path),
        }
        for row in newest_first(rows)
    ]
