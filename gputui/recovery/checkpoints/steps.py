"""The steps of a run's checkpoints, from the metrics and from their names."""

from __future__ import annotations

import math
import sqlite3
from pathlib import PurePath

from gputui.recovery.checkpoints.attempt_spans import Spans
from gputui.recovery.checkpoints.ledger import LINE_CLOCK_SECONDS, UnsoundLoss
from gputui.recovery.checkpoints.resumable import Rows
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.step_times import StepTimes

# A line may be dated a little before the attempt's row was written.
BEFORE_BEGIN_SECONDS = 5.0
# Files are dated by a clock that may be a few ticks of 10 ms late.
FILE_CLOCK_SECONDS = 0.05


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
            if is_step:
                return bare
            return recorded
        span = self._attempts.get(row.attempt)
        if is_explicit or span is None or span.last_step is None:
            return step_in_name(path, self._folder)
        if bare is not None and latest is not None and bare <= latest + 1:
            return bare
        return None

    def may_be_at(self, number: int, step: int, since: float, now: float) -> bool:
        # It resumed somewhere: before its first line it was at no step that is known.
        first_at = self._times.first_at(number)
        earliest = self._recorded(number, since if first_at is None else max(since, first_at))
        latest = self._latest(number, now)
        return latest is not None and earliest is not None and earliest <= step <= latest + 1

    def has_stepped(self, number: int, since: float) -> bool:
        """Return whether an attempt did a step after a time, allowing for the delay of lines."""
        newest = self._times.newest_line(number, math.inf, self._lines_since(number))
        return newest is not None and newest[0] > since + LINE_CLOCK_SECONDS

    def has_gone_on(self, row: CheckpointRow) -> bool:
        """Return whether the attempt that wrote a checkpoint did a step after it: by the time of the
        file, or by its number."""
        if self.has_stepped(row.attempt, row.seen_at if row.saved_at is None else row.saved_at):
            return True
        newest = self._times.newest_line(row.attempt, math.inf, self._lines_since(row.attempt))
        number = step_in_name(PurePath(row.path), self._folder)
        is_step = number == row.step or self._named(row) is not None
        if newest is not None and number is not None and is_step and newest[1] > number:
            return True
        stated_at = self._times.stamped_at(row.attempt)
        return stated_at is not None and row.saved_at is not None and stated_at > row.saved_at + FILE_CLOCK_SECONDS

    def unsound_loss(self, rows: Rows, number: int, step: int | None) -> UnsoundLoss | None:
        """Find the unsound loss of an attempt whose loss was no finite number in the end, whatever
        it ended by, or became bad at ``step``; None if it did not, or if no loss of the lineage was
        ever sound: then it does not tell sound checkpoints from others."""
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
        if all(last < 0 for last, _ in sound.values()):
            return None
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
