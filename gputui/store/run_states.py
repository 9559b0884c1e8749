"""The states of a run and the table of allowed transitions.

queued → starting → running → succeeded | failed | stopped
                       ↓  ↑ (through queued)
                    recovering            stopping → stopped
"""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """The state of a run. One that ``is_over`` changes only by a person's restart or resume.
    UNKNOWN stands for any other stored word."""

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
    def phrase(self) -> str:
        return predicate(self)

    @property
    def has_attempt(self) -> bool:
        """True if the run may have live processes."""
        return self in (RunState.STARTING, RunState.RUNNING, RunState.STOPPING, RunState.UNKNOWN)


def predicate(state: str) -> str:
    """The state of a run, study or trial behind its subject: ``is running``, ``has failed``."""
    verb = "has" if state in ("succeeded", "failed") else "is"
    return f"{verb} {state}"


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
    """The transition is not allowed, which is a defect of the caller."""


def check_move(origin: RunState, target: RunState) -> None:
    """Raise ForbiddenMoveError unless the table allows origin → target."""
    if target not in MOVES[origin]:
        raise ForbiddenMoveError(f"a run cannot go from {origin} to {target}")
