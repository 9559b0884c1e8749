"""Candidates for a resume. Pure.

A lineage is the chain of attempts linked by the checkpoints that they resumed from; an attempt
without one begins a new lineage. Candidates are entries of the newest attempt's lineage that are not
struck off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from gputui.core.text import clean
from gputui.core.units import count, iso
from gputui.runs.checkpoint_names import explicit_step, is_step_named, step_words
from gputui.runs.stored_spec import known_spec
from gputui.store.attempts import Attempt
from gputui.store.checkpoints import CheckpointRow
from gputui.store.runs import Run

# A run without metrics that lived this long has finished its setup.
WORKED_SECONDS = 60.0

MOST_SHOWN = 5  # a sentence with more is not read


class AttemptSpan(Struct, frozen=True):
    """An attempt as the ledger sees it, with times in UTC unix seconds.

    Attributes:
        begun_at: when its row was created.
        ended_at: None while it lives.
        resumed_from: the path of a checkpoint; None if it began from the start.
        last_step: the newest step in its metrics; None if they have none.
        has_worked: it made a step, or lived long without metrics.
        gpu_count: attempts with as many GPUs have as many ranks.
        ended_well: its command ended with code 0.
    """

    number: int
    begun_at: float
    ended_at: float | None
    resumed_from: str | None
    last_step: int | None
    has_worked: bool
    gpu_count: int = 0
    ended_well: bool = False


Spans = Sequence[AttemptSpan]


def attempt_spans(attempts: Sequence[Attempt], *, names_metrics: bool, now: float) -> tuple[AttemptSpan, ...]:
    """The attempts of a run, oldest first.

    Args:
        names_metrics: the profile says where its metrics are.
        now: UTC unix seconds.
    """
    spans = []
    has_metrics = names_metrics or any(row.last_step is not None for row in attempts)
    for row in sorted(attempts, key=lambda row: row.number):
        ended_at = now if row.ended_at is None else row.ended_at
        is_long = not has_metrics and ended_at - row.began_at >= WORKED_SECONDS
        has_worked = row.last_step is not None or is_long
        span = AttemptSpan(
            row.number,
            begun_at=row.created_at,
            ended_at=row.ended_at,
            resumed_from=row.resumed_from,
            last_step=row.last_step,
            has_worked=has_worked,
            gpu_count=len(row.gpus),
            ended_well=row.exit_code == 0,
        )
        spans.append(span)
    return tuple(spans)


def spans_of(run: Run, attempts: Sequence[Attempt], now: float) -> tuple[AttemptSpan, ...]:
    """The same for a view, whose run has the specification as text."""
    spec = known_spec(run)
    return attempt_spans(attempts, names_metrics=spec is None or spec.names_metrics, now=now)


Rows = tuple[CheckpointRow, ...]
AnyRows = Sequence[CheckpointRow]


class CheckpointLineage(Struct, frozen=True):
    """The lineage of the newest attempt.

    Attributes:
        first_attempt: the attempt that began it without a checkpoint; 0 if none did.
        worked: the attempts that made a step or wrote a checkpoint.
        parts: a file that is cut or struck off, by attempt and name of its save.
    """

    first_attempt: int
    worked: frozenset[int]
    parts: Mapping[tuple[int, str], CheckpointRow]

    @classmethod
    def of(cls, rows: AnyRows, attempts: Spans) -> CheckpointLineage:
        begun = (span.number for span in reversed(attempts) if span.resumed_from is None)
        worked = {row.attempt for row in rows if row.is_written}
        worked |= {span.number for span in attempts if span.has_worked}
        bad = (row for row in rows if row.verdict in ("cut", "struck") and row.ranks)
        parts = {(row.attempt, row.name_of_save): row for row in bad}
        return cls(next(begun, 0), frozenset(worked), parts)

    def exclusion_reason(self, row: CheckpointRow) -> str | None:
        """The reason why a checkpoint is no candidate, to complete "the checkpoint …"; None if it
        is one."""
        is_out = row.verdict in ("cut", "struck", "left")
        if is_out or row.origin in ("foreign", "contested"):
            return row.why
        part = None
        if row.is_written:
            part = self.parts.get((row.attempt, row.name_of_save))
        if part is not None and part.path != row.path:
            return f"belongs to {part.name}, which {part.why}"
        return self.departure_reason(row)

    def departure_reason(self, row: CheckpointRow) -> str | None:
        """The reason why a checkpoint belongs to another lineage, as `exclusion_reason` puts it, or
        None."""
        if row.attempt < self.first_attempt:
            began = f"attempt {self.first_attempt} began from the start"
            return f"is of the training that was left when {began}"
        if row.left_by is not None and row.left_by in self.worked:
            return f"was left when attempt {row.left_by} went on from an earlier one"
        return None


def newest_first(rows: AnyRows) -> list[CheckpointRow]:
    """The rows of what is there, of copies the one that tells its step first."""
    present = (row for row in rows if row.gone_at is None)
    return sorted(present, key=lambda row: (-row.place, explicit_step(row.name) is None, row.path))


def newest_own(rows: AnyRows) -> CheckpointRow | None:
    """The newest that an attempt of this run wrote, and no other run may have; None if there is none."""
    return next((row for row in newest_first(rows) if row.is_written), None)


def own_words(rows: AnyRows) -> str:
    """``the newest last.pt (attempt 2)`` of those that the run wrote, or why none is known to be its own."""
    newest = newest_own(rows)
    if newest is not None:
        return f"the newest {newest.name} (attempt {newest.attempt})"
    contested = next((row for row in newest_first(rows) if row.origin == "contested"), None)
    if contested is not None:
        return f"whose cannot be told: {contested.name} {contested.why}"
    return "none of its own"


def candidates_by_age(rows: AnyRows, attempts: Spans) -> list[CheckpointRow]:
    """The files that may be resumed from, the one seen last first."""
    lineage = CheckpointLineage.of(rows, attempts)
    return [row for row in newest_first(rows) if lineage.exclusion_reason(row) is None]


def candidates(rows: AnyRows, attempts: Spans) -> list[CheckpointRow]:
    """The checkpoints that may be resumed from, best first; of the files that the ranks wrote in one save the last.

    The newest ones come first, then doubtful ones, which still lose less than a start from scratch.
    """
    one_per_save: dict[tuple[int, int, str], CheckpointRow] = {}
    for row in candidates_by_age(rows, attempts):
        save = (0, row.name_of_save) if row.ranks else (row.place, row.path)
        one_per_save.setdefault((row.attempt, *save), row)
    return sorted(one_per_save.values(), key=lambda row: row.failed_starts)


def refused(rows: AnyRows, attempts: Spans) -> list[tuple[CheckpointRow, str]]:
    """The checkpoints that are passed over and why, newest first, with doubtful and cut ones."""
    lineage = CheckpointLineage.of(rows, attempts)
    passed_over = []
    for row in newest_first(rows):
        weakness = None
        if row.verdict in ("doubtful", "invalid"):
            weakness = row.why
        if (why := lineage.exclusion_reason(row) or weakness) is not None:
            passed_over.append((row, why))
    return passed_over


def newest_uncertain(rows: AnyRows, attempts: Spans) -> CheckpointRow | None:
    """The newest contested or cut checkpoint that would otherwise be a candidate, or None."""
    lineage = CheckpointLineage.of(rows, attempts)
    of_lineage = (row for row in newest_first(rows) if lineage.departure_reason(row) is None)
    open_rows = (row for row in of_lineage if row.verdict not in ("struck", "left"))
    return next((row for row in open_rows if row.verdict == "cut" or row.origin == "contested"), None)


def lost_choice(rows: AnyRows, attempts: Spans) -> tuple[CheckpointRow, str] | None:
    """The checkpoint that a person chose for this lineage if it is gone or could not be loaded, and why.

    A start from scratch instead would overwrite earlier ones without consent.
    """
    lineage = CheckpointLineage.of(rows, attempts)
    path = None
    if attempts:
        path = attempts[-1].resumed_from
    contents = {row.path: row.content for row in rows if row.gone_at is None}
    chosen = (row for row in rows if row.origin == "named")
    for row in sorted(chosen, key=lambda row: row.place, reverse=True):
        if row.verdict == "struck" and row.path == path:
            return row, row.why
        if lineage.exclusion_reason(row) is None and row.content not in contents.values():
            if row.path in contents:
                return row, "was written over"
            return row, "is gone"
    return None


def checkpoints_sentence(rows: AnyRows, attempts: Spans) -> str:
    """Sentences on what could be resumed from, and what is passed over. ``rows`` are not empty."""
    usable = candidates(rows, attempts)
    text = "Checkpoints: none of this training can be resumed from."
    if usable:
        newest = usable[0]
        origin = f"attempt {newest.attempt}"
        if newest.step is not None:
            origin = f"{step_words(newest.name, newest.step)}, {origin}"
        text = f"Checkpoints: {count(len(usable))} of this training, the newest {newest.name} ({origin})."
    others = [f"{row.name} {why}" for row, why in refused(rows, attempts)]
    if len(others) > MOST_SHOWN:
        others[MOST_SHOWN:] = [f"and {count(len(others) - MOST_SHOWN)} more"]
    if others:
        text = f"{text} Passed over: {'; '.join(others)}."
    return clean(text)


def seen_checkpoints_sentence(rows: AnyRows) -> str:
    """The same of a run whose script is not told which checkpoint to load. ``rows`` are not empty."""
    present = newest_first(rows)
    if not present:
        return "Checkpoints: none is there any more."
    return clean(f"Checkpoints: {count(len(present))} seen, {own_words(rows)}; the script is given none.")


def checkpoints_shape(rows: AnyRows, attempts: Spans) -> list[dict[str, Any]]:
    """One item per checkpoint for ``gputui show --json``, newest first; ``refused`` is why it would
    not be resumed from, or null."""
    reasons = {row.path: why for row, why in refused(rows, attempts)}
    return [
        {
            "path": row.path,
            "step": row.step,
            "step_is_estimated": row.step is not None and not is_step_named(row.name),
            "attempt": row.writer,
            "origin": row.origin,
            "size_bytes": row.size_bytes,
            "seen_at": iso(row.seen_at),
            "modified_at": iso(row.modified_at),
            "verdict": row.verdict,
            "refused": reasons.get(row.path),
        }
        for row in newest_first(rows)
    ]
