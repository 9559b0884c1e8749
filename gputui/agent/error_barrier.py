"""The barrier that keeps an unexpected error to one run or one step of a turn."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from gputui.agent.context import AgentContext
from gputui.store.database import is_locked

T = TypeVar("T")
log = logging.getLogger(__name__)

# How long a run is skipped after an unexpected error.
RUN_REST_SECONDS = 30.0
# A step of the loop's turn serves all runs, so it is tried again sooner.
STEP_REST_SECONDS = 10.0

# People notice a longer turn: keys are answered late, and samples arrive in bursts.
LONG_TURN_SECONDS = 0.05
_LOGGED_SECONDS = 60.0  # a slow disk makes each turn long, and would fill the log

# Errors of single rows. Any other sqlite3.Error concerns the whole database.
_ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


@dataclass(slots=True)
class RecentError:
    """An unexpected error of a run or step, which is skipped until ``rests_until`` (monotonic).

    ``reported`` is the text of its event, None after a success.
    """

    rests_until: float = float("-inf")
    reported: str | None = None


@dataclass(slots=True)
class ErrorBarrier:
    """Runs and times the steps of a turn. Each fails alone, and so does each run: it is skipped for
    a while after an unexpected error, then tried again.

    Attributes:
        unwritable: why a write failed in the current turn.
        has_skipped_step: a step was skipped in the current turn.
        longest_seconds: the longest turn since the agent began.
        longest_step: the step that took most of the longest turn.
        errors: the newest error of a step or run, by its name and whether it is a run's.
        _took: the seconds of this turn by step.
        _log_from: a long turn that is not the longest is logged from then on (monotonic).
        _cpu_at: this thread's CPU seconds when the turn began.
    """

    context: AgentContext
    unwritable: str | None = None
    has_skipped_step: bool = False
    longest_seconds: float = 0.0
    longest_step: str = ""
    errors: dict[tuple[str, bool], RecentError] = field(default_factory=lambda: defaultdict(RecentError))
    _took: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _log_from: float = 0.0
    _cpu_at: float = 0.0

    def is_resting(self, name: str, *, is_run: bool = True) -> bool:
        return self.context.monotonic() < self.errors[name, is_run].rests_until

    @contextmanager
    def guard(self, name: str, *, is_run: bool = True) -> Iterator[None]:
        """Catch unexpected errors in the handling of a run, or in a step of the turn.

        Repetitions of the same error write one event. Raises sqlite3.Error if the database itself fails.
        """
        recent = self.errors[name, is_run]
        try:
            yield
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, _ROW_ERRORS):
                raise
            run_id = None
            what = f"{name} failed in the agent"
            seconds = STEP_REST_SECONDS
            if is_run:
                run_id = name
                what = "cannot be looked after"
                seconds = RUN_REST_SECONDS
            log.error("%s: %s", name, what, exc_info=error)
            roll_back(self.context.connection)
            recent.rests_until = self.context.monotonic() + seconds
            text = f"{error}" or type(error).__name__
            if recent.reported != text:
                again = f"{what}: {text}; trying again every {seconds:.0f} s, see agent.log"
                self.context.note("agent_error", again, run_id, key=name, severity="error")
                recent.reported = text
        else:
            recent.reported = None

    def run(self, name: str, act: Callable[[], T]) -> T | None:
        """Return the result of ``act``; None if it fails, or is skipped after a failure.

        A passing error of the database (a full disk) is stored in ``unwritable``. Raises sqlite3.Error if the
        database is locked or damaged.
        """
        if self.is_resting(name, is_run=False):
            self.has_skipped_step = True
            return None
        began = self.context.monotonic()
        try:
            with self.guard(name, is_run=False):
                return act()
        except sqlite3.OperationalError as error:
            roll_back(self.context.connection)
            if is_locked(error):
                raise
            self.unwritable = str(error)
        finally:
            self._took[name] += self.context.monotonic() - began
        return None

    def begin_turn(self) -> None:
        """Reset the state of the turn."""
        self.unwritable = None
        self.has_skipped_step = False
        self._cpu_at = time.thread_time()
        self._took.clear()

    def end_turn(self) -> None:
        """Keep the longest turn, and log turns that took too long, at most one a minute."""
        total = sum(self._took.values())
        is_longest = total > self.longest_seconds
        now = self.context.monotonic()
        name = max(self._took, key=self._took.__getitem__, default="")
        if is_longest:
            self.longest_seconds = total
            self.longest_step = name
        if total > LONG_TURN_SECONDS and (is_longest or now >= self._log_from):
            self._log_from = now + _LOGGED_SECONDS
            # Much less processor time than wall time points to the disk or to other processes.
            cpu = time.thread_time() - self._cpu_at
            line = "a turn took %.0f ms (%.0f ms of processor time), %s %.0f ms of it"
            log.info(line, total * 1e3, cpu * 1e3, name, self._took[name] * 1e3)


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that a failed operation left open."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
