"""What a run's stored metrics tell of the steps of its attempts, and of a NaN loss or a loss spike in them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from gputui.recovery.checkpoint_contents import steps_inside
from gputui.recovery.ledger_inputs import (
    FILE_CLOCK_SECONDS,
    LINE_CLOCK_SECONDS,
    AttemptSpan,
    CheckpointSearch,
    NumericTrouble,
    Rows,
)
from gputui.runs.checkpoint_names import explicit_step
from gputui.store.checkpoints import CheckpointRow
from gputui.store.database import open_reader
from gputui.store.metrics.step_times import StepTimes

# A line may be dated a little before the attempt's row was written.
BEFORE_BEGIN_SECONDS = 5.0


class AttemptSteps(Struct, frozen=True):
    """The steps of a run's attempts at times in UTC unix seconds. An attempt is given by its number."""

    times: StepTimes
    attempts: Sequence[AttemptSpan]

    def recorded_step(self, number: int, at: float) -> int | None:
        """The newest step that the attempt had recorded; None if it had none."""
        return self.times.newest_at(number, at, self._lines_since(number))

    def latest_step(self, number: int, at: float) -> int | None:
        """The latest step that the attempt may have reached, between two of its lines; None if unknown."""
        return self.times.latest_at(number, at, self._lines_since(number))

    def has_stepped(self, number: int, since: float, until: float) -> bool:
        """Whether the attempt did a step between two times, allowing for the delay of lines."""
        newest = self.times.newest_line(number, until, self._lines_since(number))
        return newest is not None and newest[0] > since + LINE_CLOCK_SECONDS

    def _lines_since(self, number: int) -> float:
        return next(span.begun_at for span in self.attempts if span.number == number) - BEFORE_BEGIN_SECONDS


def trouble_of(search: CheckpointSearch, rows: Rows, number: int, step: int | None) -> NumericTrouble:
    """What the metrics tell of an attempt whose loss became NaN or jumped at ``step``, and of the times of the
    checkpoints in ``rows``. Raises StoreError or sqlite3.Error."""
    last_step = next((span.last_step for span in search.attempts if span.number == number), None)
    bad_step = step if step is not None else last_step
    if bad_step is None:
        return NumericTrouble()
    with closing(open_reader(search.database)) as connection:
        steps = AttemptSteps(StepTimes(connection, search.run_id), search.attempts)
        if steps.times.start_again(number):
            at = steps.times.done_at(number, bad_step)
            return NumericTrouble(began_at=None if at is None else at - LINE_CLOCK_SECONDS)
        sound = None if step is None else _last_sound_step(steps, number, step)
        first_suspect = bad_step if sound is None else sound + 1
        latest = ((row.path, _latest_step(row, first_suspect, steps)) for row in rows if row.is_written)
        return NumericTrouble(
            sound_until=sound,
            latest={path: step for path, step in latest if step is not None},
            began_sound=step is not None and steps.times.last_sound(number, step) is not None,
        )


def unsound_since(search: CheckpointSearch, number: int) -> int | None:
    """The step since which an attempt's loss was no finite number when it ended, such as when a person stopped it; None
    if it was one. Raises StoreError or sqlite3.Error."""
    with closing(open_reader(search.database)) as connection:
        return StepTimes(connection, search.run_id).unsound_since(number)


def _last_sound_step(steps: AttemptSteps, number: int, bad_step: int) -> int | None:
    """The last step before ``bad_step`` whose loss was a finite number, in this course; -1 if there is none. None if no
    line has a loss."""
    for span in reversed(steps.attempts):
        if span.number > number:
            continue
        if (sound := steps.times.last_sound(span.number, bad_step)) is not None:
            return sound
        if span.resumed_from is None:
            break
    return -1 if steps.times.is_unsound(number, bad_step) else None


def _latest_step(row: CheckpointRow, first_suspect: int, steps: AttemptSteps) -> int | None:
    """The latest step at which a checkpoint may have been written; exact only where the times allow steps on both sides
    of ``first_suspect``. There its name or its content decides."""
    if all(span.number != row.attempt for span in steps.attempts):
        return None
    latest = steps.latest_step(row.attempt, row.modified_at + FILE_CLOCK_SECONDS)
    earliest = row.step or 0
    if latest is None or latest < first_suspect or earliest >= first_suspect:
        return latest
    named = explicit_step(row.name)
    saved_steps = steps_inside(Path(row.path)) if named is None else (named,)
    # A name may count completed steps where the metrics count from 0.
    return max((min(step, latest) for step in saved_steps if earliest <= step <= latest + 1), default=latest)
