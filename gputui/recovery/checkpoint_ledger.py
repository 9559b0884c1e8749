"""The ledger of checkpoints: what attempts change in it, and which may be resumed from. Pure: rows in, rows out.

A course is the chain of attempts linked by the checkpoints that they resumed from; an attempt without a checkpoint
begins a new course. Candidates to resume from are entries of the current course that are not struck off. An entry is
identified by its path, belongs to the attempt that lived when it was written, and is ordered by attempt and time;
numbers in names do not decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.ledger_inputs import UNKNOWN_TROUBLE, AttemptSpan, FoundCheckpoint, NumericTrouble, Rows
from gputui.runs.checkpoint_names import explicit_step
from gputui.store.checkpoints import CheckpointRow

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


# --- effects of attempts ----------------------------------------------------------------------------------------------


def attempt_begins(
    rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan], number: int, resume_from: str | None
) -> Rows:
    """The ledger when attempt ``number`` begins from ``resume_from``: checkpoints written after that one leave the
    course, once the attempt has made a step. ``attempts`` are those before it."""
    worked = CheckpointCourse.of(rows, attempts).worked
    rows = tuple(row if row.left_by in worked else replace(row, left_by=None) for row in rows)
    if resume_from is None:
        return rows
    base = next((row for row in rows if row.path == resume_from and row.attempt < number), None)
    return tuple(
        replace(row, base_of=number)
        if row is base
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
    step: int | None = None,
    trouble: NumericTrouble = UNKNOWN_TROUBLE,
) -> Rows:
    """The ledger when attempt ``number`` has ended, with or without an incident of ``kind`` at ``step``.

    After a NaN loss or loss spike, checkpoints that may have been written after the last sound step are struck off; of
    earlier attempts only if the trouble may have come with the checkpoint. So
    is a checkpoint that the attempt could not load. One from which it made no step becomes doubtful; one from which it
    did loses its doubt.
    """
    span = next((span for span in attempts if span.number == number), None)
    if span is None:
        return tuple(rows)
    if kind in NUMERIC_INCIDENTS:
        bad_step = step if step is not None else span.last_step
        own_only = _is_own_trouble(rows, span, bad_step, trouble)
        rows = [
            row if own_only and row.attempt < number else _after_trouble(row, span, bad_step, trouble) for row in rows
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


def _is_own_trouble(
    rows: Iterable[CheckpointRow], span: AttemptSpan, bad_step: int | None, trouble: NumericTrouble
) -> bool:
    """Whether the trouble began within a resumed attempt, so that what earlier attempts left in its course is sound.

    Either its loss was sound at first, or the trouble is not after its checkpoint's step: then the script counts its
    steps anew, or did not resume from there. In both cases, steps of earlier attempts cannot be compared with it."""
    if span.resumed_from is None:
        return False
    base = next((row for row in rows if row.base_of == span.number), None)
    if trouble.began_sound or bad_step is None or base is None or base.step is None:
        return trouble.began_sound
    # A step in a name may count completed steps where the metrics count from 0: then the next step has the same number.
    is_recorded = explicit_step(base.name) is None
    return bad_step < base.step or (is_recorded and bad_step == base.step)


def _after_trouble(
    row: CheckpointRow, span: AttemptSpan, bad_step: int | None, trouble: NumericTrouble
) -> CheckpointRow:
    """The row, struck off if it may have been written after the last sound step of an attempt that had a NaN loss or a
    loss spike at ``bad_step``."""
    if not row.is_written or row.verdict == "struck" or row.attempt > span.number:
        return row
    if trouble.began_at is not None:
        if row.attempt < span.number or row.modified_at < trouble.began_at:
            return row
        return replace(row, verdict="struck", why="was written after the trouble began")
    steps = [] if row.step is None else [row.step]
    last_step = max((step for step in (bad_step, span.last_step) if step is not None), default=None)
    # A number in a name that is beyond every step counts something else, such as samples.
    named = explicit_step(row.name)
    if named is not None and (last_step is None or named <= last_step + 1):
        steps.append(named)
    possible_steps = [*steps, *([trouble.latest[row.path]] if row.path in trouble.latest else [])]
    if bad_step is None or not possible_steps:
        # Without a step, anything that this attempt wrote may be affected.
        if row.attempt != span.number:
            return row
        return replace(row, verdict="struck", why="may have been written after the trouble began")
    if max(steps, default=0) >= bad_step:
        return replace(row, verdict="struck", why=f"was written after the trouble began at step {bad_step}")
    sound_until = bad_step - 1 if trouble.sound_until is None else min(bad_step - 1, trouble.sound_until)
    if max(possible_steps) <= sound_until:
        return row
    last_sound = "no step before was sound" if sound_until < 0 else f"step {sound_until} is the last that was sound"
    return replace(row, verdict="struck", why=f"may have been written after the trouble began: {last_sound}")


def _failed_start(row: CheckpointRow, number: int, kind: str) -> CheckpointRow:
    if row.verdict == "struck":
        return row
    if kind == "corrupt_checkpoint":
        return replace(row, verdict="struck", why=f"could not be loaded by attempt {number}")
    why = f"was resumed from by attempt {number}, which ended before its first step"
    return replace(row, verdict="doubtful", why=why, failed_starts=row.failed_starts + 1)


def rolled_back(rows: Sequence[CheckpointRow], path: str, why: str) -> Rows:
    """The ledger with everything struck off that was written after the checkpoint at ``path``."""
    base = next((row for row in rows if row.path == path), None)
    if base is None:
        return tuple(rows)
    return tuple(
        replace(row, verdict="struck", why=why)
        if row.is_later_than(base) and row.verdict != "struck" and not row.may_be_foreign
        else row
        for row in rows
    )


def chosen_by_person(
    rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan], file: FoundCheckpoint, step: int | None, now: float
) -> Rows:
    """The ledger when a person chose a checkpoint, at ``step`` if the ledger has no other: later ones are struck off;
    all others if it is not of this course. ``now`` is UTC unix seconds."""
    others = [row for row in rows if row.path != file.path]
    row = next((row for row in rows if row.path == file.path and file.has_stamp(row.stamp)), None)
    if row is not None and CheckpointCourse.of(rows, attempts).exclusion_reason(row) is None:
        chosen = replace(row, verdict="valid", why="", failed_starts=0)
        return rolled_back((*others, chosen), chosen.path, f"was left when a person chose {chosen.name}")
    chosen = CheckpointRow(
        file.path,
        attempt=attempts[-1].number if attempts else 0,
        origin="named",
        modified_ns=file.modified_ns,
        size_bytes=file.size_bytes,
        step=step if row is None else row.step,
        first_seen_at=now,
        is_settled=True,
        verdict="valid",
        why="was chosen by a person",
    )
    why = f"was left when a person chose {chosen.name}"
    struck = (row if row.verdict == "struck" else replace(row, verdict="struck", why=why) for row in others)
    return (*struck, chosen)


def replayed(
    rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan], incidents: Mapping[int, tuple[str, int | None]]
) -> Rows:
    """A new ledger with the effects of all attempts so far. ``incidents``: kind and step by attempt."""
    replay = tuple(rows)
    for index, span in enumerate(attempts):
        replay = attempt_begins(replay, attempts[:index], span.number, span.resumed_from)
        if span.ended_at is not None:
            kind, step = incidents.get(span.number, (None, None))
            replay = attempt_ended(replay, attempts[: index + 1], span.number, kind, step)
    return replay


# --- which may be resumed from ----------------------------------------------------------------------------------------


class CheckpointCourse(Struct, frozen=True):
    """The course of the newest attempt.

    Attributes:
        first_attempt: the attempt that began it without a checkpoint; 0 if none did.
        worked: the attempts that made a step or wrote a checkpoint.
        cut: a file that is cut, by the name of its save; struck: a file that is struck off, by attempt and name of its
            save.
    """

    first_attempt: int
    worked: frozenset[int]
    cut: Mapping[str, CheckpointRow]
    struck: Mapping[tuple[int, str], CheckpointRow]

    @classmethod
    def of(cls, rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> CheckpointCourse:
        first = next((span.number for span in reversed(attempts) if span.resumed_from is None), 0)
        wrote = {row.attempt for row in rows if row.is_written}
        cut = {row.name_of_save: row for row in rows if row.verdict == "cut"}
        struck = {(row.attempt, row.name_of_save): row for row in rows if row.verdict == "struck"}
        return cls(first, frozenset(wrote | {span.number for span in attempts if span.has_worked}), cut, struck)

    def exclusion_reason(self, row: CheckpointRow) -> str | None:
        """Why a checkpoint is no candidate, to complete "the checkpoint …"; None if it is one."""
        if row.may_be_foreign or row.verdict in ("cut", "struck"):
            return row.why
        if row.is_written:
            save = row.name_of_save
            part = self.cut.get(save) or self.struck.get((row.attempt, save))
            if part is not None:
                return f"belongs to {part.name}, which {part.why}"
        return self.departure_reason(row)

    def departure_reason(self, row: CheckpointRow) -> str | None:
        """Why a checkpoint belongs to another course, to complete "the checkpoint …"; None if it does not."""
        if row.attempt < self.first_attempt:
            return f"is of the training that was left when attempt {self.first_attempt} began from the start"
        if row.left_by is not None and row.left_by in self.worked:
            return f"was left when attempt {row.left_by} went on from an earlier one"
        return None


def candidates(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> list[CheckpointRow]:
    """The checkpoints that may be resumed from, best first: the newest ones, then doubtful ones, which still lose less
    than a start from scratch. Of the files that the ranks wrote in one save, the last one."""
    one_per_save: dict[tuple[int, str], CheckpointRow] = {}
    for row in candidates_by_age(rows, attempts):
        one_per_save.setdefault((row.attempt, row.name_of_save), row)
    return sorted(one_per_save.values(), key=lambda row: row.failed_starts)


def candidates_by_age(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> list[CheckpointRow]:
    """All their files in the order of writing, newest first."""
    course = CheckpointCourse.of(rows, attempts)
    usable = [row for row in rows if course.exclusion_reason(row) is None]
    return sorted(usable, key=lambda row: row.write_order, reverse=True)


def refused(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> list[tuple[CheckpointRow, str]]:
    """The checkpoints that are passed over and why, newest first, including doubtful and damaged ones."""
    course = CheckpointCourse.of(rows, attempts)
    reasons = []
    for row in sorted(rows, key=lambda row: row.write_order, reverse=True):
        reason = course.exclusion_reason(row)
        if reason is None and row.verdict in ("doubtful", "invalid"):
            reason = row.why
        if reason is not None:
            reasons.append((row, reason))
    return reasons


def newest_uncertain(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> CheckpointRow | None:
    """The newest contested or cut checkpoint that would otherwise be a candidate; None if there is none."""
    course = CheckpointCourse.of(rows, attempts)
    uncertain = (
        row
        for row in rows
        if (row.verdict == "cut" or (row.origin == "contested" and row.verdict != "struck"))
        and course.departure_reason(row) is None
    )
    return max(uncertain, key=lambda row: row.write_order, default=None)


def unloadable_choice(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> CheckpointRow | None:
    """The checkpoint that a person chose for the newest attempt if it could not be loaded. A start from scratch instead
    would overwrite earlier checkpoints without consent."""
    path = attempts[-1].resumed_from if attempts else None
    return next((row for row in rows if row.path == path and row.origin == "named" and row.verdict == "struck"), None)


def out_of_order(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> tuple[str, str] | None:
    """Two names of candidates whose steps contradict the order of writing (the older one first), or None. Such names
    are not trusted for pruning."""
    named_steps = [
        (step, row.name)
        for row in reversed(candidates_by_age(rows, attempts))
        if row.is_written and (step := explicit_step(row.name)) is not None
    ]
    for (step, name), (later_step, later_name) in itertools.pairwise(named_steps):
        if later_step < step:
            return name, later_name
    return None
