"""The life of a run: its states and the one table of allowed moves.

queued → starting → running → succeeded | failed | stopped
                       ↓  ↑ (through queued)
                    recovering            stopping → stopped
"""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """Where a run is in its life. A run that is ``active`` holds its GPUs; one that ``is_over`` never moves again
    but by a person's resume. UNKNOWN stands for any word in the store that this gputui does not know."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, _value: object) -> RunState:
        return cls.UNKNOWN

    @property
    def is_over(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED)

    @property
    def has_attempt(self) -> bool:
        """Processes of the run may exist."""
        return self in (RunState.STARTING, RunState.RUNNING, RunState.STOPPING, RunState.UNKNOWN)


_R = RunState
MOVES: dict[RunState, frozenset[RunState]] = {
    _R.QUEUED: frozenset({_R.STARTING, _R.STOPPED, _R.FAILED}),
    _R.STARTING: frozenset({_R.RUNNING, _R.RECOVERING, _R.STOPPING, _R.SUCCEEDED, _R.FAILED, _R.STOPPED}),
    _R.RUNNING: frozenset({_R.RECOVERING, _R.STOPPING, _R.SUCCEEDED, _R.FAILED, _R.STOPPED}),
    _R.RECOVERING: frozenset({_R.QUEUED, _R.STOPPED, _R.FAILED}),
    _R.STOPPING: frozenset({_R.STOPPED, _R.SUCCEEDED, _R.FAILED, _R.RECOVERING}),
    _R.SUCCEEDED: frozenset({_R.QUEUED}),
    _R.FAILED: frozenset({_R.QUEUED}),
    _R.STOPPED: frozenset({_R.QUEUED}),
    _R.UNKNOWN: frozenset({_R.STARTING, _R.RUNNING, _R.RECOVERING, _R.STOPPING, _R.SUCCEEDED, _R.FAILED, _R.STOPPED}),
}


class ForbiddenMoveError(ValueError):
    """The table of moves does not allow this one: a defect of the caller."""


def check_move(origin: RunState, target: RunState) -> None:
    """Raise ForbiddenMoveError unless the table allows origin → target."""
    if target not in MOVES[origin]:
        raise ForbiddenMoveError(f"a run cannot go from {origin} to {target}")
