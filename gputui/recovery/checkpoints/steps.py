"""The steps of checkpoints, from the metrics and from their names, and where a loss went wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from pathlib import PurePath

from gputui.recovery.checkpoints.ledger import AttemptSpan, Rows, UnsoundLoss
from gputui.runs.checkpoint_names import explicit_step, step_in_name
from gputui.store.checkpoints import CheckpointRow
from gputui.store.metrics.step_times import StepTimes

# A line without a time gets the time when it is read, at most this much later.
LINE_CLOCK_SECONDS = 1.0
# A line may be dated a little before the attempt's row was written.
BEFORE_BEGIN_SECONDS = 5.0


class CheckpointSteps:
    """The steps of a run's checkpoints. Every method raises sqlite3.Error."""

    def __init__(
        self, connection: sqlite3.Connection, run_id: str, attempts: Sequence[AttemptSpan], folder: PurePath
    ) -> None:
        self._times = StepTimes(connection, run_id)
        self._attempts = {span.number: span for span in attempts}
        self._folder = folder
        # Checkpoints of one scan ask for the same times.
        self._recorded = cache(self._newest_at)
        self._latest = cache(self._latest_at)

    def step_of(self, row: CheckpointRow) -> int | None:
        """The step at which its attempt wrote a checkpoint: of its name, if the attempt may have been there between the
        two scans, else the newest step in the metrics at the time of the file, if that can be true."""
        recorded = self._recorded(row.attempt, row.seen_at if row.saved_at is None else row.saved_at)
        if (named := self._named(row)) is not None:
            return named
        path = PurePath(row.path)
        bare = None if row.is_rewrite else step_in_name(path, self._folder)
        latest = self._latest(row.attempt, row.seen_at)
        if recorded is not None:
            # A bare number may count epochs: it is a step only where the metrics may have reached it.
            is_reached = bare is not None and explicit_step(path.name) is None and latest is not None
            return bare if is_reached and bare is not None and recorded <= bare <= (latest or 0) + 1 else recorded
        span = self._attempts.get(row.attempt)
        if explicit_step(path.name) is not None or span is None or span.last_step is None:
            return step_in_name(path, self._folder)
        return bare if bare is not None and latest is not None and bare <= latest + 1 else None

    def latest_of(self, row: CheckpointRow) -> int | None:
        """The latest step at which it may have been written; None if a single line leaves that open."""
        if (named := self._named(row)) is not None:
            return named
        is_bounded = self._times.latest_at(row.attempt, row.seen_at, self._lines_since(row.attempt)) is not None
        return self._latest(row.attempt, row.seen_at) if is_bounded else None

    def may_be_at(self, number: int, step: int, since: float, now: float) -> bool:
        """Whether an attempt may have been at a step between two times."""
        earliest, latest = self._recorded(number, since), self._latest(number, now)
        return latest is not None and (earliest is None or earliest <= step) and step <= latest + 1

    def has_stepped(self, number: int, since: float) -> bool:
        """Whether an attempt did a step after a time, allowing for the delay of lines."""
        newest = self._times.newest_line(number, float("inf"), self._lines_since(number))
        return newest is not None and newest[0] > since + LINE_CLOCK_SECONDS

    def trouble(self, rows: Rows, number: int, step: int | None) -> UnsoundLoss | None:
        """What the metrics tell of an attempt whose loss was no finite number in the end, whatever it ended by, or
        became bad at ``step``; None if it did not."""
        unsound = self._times.unsound_since(number)
        known = [each for each in (step, None if unsound is None else unsound[0]) if each is not None]
        if not known:
            return None
        first = min(known)
        if self._times.start_again(number):
            at = self._times.done_at(number, first) if unsound is None else unsound[1]
            return UnsoundLoss(first, None if at is None else at - LINE_CLOCK_SECONDS)
        own = self._times.last_sound(number, first)
        sound = {} if own is None and unsound is None else {number: -1 if own is None else own}
        for attempt in self._attempts if sound.get(number, 0) < 0 else ():
            if attempt != number and (last := self._times.last_sound(attempt)) is not None:
                sound[attempt] = last
        written = [row for row in rows if (row.is_written and row.attempt in sound) or row.attempt == number]
        latest: dict[int, int] = {}
        for row in written:
            # Of copies, the name that tells its step counts.
            if (last := self.latest_of(row)) is not None:
                latest[row.seen] = min(last, latest.get(row.seen, last))
        return UnsoundLoss(first, None, sound, latest)

    def _named(self, row: CheckpointRow) -> int | None:
        """The step in its name, as its lines count, if its attempt may have been there between the two scans. A name
        that is written again and again tells nothing."""
        named = explicit_step(row.name)
        if named is None or row.is_rewrite:
            return None
        earliest = self._recorded(row.attempt, row.unseen_at if row.saved_at is None else row.saved_at)
        latest = self._latest(row.attempt, row.seen_at)
        # A name may count completed steps where the metrics count from 0.
        if latest is None or named > latest + 1 or (earliest is not None and named < earliest):
            return None
        return max(earliest or 0, min(named, latest))

    def _newest_at(self, number: int, at: float) -> int | None:
        return self._times.newest_at(number, at, self._lines_since(number))

    def _latest_at(self, number: int, at: float) -> int | None:
        since = self._lines_since(number)
        late_line = self._recorded(number, at + LINE_CLOCK_SECONDS)
        between_lines = self._times.latest_at(number, at, since)
        return max((step for step in (late_line, between_lines) if step is not None), default=None)

    def _lines_since(self, number: int) -> float:
        return self._attempts[number].begun_at - BEFORE_BEGIN_SECONDS
