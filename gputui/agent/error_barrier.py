"""An unexpected error in one run or one part of a turn must not end the agent of all the others."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import ActiveRuns, Trouble
from gputui.store.database import is_locked
from gputui.store.events import add_event

log = logging.getLogger(__name__)

T = TypeVar("T")

# A run that raised something unforeseen is left alone so long.
TROUBLE_SECONDS = 30.0
# A part of the loop's turn serves all runs: it is tried again sooner.
PART_SECONDS = 10.0

# A turn that takes longer is noticed by people: keys are answered late, and samples come in bursts.
LONG_TURN_SECONDS = 0.05
_LOGGED_SECONDS = 60.0

# Rows that cannot be as they are meant to be; every other error of the database concerns all.
_OF_ONE_ROW = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


@dataclass(slots=True)
class ErrorBarrier:
    """Isolates unexpected errors: the run, or the part of a turn, that met one is left alone for a while, then tried
    again."""

    context: AgentContext
    runs: ActiveRuns
    parts: dict[str, Trouble] = field(default_factory=dict)

    def is_resting(self, run_id: str) -> bool:
        """Whether the run is left alone for now."""
        run = self.runs.get(run_id)
        return run is not None and self.context.monotonic() < run.trouble.until

    def is_part_resting(self, name: str) -> bool:
        """Whether the part of the loop's turn is left alone for now."""
        return name in self.parts and self.context.monotonic() < self.parts[name].until

    @contextmanager
    def around(self, run_id: str) -> Iterator[None]:
        """Catch what is unforeseen in one run, and write one event while it stays the same. Raises sqlite3.Error where
        the database itself is in trouble."""
        with self._around(run_id, "cannot be looked after", TROUBLE_SECONDS, run_id):
            yield

    @contextmanager
    def around_part(self, name: str) -> Iterator[None]:
        """The same for a part of the loop's turn, which is named as people may read it."""
        with self._around(name, f"{name} failed in the agent", PART_SECONDS, None):
            yield

    @contextmanager
    def _around(self, key: str, what: str, rest_seconds: float, run_id: str | None) -> Iterator[None]:
        trouble = self.parts.setdefault(key, Trouble()) if run_id is None else self.runs.of(run_id).trouble
        try:
            yield
        except _OF_ONE_ROW as error:
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
    """The parts of a turn of the loop: each fails alone, and each is timed. ``longest_seconds`` and ``longest_part``
    are those of the longest turn of this agent; ``unwritable`` is why something could not be written in this turn, and
    ``is_one_resting`` that a part was left alone in it."""

    guard: ErrorBarrier
    unwritable: str | None = None
    is_one_resting: bool = False
    longest_seconds: float = 0.0
    longest_part: str = ""
    _took: dict[str, float] = field(default_factory=dict)
    _logged_at: float = 0.0
    _cpu_at: float = 0.0

    def do(self, name: str, act: Callable[[], T]) -> T | None:
        """What ``act`` returns; None if it failed, or rests after it did. An error of the database that may pass (a
        full disk) is kept in ``unwritable``. Raises sqlite3.Error where nothing can be written now (a lock held
        elsewhere), or ever (damage)."""
        if self.guard.is_part_resting(name):
            self.is_one_resting = True
            return None
        began = self.guard.context.monotonic()
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
        """A turn begins: nothing has failed in it yet, and nothing took time."""
        self.unwritable, self.is_one_resting = None, False
        self._cpu_at = time.thread_time()
        self._took.clear()

    def end_turn(self) -> None:
        """Remember the longest turn, and log those that were too long, one a minute at most."""
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
            # Where the processor worked for much less, it was the disk, or other processes.
            cpu = time.thread_time() - self._cpu_at
            words = "a turn took %.0f ms (%.0f ms of processor time), %s %.0f ms of it"
            log.info(words, total * 1e3, cpu * 1e3, name, self._took[name] * 1e3)


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that was left open by what failed in it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
