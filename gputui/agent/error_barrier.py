"""Isolation of unexpected errors: one run, or one part of a turn, must not take down the agent."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import ActiveRuns, Trouble
from gputui.store.database import is_locked
from gputui.store.events import add_event

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long a run is skipped after an unexpected error.
TROUBLE_SECONDS = 30.0
# A part of the loop's turn serves all runs, so it is tried again sooner.
PART_SECONDS = 10.0

# People notice a longer turn: keys are answered late, and samples arrive in bursts.
LONG_TURN_SECONDS = 0.05
_LOGGED_SECONDS = 60.0

# Errors of single rows. Any other sqlite3.Error concerns the whole database.
_ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


@dataclass(slots=True)
class ErrorBarrier:
    """Skips a run, or a part of a turn, for a while after an unexpected error in it, then tries again."""

    context: AgentContext
    runs: ActiveRuns
    parts: dict[str, Trouble] = field(default_factory=dict)

    def is_resting(self, run_id: str) -> bool:
        """Whether the run is skipped for now."""
        run = self.runs.get(run_id)
        return run is not None and self.context.monotonic() < run.trouble.until

    def around(self, run_id: str) -> AbstractContextManager[None]:
        """Catch unexpected errors in the handling of one run. Repetitions of the same error write one event. Raises
        sqlite3.Error if the database itself fails."""
        return self._around(run_id, "cannot be looked after", TROUBLE_SECONDS, run_id)

    def around_part(self, name: str) -> AbstractContextManager[None]:
        """The same for a part of the loop's turn. Users see ``name``."""
        return self._around(name, f"{name} failed in the agent", PART_SECONDS, None)

    @contextmanager
    def _around(self, key: str, what: str, rest_seconds: float, run_id: str | None) -> Iterator[None]:
        trouble = self.parts.setdefault(key, Trouble()) if run_id is None else self.runs.of(run_id).trouble
        try:
            yield
        except _ROW_ERRORS as error:
            self._note(trouble, key, what, rest_seconds, run_id, error)
        except sqlite3.Error:
            raise
        except Exception as error:
            self._note(trouble, key, what, rest_seconds, run_id, error)
        else:
            trouble.reported = None

    def _note(
        self, trouble: Trouble, key: str, what: str, rest_seconds: float, run_id: str | None, error: Exception
    ) -> None:
        log.error("%s: %s", key, what, exc_info=error)
        roll_back(self.context.connection)
        trouble.until = self.context.monotonic() + rest_seconds
        text = f"{error}" or type(error).__name__
        if trouble.reported == text:
            return
        add_event(
            self.context.connection,
            "agent_error",
            f"{what}: {text}; trying again every {rest_seconds:.0f} s, see agent.log",
            now=self.context.now(),
            key=key,
            severity="error",
            run_id=run_id,
        )
        trouble.reported = text


@dataclass(slots=True)
class Parts:
    """Runs and times the parts of a turn; each fails alone. ``longest_seconds`` and ``longest_part`` describe this
    agent's longest turn. Of the current turn, ``unwritable`` is why a write failed, and ``is_one_resting`` says whether
    a part was skipped."""

    guard: ErrorBarrier
    unwritable: str | None = None
    is_one_resting: bool = False
    longest_seconds: float = 0.0
    longest_part: str = ""
    _took: dict[str, float] = field(default_factory=dict)
    _logged_at: float = 0.0
    _cpu_at: float = 0.0

    def do(self, name: str, act: Callable[[], T]) -> T | None:
        """Return the result of ``act``; None if it fails, or is skipped after a failure. A passing error of the
        database (a full disk) is stored in ``unwritable``. Raises sqlite3.Error if the database is locked or
        damaged."""
        began = self.guard.context.monotonic()
        trouble = self.guard.parts.get(name)
        if trouble is not None and began < trouble.until:
            self.is_one_resting = True
            return None
        try:
            with self.guard.around_part(name):
                return act()
        except sqlite3.OperationalError as error:
            roll_back(self.guard.context.connection)
            if is_locked(error):
                raise
            self.unwritable = str(error)
        finally:
            self._took[name] = self._took.get(name, 0.0) + self.guard.context.monotonic() - began
        return None

    def begin_turn(self) -> None:
        """Reset the state of the turn."""
        self.unwritable, self.is_one_resting = None, False
        self._cpu_at = time.thread_time()
        self._took.clear()

    def end_turn(self) -> None:
        """Keep the longest turn, and log turns that took too long, at most one a minute."""
        total = sum(self._took.values())
        if total <= LONG_TURN_SECONDS and total <= self.longest_seconds:
            return
        name = max(self._took, key=lambda part: self._took[part])
        is_longest = total > self.longest_seconds
        if is_longest:
            self.longest_seconds, self.longest_part = total, name
        now = self.guard.context.monotonic()
        if total > LONG_TURN_SECONDS and (is_longest or now >= self._logged_at):
            self._logged_at = now + _LOGGED_SECONDS
            # Much less processor time than wall time points to the disk or to other processes.
            cpu = time.thread_time() - self._cpu_at
            words = "a turn took %.0f ms (%.0f ms of processor time), %s %.0f ms of it"
            log.info(words, total * 1e3, cpu * 1e3, name, self._took[name] * 1e3)


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that a failed operation left open."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
