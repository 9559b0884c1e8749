"""The steps of a run's checkpoints, from the metrics and from their names."""

from __future__ import annotations

import math
import sqlite3
from pathlib import PurePath

from gputui.recovery.checkpoints.ledger import LINE_CLOCK_SECONDS, UnsoundLoss
from gputui.recovery.checkpoints.resumable import Rows, Spans
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.losses import failed_at, last_sound_step, unsound_since
from gputui.store.metrics.reached_steps import latest_step
from gputui.store.metrics.step_lines import ALL_RANKS, LineFilter, StepLine, StepLines, up_to_step

# A line may be dated a little before the attempt's row was written.
BEFORE_BEGIN_SECONDS = 5.0
# Files are dated by a clock that may be a few ticks of 10 ms late.
FILE_CLOCK_SECONDS = 0.05


class CheckpointSteps:
    """The steps of a run's checkpoints. Every method raises sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection, run_id: str, attempts: Spans, folder: PurePath) -> None:
        self._lines = StepLines(connection, run_id)
        self._attempts = {span.number: span for span in attempts}
        self._folder = folder

    def step_of(self, row: CheckpointRow) -> int | None:
        """The step at which its attempt wrote a checkpoint.

        It is that of the name, if the attempt may have been there between the two scans, else the newest step in
        the metrics at the time of the file, if that can be true.
        """
        if (step := self._step_in_name(row)) is not None:
            return step
        path = PurePath(row.path)
        is_explicit = explicit_step(path.name) is not None
        bare = None if row.is_rewrite else step_in_name(path, self._folder)
        latest = self._latest(row.attempt, row.seen_at)
        newest = self._newest_line(row.attempt, row.written_at)
        if newest is not None:
            # A bare number may count epochs: it is a step only where the metrics may be there.
            if bare is not None and not is_explicit and latest is not None and newest.step <= bare <= latest + 1:
                return bare
            return newest.step
        span = self._attempts.get(row.attempt)
        if is_explicit or span is None or span.last_step is None:
            return step_in_name(path, self._folder)
        if bare is not None and latest is not None and bare <= latest + 1:
            return bare
        return None

    def may_be_at(self, number: int, step: int, since: float, now: float) -> bool:
        """Return whether an attempt may have been at a step between two moments (UTC unix seconds)."""
        # It resumed somewhere: before its first line it was at no step that is known.
        first = self._lines.first(number)
        if first is not None:
            since = max(since, first.at)
        earliest = self._newest_line(number, since)
        latest = self._latest(number, now)
        return latest is not None and earliest is not None and earliest.step <= step <= latest + 1

    def has_stepped(self, number: int, since: float) -> bool:
        """Return whether an attempt did a step after a time, allowing for the delay of lines."""
        newest = self._newest_line(number)
        return newest is not None and newest.at > since + LINE_CLOCK_SECONDS

    def has_gone_on(self, row: CheckpointRow) -> bool:
        """Return whether the attempt that wrote a checkpoint did a step after it: by the time of the
        file, or by its number."""
        if self.has_stepped(row.attempt, row.written_at):
            return True
        newest = self._newest_line(row.attempt)
        number = step_in_name(PurePath(row.path), self._folder)
        is_step = number == row.step or self._step_in_name(row) is not None
        if newest is not None and number is not None and is_step and newest.step > number:
            return True
        if row.saved_at is None:
            return False
        newest = self._lines.newest(row.attempt, ALL_RANKS)
        return newest is not None and newest.states_time and newest.at > row.saved_at + FILE_CLOCK_SECONDS

    def unsound_loss(self, rows: Rows, number: int, step: int | None) -> UnsoundLoss | None:
        """Find the unsound loss of an attempt whose loss was no finite number in the end, or became bad at ``step``.

        Returns:
            None if it did not, or if no loss of the lineage was ever sound: then the loss does not tell sound
            checkpoints from others.
        """
        unsound = unsound_since(self._lines, number)
        if unsound is not None and (step is None or unsound.step <= step):
            step = unsound.step
            bad_at = unsound.at
        elif step is not None:
            failed = failed_at(self._lines, number, step)
            bad_at = self._time_up_to(number, step, math.inf) if failed is None else failed
        else:
            return None
        sound = self._sound_steps(number, step, bad_at)
        if all(last < 0 for last, _ in sound.values()):
            return None
        if self._lines.starts_again(number):
            return UnsoundLoss(step, sound)  # names count steps otherwise than the lines
        named_steps: dict[int, int] = {}
        for row in rows:
            if row.attempt in sound and (named_step := self._step_in_name(row)) is not None:
                # Of copies, the name that tells its step counts.
                named_steps[row.place] = min(named_step, named_steps.get(row.place, named_step))
        return UnsoundLoss(step, sound, named_steps)

    def _sound_steps(self, number: int, step: int | None, bad_at: float) -> dict[int, tuple[int, float]]:
        """See `UnsoundLoss.sound`: of an attempt and, if it never had a sound loss, of the others."""
        # Lines without a time come in blocks, all of which have the time of the bad one.
        line = self._newest_line(number, math.nextafter(bad_at, -math.inf))
        before_at = -math.inf if line is None else line.at
        last = last_sound_step(self._lines, number, step)
        if last is not None:
            return {number: (last, before_at)}
        sound = {number: (-1, before_at)}
        for earlier in self._attempts.keys() - {number}:
            last = last_sound_step(self._lines, earlier)
            if last is not None:
                sound[earlier] = last, self._time_up_to(earlier, last, -math.inf)
        return sound

    def _time_up_to(self, number: int, step: int, default: float) -> float:
        """The time of an attempt's newest line up to a step."""
        line = self._lines.newest(number, up_to_step(step))
        if line is None:
            return default
        return line.at

    def _step_in_name(self, row: CheckpointRow) -> int | None:
        """The step in its name, as its lines count, if its attempt may have been there between the
        two scans. A name that is written again and again tells nothing."""
        step = explicit_step(row.name)
        if step is None or row.is_rewrite:
            return None
        at = row.unseen_at if row.saved_at is None else row.saved_at
        newest = self._newest_line(row.attempt, at)
        latest = self._latest(row.attempt, row.seen_at)
        earliest = 0
        if newest is not None:
            earliest = newest.step
        # A name may count completed steps where the metrics count from 0.
        if latest is None or not earliest <= step <= latest + 1:
            return None
        return max(earliest, min(step, latest))

    def _latest(self, number: int, at: float) -> int | None:
        """The latest step at which an attempt may have been at a moment."""
        latest = latest_step(self._lines, number, at, self._lines_since(number))
        late_line = self._newest_line(number, at + LINE_CLOCK_SECONDS)
        if late_line is None:
            return latest
        if latest is None:
            return late_line.step
        return max(latest, late_line.step)

    def _newest_line(self, number: int, at: float = math.inf) -> StepLine | None:
        """The newest line of an attempt at a moment."""
        return self._lines.newest(number, LineFilter(times=(self._lines_since(number), at)))

    def _lines_since(self, number: int) -> float:
        return self._attempts[number].begun_at - BEFORE_BEGIN_SECONDS
