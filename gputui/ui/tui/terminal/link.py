"""The lag of the terminal, measured by its own answers.

Written frames may wait for seconds in the buffers of ssh. So a frame ends with a request for the cursor's position (DSR
6, ECMA-48 8.3.35), which terminals since the VT100 answer once they have drawn it. While an answer is overdue, no frame
is written; the next one carries the whole difference.

Until the first answer, no frame is held back, so that a terminal that never answers works. Times are monotonic seconds.
"""

from __future__ import annotations

QUESTION = "\x1b[6n"

HOLD_SECONDS = 0.25
"""Frames are held back if an answer takes longer than this plus twice the quickest one."""

LOST_SECONDS = 6.0
"""An answer that takes longer than this is taken for lost."""

QUESTIONS_WITHOUT_ANSWER = 3
"""After this many, the terminal is taken for one that does not answer."""

FORGET_SECONDS = 5.0
"""How long a measured lag is shown."""


class Line:
    """The line to one terminal."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._unanswered = 0
        self._has_answered = False
        self._quickest = float("inf")
        self._lag = 0.0
        self._lag_at = float("-inf")
        self._stuck_since: float | None = None

    def may_write(self, now: float) -> bool:
        """Return whether a frame would be drawn soon."""
        if self._asked_at is None or not self._has_answered:
            return True
        waited = now - self._asked_at
        if waited >= LOST_SECONDS:
            self._give_up(now)
            return True
        return waited < HOLD_SECONDS + 2 * min(self._quickest, LOST_SECONDS)

    def should_ask(self, now: float) -> bool:
        """Return whether the next frame should end with the question."""
        if self._asked_at is not None and now - self._asked_at >= LOST_SECONDS:
            self._give_up(now)
        return self._asked_at is None and (self._has_answered or self._unanswered < QUESTIONS_WITHOUT_ANSWER)

    def asked(self, now: float) -> None:
        """A frame with the question was written."""
        self._asked_at = now

    def answered(self, now: float) -> None:
        """The terminal has answered."""
        if self._asked_at is None:
            return
        self._has_answered = True
        self._unanswered = 0
        self._note(now - self._asked_at, now)
        self._quickest = min(self._quickest, now - self._asked_at)
        self._asked_at = None

    def taken(self, is_taken: bool, now: float) -> None:
        """The operating system has, or has not, taken the last frame."""
        if not is_taken:
            self._stuck_since = now if self._stuck_since is None else self._stuck_since
        elif self._stuck_since is not None:
            self._note(now - self._stuck_since, now)
            self._stuck_since = None

    def forget(self) -> None:
        """Expect no answer: another program that had the terminal may have received it."""
        self._asked_at = self._stuck_since = None

    def lag_seconds(self, now: float) -> float:
        """The lag of the last frame, so far if it is not drawn yet."""
        lag = self._lag if now - self._lag_at < FORGET_SECONDS else 0.0
        if self._asked_at is not None and self._has_answered:
            lag = max(lag, now - self._asked_at)
        if self._stuck_since is not None:
            lag = max(lag, now - self._stuck_since)
        return lag

    def _note(self, lag: float, now: float) -> None:
        self._lag, self._lag_at = lag, now

    def _give_up(self, now: float) -> None:
        if self._has_answered and self._asked_at is not None:
            self._note(now - self._asked_at, now)
        self._unanswered += 1
        self._asked_at = None
