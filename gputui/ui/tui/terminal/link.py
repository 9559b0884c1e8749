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


class TerminalLink:
    """The link to one terminal."""

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

    def note_question(self, now: float) -> None:
        """Note that a frame with the question was written."""
        self._asked_at = now

    def note_answer(self, now: float) -> None:
        """Note that the terminal has answered."""
        if self._asked_at is None:
            return
        self._has_answered = True
        self._unanswered = 0
        self._note_lag(now - self._asked_at, now)
        self._quickest = min(self._quickest, now - self._asked_at)
        self._asked_at = None

    def note_frame(self, is_taken: bool, now: float) -> None:
        """Note whether the operating system has taken the last frame."""
        if is_taken and self._stuck_since is not None:
            self._note_lag(now - self._stuck_since, now)
            self._stuck_since = None
        elif not is_taken and self._stuck_since is None:
            self._stuck_since = now

    def forget(self) -> None:
        """Expect no answer: another program that had the terminal may have received it."""
        self._asked_at = self._stuck_since = None

    def lag_seconds(self, now: float) -> float:
        """The lag of the last frame, so far if it is not drawn yet."""
        lag = 0.0
        if now - self._lag_at < FORGET_SECONDS:
            lag = self._lag
        if self._asked_at is not None and self._has_answered:
            lag = max(lag, now - self._asked_at)
        if self._stuck_since is not None:
            lag = max(lag, now - self._stuck_since)
        return lag

    def _note_lag(self, lag: float, now: float) -> None:
        self._lag = lag
        self._lag_at = now

    def _give_up(self, now: float) -> None:
        if self._has_answered and self._asked_at is not None:
            self._note_lag(now - self._asked_at, now)
        self._unanswered += 1
        self._asked_at = None
