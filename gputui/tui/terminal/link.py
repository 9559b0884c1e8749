"""How far the terminal is behind, asked of the terminal itself.

What was handed to the operating system may wait for seconds in the buffers of ssh. So a frame ends with the question
where the cursor is (DSR 6, ECMA-48 8.3.35), which terminals since the VT100 answer when they have drawn it. While an
answer is out for long, no frame is written: the next one carries the difference that is left then.

Nothing here waits for a terminal that never answers: until the first answer no frame is held back. All times are
monotonic seconds.
"""

from __future__ import annotations

QUESTION = "\x1b[6n"

HOLD_SECONDS = 0.25
"""An answer may be late by so much, and by twice the quickest one, before frames are held back."""

LOST_SECONDS = 6.0
"""An answer that is later than this is not waited for any longer: it was lost."""

QUESTIONS_WITHOUT_ANSWER = 3
"""After so many the terminal is taken for one that does not answer."""

FORGET_SECONDS = 5.0
"""For so long a lag is shown after it was measured."""


class Line:
    """One line to one terminal."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._unanswered = 0
        self._has_answered = False
        self._quickest = float("inf")
        self._lag = 0.0
        self._lag_at = float("-inf")
        self._stuck_since: float | None = None

    def may_write(self, now: float) -> bool:
        """Whether a frame would be drawn soon."""
        if self._asked_at is None or not self._has_answered:
            return True
        waited = now - self._asked_at
        if waited >= LOST_SECONDS:
            self._give_up(now)
            return True
        return waited < HOLD_SECONDS + 2 * min(self._quickest, LOST_SECONDS)

    def should_ask(self, now: float) -> bool:
        """Whether the next frame should end with the question."""
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

    def stuck(self, now: float) -> None:
        """The operating system has not taken the last frame yet."""
        if self._stuck_since is None:
            self._stuck_since = now

    def flowing(self, now: float) -> None:
        """It has."""
        if self._stuck_since is not None:
            self._note(now - self._stuck_since, now)
            self._stuck_since = None

    def forget(self) -> None:
        """Somebody else had the terminal: an answer may have gone to them."""
        self._asked_at = self._stuck_since = None

    def lag_seconds(self, now: float) -> float:
        """How late what was written last was drawn, or is by now."""
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
