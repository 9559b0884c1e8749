"""The ledger of checkpoints: whose they are, what attempts change in it, and which may be resumed from. Pure.

What appears in the folder while an attempt lives is that attempt's, in the order in which it was seen; a content that
was seen before is the same checkpoint, whatever its name, place or time. A course is the chain of attempts linked by
the checkpoints that they resumed from; an attempt without one begins a new course. Candidates to resume from are
entries of the newest attempt's course that are not struck off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.checkpoints.files import FoundCheckpoint, has_lost_files
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.runs.spec import known_spec
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.runs import Run

NUMERIC_INCIDENTS = frozenset({"nan_loss", "loss_spike"})
# Incidents that no checkpoint causes: a failure before the first step does not cast doubt on it.
EXTERNAL_INCIDENTS = frozenset(
    [
        *("launch_failed", "import_error", "config_error", "driver_mismatch", "cuda_init"),
        *("cuda_oom", "host_oom", "shm_full", "resource_limit", "disk_full", "read_only_fs"),
        *("port_in_use", "rendezvous", "nvlink_error", "ecc", "overheating", "gpu_lost", "gpu_busy", "lease_conflict"),
        *("killed", "interrupted", "stopped_outside", "shim_lost", "preempted", "time_limit", "node_fail"),
    ]
)
# A run without metrics that lived this long has finished its setup.
WORKED_SECONDS = 60.0
# Lines are read at most this much after they were written: until then the step of a checkpoint may become known.
LINES_SECONDS = 60.0

Rows = tuple[CheckpointRow, ...]


class AttemptSpan(Struct, frozen=True):
    """An attempt as the ledger sees it.

    Attributes:
        begun_at, ended_at: UTC unix seconds; the end is None while it lives.
        resumed_from: the path of its checkpoint; None if it began from the start.
        has_worked: whether it made a step.
        gpu_count: attempts with as many GPUs have as many ranks.
    """

    number: int
    begun_at: float
    ended_at: float | None
    resumed_from: str | None
    last_step: int | None
    has_worked: bool
    gpu_count: int = 0


def attempt_spans(attempts: Sequence[Attempt], *, has_metrics: bool, now: float) -> tuple[AttemptSpan, ...]:
    """The attempts of a run, oldest first. ``now`` is UTC unix seconds."""
    spans = []
    for row in sorted(attempts, key=lambda row: row.number):
        started_at = row.started_at if row.started_at is not None else row.created_at
        ran_seconds = (row.ended_at if row.ended_at is not None else now) - started_at
        has_worked = row.last_step is not None or (not has_metrics and ran_seconds >= WORKED_SECONDS)
        ends = (row.created_at, row.ended_at)
        spans.append(AttemptSpan(row.number, *ends, row.resumed_from, row.last_step, has_worked, len(row.gpus)))
    return tuple(spans)


def spans_of(run: Run, attempts: Sequence[Attempt], now: float) -> tuple[AttemptSpan, ...]:
    """The same for a view, whose run has the specification as text."""
    spec = known_spec(run)
    return attempt_spans(attempts, has_metrics=spec is None or bool(spec.metrics), now=now)


# --- scans ------------------------------------------------------------------------------------------------------------


class FolderScan(Struct, frozen=True, kw_only=True):
    """A scan of a checkpoint folder. Times are UTC unix seconds.

    Attributes:
        now, since: when it was looked into, and when before.
        attempts: the run's attempts, oldest first.
        writer: the attempt that lived between the two scans; None if none did.
        step_of: the step of an entry, and whether an attempt may have been at a step between two times.
        intruder: why what appeared at a path may be of somebody else; None if it is the writer's.
        folder: the checkpoint folder, with links resolved.
        is_dated: the times of all that appeared lie between the two scans, so that they can be true.
    """

    now: float
    since: float
    attempts: Sequence[AttemptSpan]
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
        entry = CheckpointRow(
            file.path, seen=0, content=file.content, stamp=file.stamp, origin="run", size_bytes=file.size_bytes,
            attempt=self.writer or (self.attempts[-1].number if self.attempts else 0),
            unseen_at=min(self.since, self.now) if growing is None else growing.unseen_at, seen_at=self.now,
            modified_at=file.modified_ns / 1e9, saved_at=file.modified_ns / 1e9 if self.is_dated else None,
            step=step_in_name(PurePath(file.path), self.folder),
            is_rewrite=own is not None if growing is None else growing.is_rewrite,
        )  # fmt: skip
        if self.writer is None:
            came = "came there while no attempt lived" if self.attempts else "lay there before this run began"
            return replace(entry, origin="foreign", why=came)
        if (other := self.intruder(file.path)) is not None:
            return replace(entry, origin="contested", why=other)
        return replace(entry, step=self.step_of(entry))

    def saves_again(self, known: CheckpointRow, file: FoundCheckpoint, course: CheckpointCourse) -> bool:
        """Whether the writer may have saved a known content of another course anew at its place: deterministic training
        has equal content at equal steps."""
        if self.writer in (None, known.attempt) or known.verdict == "struck" or known.step is None:
            return False
        if known.path != file.path or (known.stamp == file.stamp and known.gone_at is None):
            return False
        is_left = known.origin in ("foreign", "contested") or course.departure_reason(known) is not None
        return is_left and self.may_be_at(self.writer or 0, known.step, self.since, self.now)


def after_scan(rows: Sequence[CheckpointRow], found: Sequence[FoundCheckpoint], scan: FolderScan) -> Rows:
    """The ledger after a scan that found these files. If nothing known is left in a folder, it may be a mount that went
    away, and its entries stay."""
    present = {row.path: row for row in rows if row.gone_at is None}
    by_content = {row.content: row for row in sorted(rows, key=_standing)}
    course = CheckpointCourse.of(rows, scan.attempts)
    there: dict[str, CheckpointRow] = {}
    newest = max((row.seen for row in rows if row.is_written and row.gone_at is None), default=0)

    def is_past(row: CheckpointRow) -> bool:
        """Whether no attempt can be saving it now: none lives, or another one was saved since."""
        return scan.writer is None or row.seen < newest

    appeared = []
    for file in found:
        row = present.get(file.path)
        is_same = row is not None and row.content == file.content
        known = row if is_same else by_content.get(file.content)
        if known is not None and not scan.saves_again(known, file, course):
            there[file.path] = replace(
                known,
                path=file.path,
                stamp=file.stamp,
                size_bytes=file.size_bytes,
                modified_at=file.modified_ns / 1e9,
                is_settled=True,
                gone_at=None,
            )
        elif row is not None and has_lost_files(file.content, row.content):
            # Its deletion goes on, or was interrupted.
            why = "lost a part of it since it was saved"
            there[file.path] = replace(row, content=file.content, stamp=file.stamp, verdict="struck", why=why)
        elif row is not None and row.is_settled and has_lost_files(row.content, file.content) and is_past(row):
            # A tool has added a file, such as merged weights: no save, and as sound as before.
            verdict = row.verdict if row.verdict in ("valid", "struck", "doubtful") else "unexamined"
            change = {"content": file.content, "stamp": file.stamp, "size_bytes": file.size_bytes}
            there[file.path] = replace(row, **change, verdict=verdict)
        else:
            appeared.append((file, row))
    scan = replace(scan, is_dated=all(scan.since <= file.modified_ns / 1e9 <= scan.now for file, _ in appeared))
    seen = max((row.seen for row in rows), default=0)
    numbers: dict[str, CheckpointRow] = {}
    for entry in _in_order([scan.entry(file, row) for file, row in appeared], is_dated=scan.is_dated):
        # Copies that appear together with their original are one checkpoint.
        first = numbers.setdefault(entry.content, replace(entry, seen=seen + 1 + len(numbers)))
        there[entry.path] = replace(entry, seen=first.seen, step=first.step)
    steps: dict[int, int | None] = {}
    for row in newest_first(list(there.values())):
        if not row.is_written or row.attempt != scan.writer or scan.now - row.seen_at >= LINES_SECONDS:
            continue
        # Of copies, the name that tells its step comes first.
        if row.seen not in steps:
            steps[row.seen] = scan.step_of(row)
        there[row.path] = replace(row, step=steps[row.seen])
    return (*there.values(), *_left(rows, there, scan))


def _standing(row: CheckpointRow) -> tuple[bool, bool, int]:
    """By which entry a content is recognized: a person's choice, else one that was struck off, else the newest."""
    return (row.origin == "named" and row.verdict != "struck", row.verdict == "struck", row.seen)


