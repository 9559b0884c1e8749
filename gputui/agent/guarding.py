"""What nobody foresaw in one run must not end the agent of all the others."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gputui.runs import repository

log = logging.getLogger(__name__)

# A run that raised something unforeseen is left alone so long.
TROUBLE_SECONDS = 30.0

# Rows that cannot be as they are meant to be, of one run; every other error of the database concerns all.
_OF_ONE_RUN = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


@dataclass(slots=True)
class Guard:
    """Remembers which runs met something unforeseen. ``wall`` gives UTC unix seconds, ``clock`` monotonic ones."""

    connection: sqlite3.Connection
    wall: Callable[[], float]
    clock: Callable[[], float]
    until: dict[str, float] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)

    def is_resting(self, run_id: str) -> bool:
        """Whether the run is left alone for now."""
        return self.clock() < self.until.get(run_id, 0.0)

    @contextmanager
    def around(self, run_id: str) -> Iterator[None]:
        """Catch what is unforeseen, and say it, once while it stays the same. Raises sqlite3.Error where the database
        itself is in trouble."""
        try:
            yield
        except _OF_ONE_RUN as error:
            self._note(run_id, error)
        except sqlite3.Error:
            raise
        except Exception as error:
            self._note(run_id, error)
        else:
            self.told.pop(run_id, None)

    def _note(self, run_id: str, error: Exception) -> None:
        log.error("%s cannot be looked after", run_id, exc_info=error)
        self.until[run_id] = self.clock() + TROUBLE_SECONDS
        text = f"{error}" or type(error).__name__
        if self.told.get(run_id) == text:
            return
        repository.add_event(
            self.connection,
            f"cannot be looked after: {text}; trying again every {TROUBLE_SECONDS:.0f} s, see agent.log",
            now=self.wall(),
            severity="error",
            run_id=run_id,
        )
        self.told[run_id] = text
