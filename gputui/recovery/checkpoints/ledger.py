"""The ledger of checkpoints: whose they are, and what attempts change in it. Pure.

What appears in the folder while an attempt lives is that attempt's, in the order in which it was
seen; a content that was seen before is the same checkpoint, whatever its name, place or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.checkpoints.resumable import AnyRows, CheckpointLineage, Rows, Spans
from gputui.recovery.kinds import kind_of
from gputui.runs.checkpoint_files import FoundCheckpoint
from gputui.store.checkpoints import CheckpointRow

# A line without a time gets the time when it is read, at most this much later.
LINE_CLOCK_SECONDS = 1.0


def new_row(file: FoundCheckpoint, attempt: int, now: float, step: int | None) -> CheckpointRow:
    """An entry of the ledger for a file that was seen at ``now`` (UTC unix seconds)."""
    return CheckpointRow(
        file.path, place=0, content=file.content, stamp=file.stamp, attempt=attempt, origin="run", unseen_at=now,
        seen_at=now, modified_at=file.modified_ns / 1e9, saved_at=None, step=step, size_bytes=file.size_bytes,
    )  # fmt: skip


class UnsoundLoss(Struct, frozen=True):
    """The place where an attempt's loss became NaN or jumped, as far as its metrics tell.

    Attributes:
        step: the first bad step; None if unknown.
        sound: by attempt, its last step with a sound loss (-1 for none) and the time of the last
            line before the bad one (UTC unix seconds); without those that tell no loss.
        named_steps: the steps of checkpoints whose names tell them, by place in the order.
    """

    step: int | None = None
    sound: Mapping[int, tuple[int, float]] = MappingProxyType({})
    named_steps: Mapping[int, int] = MappingProxyType({})

    def reason(self, row: CheckpointRow, number: int) -> str | None:
        """The reason why attempt ``number`` strikes off a checkpoint, to complete "the checkpoint …"; None if it
        does not.

        It strikes off one of an earlier attempt only if it had no sound loss at all: the trouble may have come with it.
        """
        is_own = row.attempt == number
        if row.attempt not in self.sound or (not is_own and self.sound[number][0] >= 0):
            return None
        step, at = self.sound[row.attempt]
        is_sound = row.seen_at + LINE_CLOCK_SECONDS <= at
        if row.place in self.named_steps:
            is_sound = self.named_steps[row.place] <= step
        if is_sound:
            return None
        if self.step is not None and row.step is not None and row.step >= self.step:
            return f"was written after the trouble began at step {self.step}"
        last = "no step before was sound" if step < 0 else f"step {step} is the last sound one"
        return f"may have been written after the trouble began: {last}"


def attempt_begins(rows: AnyRows, attempts: Spans, number: int, resume_from: str | None) -> Rows:
    """The ledger when attempt ``number`` begins from the checkpoint ``resume_from``.

    Checkpoints seen after that one leave the lineage, once the attempt has made a step. ``attempts`` are those
    before it.
    """
    worked = CheckpointLineage.of(rows, attempts).worked

    def returned(row: CheckpointRow) -> CheckpointRow:
        if row.left_by in worked:
            return row
        return replace(row, left_by=None)

    rows = tuple(map(returned, rows))
    if resume_from is None:
        return rows
    base = _at(rows, resume_from)

    def begun(row: CheckpointRow) -> CheckpointRow:
        if base is not None and row.place == base.place:
            return replace(row, base_of=number)
        is_later = base is None or row.is_later_than(base)
        if row.left_by is None and row.attempt < number and is_later:
            return replace(row, left_by=number)
        return row

    return tuple(map(begun, rows))


def attempt_ended(
    rows: AnyRows, attempts: Spans, number: int, kind: str | None = None, unsound: UnsoundLoss | None = None
) -> Rows:
    """The ledger when attempt ``number`` has ended.

    What may have been written since its loss was bad is struck off, and a checkpoint that it could
    not load. One from which it made no step becomes doubtful; one from which it did loses its doubt.

    Args:
        kind: of the incident that ended it; None without one.
        unsound: where its loss became bad, if it was in the end, whatever it ended by.
    """
    span = next((span for span in attempts if span.number == number), None)
    if span is None:
        return tuple(rows)

    def poisoned(row: CheckpointRow) -> CheckpointRow:
        is_judged = row.is_written and row.verdict != "struck" and row.attempt <= number
        if unsound is None or not is_judged:
            return row
        why = unsound.reason(row, number)
        if why is None:
            return row
        return replace(row, verdict="struck", why=why)

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
    if kind is None or not kind_of(kind).may_be_checkpoint or span.resumed_from is None:
        return rows
    return tuple(map(doubted, rows))


def rolled_back(rows: AnyRows, path: str, why: str) -> Rows:
    """The ledger with everything left that was seen after the checkpoint at ``path``."""
    base = _at(rows, path)
    if base is None:
        return tuple(rows)

    def left_behind(row: CheckpointRow) -> CheckpointRow:
        if row.is_later_than(base) and row.origin in ("run", "named"):
            return _mark_left(row, why)
        return row

    return tuple(map(left_behind, rows))


def chosen_by_person(rows: AnyRows, attempts: Spans, file: FoundCheckpoint, step: int | None, now: float) -> Rows:
    """The ledger when a person chose a checkpoint: later ones are left, or all others if it is not of this lineage.

    Args:
        step: the checkpoint's, if the ledger has no other.
        now: UTC unix seconds.
    """
    same = sorted((row for row in rows if row.content == file.content), key=lambda row: row.path != file.path)
    if same and CheckpointLineage.of(rows, attempts).exclusion_reason(same[0]) is None:
        return _chosen_of_lineage(rows, same[0], file)
    if same:
        step = same[0].step
    attempt = max((span.number for span in attempts), default=0)
    chosen = replace(
        new_row(file, attempt, now, step),
        place=max((row.place for row in rows), default=0) + 1,
        origin="named",
        is_settled=True,
        verdict="valid",
        why="was chosen by a person",
    )
    copies = (row for row in same if row.gone_at is None)
    by_path = {copy.path: replace(chosen, path=copy.path, stamp=copy.stamp) for copy in copies}
    by_path[chosen.path] = chosen
    ledger = list(by_path.values())
    for row in rows:
        row = _mark_left(row, f"was left when a person chose {PurePath(file.path).name}")
        if row.gone_at is None and row.path in by_path:
            row = replace(row, gone_at=now)
        ledger.append(row)
    return tuple(ledger)


def _chosen_of_lineage(rows: AnyRows, chosen: CheckpointRow, file: FoundCheckpoint) -> Rows:
    """The ledger when a person chose a checkpoint of the lineage, at the place of ``file``."""
    copies = {}
    others = []
    for row in rows:
        if row.place == chosen.place:
            copies[row.path] = replace(row, verdict="valid", why="", failed_starts=0)
        else:
            others.append(row)
    copies.setdefault(file.path, replace(chosen, path=file.path, stamp=file.stamp, verdict="valid", gone_at=None))
    return rolled_back((*others, *copies.values()), file.path, f"was left when a person chose {chosen.name}")


def _mark_left(row: CheckpointRow, why: str) -> CheckpointRow:
    if row.verdict in ("struck", "left"):
        return row
    return replace(row, verdict="left", why=why)


def _at(rows: AnyRows, path: str) -> CheckpointRow | None:
    """The newest entry at a path, one that is still there first."""
    at_path = (row for row in rows if row.path == path)
    return max(at_path, key=lambda row: (row.gone_at is None, row.place), default=None)