def _in_order(entries: Sequence[CheckpointRow], *, is_dated: bool) -> list[CheckpointRow]:
    """What appeared in one scan in the order of the steps: of the names, if all tell one and no time that can be true
    contradicts; else of the metrics."""
    named = {entry.path: explicit_step(entry.name) for entry in entries}
    by_name = sorted(entries, key=lambda entry: (named[entry.path] or 0, entry.modified_at, entry.path))
    times = [entry.modified_at for entry in by_name]
    if None not in named.values() and (not is_dated or times == sorted(times)):
        return by_name
    return sorted(by_name, key=lambda entry: -1 if entry.step is None else entry.step)


def _left(rows: Sequence[CheckpointRow], there: Mapping[str, CheckpointRow], scan: FolderScan) -> list[CheckpointRow]:
    """The entries of what was not found, those that are gone among them."""

    def folder_of(path: str) -> PurePath:
        is_inside = PurePath(path).is_relative_to(scan.folder)
        return scan.folder if is_inside else PurePath(path).parent

    places = {(row.path, row.seen) for row in there.values()}
    contents = {row.content for row in there.values()}
    known_folders = {folder_of(row.path) for row in rows if row.gone_at is None and row.path in there}

    def is_gone(row: CheckpointRow) -> bool:
        return row.path in there or row.content in contents or folder_of(row.path) in known_folders

    left = (row for row in rows if (row.path, row.seen) not in places)
    return [replace(row, gone_at=scan.now) if row.gone_at is None and is_gone(row) else row for row in left]


# --- effects of attempts ----------------------------------------------------------------------------------------------


class UnsoundLoss(Struct, frozen=True):
    """Where an attempt's loss became NaN or jumped, as far as its metrics tell.

    Attributes:
        step: the first bad step; None if unknown.
        began_at: UTC unix seconds, if its steps restart, such as steps counted per epoch; else None.
        sound_until: by attempt, its last step with a sound loss, -1 if it had none; without those that tell no loss.
        latest: the latest step at which a checkpoint may have been written, by its place in the order.
    """

    step: int | None = None
    began_at: float | None = None
    sound_until: Mapping[int, int] = MappingProxyType({})
    latest: Mapping[int, int] = MappingProxyType({})

    def reason(self, row: CheckpointRow, number: int) -> str | None:
        """Why attempt ``number`` casts a checkpoint out, to complete "the checkpoint …"; None if it does not.

        One of an earlier attempt only if this attempt had no sound loss at all: the trouble may have come with it."""
        is_own = row.attempt == number
        if not is_own and self.sound_until.get(number, 0) >= 0:
            return None
        if self.began_at is not None:
            return "was seen after the trouble began" if is_own and row.seen_at >= self.began_at else None
        latest, sound = self.latest.get(row.seen), self.sound_until.get(row.attempt)
        if sound is None and is_own and self.step is not None:
            sound = self.step - 1
        if latest is None or sound is None:
            is_suspect = is_own or (row.base_of == number and sound is not None)
            return "may have been written after the trouble began" if is_suspect else None
        if latest <= sound:
            return None
        if self.step is not None and row.step is not None and row.step >= self.step:
            return f"was written after the trouble began at step {self.step}"
        last_sound = "no step before was sound" if sound < 0 else f"step {sound} is the last that was sound"
        return f"may have been written after the trouble began: {last_sound}"


def attempt_begins(
    rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan], number: int, resume_from: str | None
) -> Rows:
    """The ledger when attempt ``number`` begins from ``resume_from``: checkpoints seen after that one leave the course,
    once the attempt has made a step. ``attempts`` are those before it."""
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
    rows: Sequence[CheckpointRow],
    attempts: Sequence[AttemptSpan],
    number: int,
    kind: str | None = None,
    trouble: UnsoundLoss | None = None,
) -> Rows:
    """The ledger when attempt ``number`` has ended, with or without an incident of ``kind``; with ``trouble`` if its
    loss was bad in the end, whatever it ended by.

    What may have been written since is struck off, and a checkpoint that the attempt could not load. One from which it
    made no step becomes doubtful; one from which it did loses its doubt.
    """
    span = next((span for span in attempts if span.number == number), None)
    if span is None:
        return tuple(rows)
    if trouble is not None:
        rows = [
            replace(row, verdict="struck", why=why)
            if row.is_written
            and row.verdict != "struck"
            and row.attempt <= number
            and (why := trouble.reason(row, number)) is not None
            else row
            for row in rows
        ]
    # Where steps are known, a checkpoint saved before the first of them is no progress.
    has_steps = any(attempt.last_step is not None for attempt in attempts)
    if span.has_worked or (not has_steps and any(row.is_written and row.attempt == number for row in rows)):
        return tuple(
            replace(row, verdict="unexamined", why="", failed_starts=0)
            if row.base_of == number and row.verdict == "doubtful"
            else row
            for row in rows
        )
    if kind is None or kind in EXTERNAL_INCIDENTS or span.resumed_from is None:
        return tuple(rows)
    return tuple(_failed_start(row, number, kind) if row.base_of == number else row for row in rows)


def _failed_start(row: CheckpointRow, number: int, kind: str) -> CheckpointRow:
    if row.verdict == "struck":
        return row
    if kind == "corrupt_checkpoint":
        return replace(row, verdict="struck", why=f"could not be loaded by attempt {number}")
    why = f"was resumed from by attempt {number}, which ended before its first step"
    return replace(row, verdict="doubtful", why=why, failed_starts=row.failed_starts + 1)


def rolled_back(rows: Sequence[CheckpointRow], path: str, why: str) -> Rows:
    """The ledger with everything struck off that was seen after the checkpoint at ``path``."""
    base = _at(rows, path)
    if base is None:
        return tuple(rows)
    return tuple(
        replace(row, verdict="struck", why=why)
        if row.is_later_than(base) and row.verdict != "struck" and row.origin in ("run", "named")
        else row
        for row in rows
    )


def chosen_by_person(
    rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan], file: FoundCheckpoint, step: int | None, now: float
) -> Rows:
    """The ledger when a person chose a checkpoint, at ``step`` if the ledger has no other: later ones are struck off;
    all others if it is not of this course. ``now`` is UTC unix seconds."""
    row = next((row for row in rows if row.content == file.content and row.path == file.path), None)
    row = row or next((row for row in rows if row.content == file.content), None)
    if row is not None and CheckpointCourse.of(rows, attempts).exclusion_reason(row) is None:
        same = (replace(each, verdict="valid", why="", failed_starts=0) for each in rows if each.seen == row.seen)
        chosen = {each.path: each for each in same}
        chosen.setdefault(file.path, replace(row, path=file.path, stamp=file.stamp, verdict="valid", gone_at=None))
        others = (each for each in rows if each.seen != row.seen)
        return rolled_back((*others, *chosen.values()), file.path, f"was left when a person chose {row.name}")
    named = CheckpointRow(
        file.path, seen=max((each.seen for each in rows), default=0) + 1, content=file.content, stamp=file.stamp,
        attempt=attempts[-1].number if attempts else 0, origin="named", unseen_at=now, seen_at=now,
        modified_at=file.modified_ns / 1e9, saved_at=None, step=step if row is None else row.step,
        size_bytes=file.size_bytes, is_settled=True, verdict="valid", why="was chosen by a person",
    )  # fmt: skip
    why = f"was left when a person chose {named.name}"
    there = [each for each in rows if each.gone_at is None]
    copies = [replace(named, path=each.path, stamp=each.stamp) for each in there if each.content == file.content]
    taken = {named.path: named} | {copy.path: copy for copy in copies}
    others = (each if each.verdict == "struck" else replace(each, verdict="struck", why=why) for each in rows)
    left = (replace(each, gone_at=now) if each.gone_at is None and each.path in taken else each for each in others)
    return (*taken.values(), *left)


def _at(rows: Sequence[CheckpointRow], path: str) -> CheckpointRow | None:
    found = [row for row in rows if row.path == path]
    return next((row for row in found if row.gone_at is None), max(found, key=lambda row: row.seen, default=None))


# --- which may be resumed from ----------------------------------------------------------------------------------------


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
    def of(cls, rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> CheckpointCourse:
        first = next((span.number for span in reversed(attempts) if span.resumed_from is None), 0)
        wrote = {row.attempt for row in rows if row.is_written}
        parts = {(row.attempt, row.name_of_save): row for row in rows if row.verdict in ("cut", "struck") and row.ranks}
        return cls(first, frozenset(wrote | {span.number for span in attempts if span.has_worked}), parts)

    def exclusion_reason(self, row: CheckpointRow) -> str | None:
        """Why a checkpoint is no candidate, to complete "the checkpoint …"; None if it is one."""
        if row.origin in ("foreign", "contested") or row.verdict in ("cut", "struck"):
            return row.why
        part = self.parts.get((row.attempt, row.name_of_save)) if row.is_written else None
        if part is not None and part.path != row.path:
            return f"belongs to {part.name}, which {part.why}"
        return self.departure_reason(row)

    def departure_reason(self, row: CheckpointRow) -> str | None:
        """Why a checkpoint belongs to another course, to complete "the checkpoint …"; None if it does not."""
        if row.attempt < self.first_attempt:
            return f"is of the training that was left when attempt {self.first_attempt} began from the start"
        if row.left_by is not None and row.left_by in self.worked:
            return f"was left when attempt {row.left_by} went on from an earlier one"
        return None


def newest_first(rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """The rows of what is there, of copies the one that tells its step first."""
    there = (row for row in rows if row.gone_at is None)
    return sorted(there, key=lambda row: (-row.seen, explicit_step(row.name) is None, row.path))


def candidates_by_age(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> list[CheckpointRow]:
    """The files that may be resumed from, the one seen last first."""
    course = CheckpointCourse.of(rows, attempts)
    return [row for row in newest_first(rows) if course.exclusion_reason(row) is None]


def candidates(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> list[CheckpointRow]:
    """The checkpoints that may be resumed from, best first: the newest ones, then doubtful ones, which still lose less
    than a start from scratch. Of the files that the ranks wrote in one save, the last one."""
    one_per_save: dict[tuple[int, int, str], CheckpointRow] = {}
    for row in candidates_by_age(rows, attempts):
        save = row.name_of_save if row.ranks else row.path
        one_per_save.setdefault((row.attempt, 0 if row.ranks else row.seen, save), row)
    return sorted(one_per_save.values(), key=lambda row: row.failed_starts)


def refused(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> list[tuple[CheckpointRow, str]]:
    """The checkpoints that are passed over and why, newest first, including doubtful and damaged ones."""
    course = CheckpointCourse.of(rows, attempts)
    weak = {row.path: row.why for row in rows if row.verdict in ("doubtful", "invalid") and row.gone_at is None}
    reasons = ((row, course.exclusion_reason(row) or weak.get(row.path)) for row in newest_first(rows))
    return [(row, reason) for row, reason in reasons if reason is not None]


def newest_uncertain(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> CheckpointRow | None:
    """The newest contested or cut checkpoint that would otherwise be a candidate; None if there is none."""
    course = CheckpointCourse.of(rows, attempts)
    own = (row for row in newest_first(rows) if course.departure_reason(row) is None and row.verdict != "struck")
    return next((row for row in own if row.verdict == "cut" or row.origin == "contested"), None)


def lost_choice(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> tuple[CheckpointRow, str] | None:
    """The checkpoint that a person chose for this course if it is gone or could not be loaded, and why it is lost. A
    start from scratch instead would overwrite earlier checkpoints without consent."""
    course = CheckpointCourse.of(rows, attempts)
    path = attempts[-1].resumed_from if attempts else None
    there = {row.path: row.content for row in rows if row.gone_at is None}
    for row in sorted(rows, key=lambda row: row.seen, reverse=True):
        if row.origin == "named" and row.verdict == "struck" and row.path == path:
            return row, row.why
        if row.origin == "named" and course.exclusion_reason(row) is None and row.content not in there.values():
            return row, "was written over" if row.path in there else "is gone"
    return None
