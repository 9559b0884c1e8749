"""Choosing several runs: by what they have in common, and by what a command can act on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from gputui.runs.executors import chooses_start
from gputui.runs.stored_spec import known_spec
from gputui.store.run_states import RunState
from gputui.store.runs import Run


class RunFilter(Struct, frozen=True):
    """What chosen runs have: one of the states, profiles and studies, all of the tags, and a least age."""

    states: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    studies: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    older_seconds: float | None = None

    def __bool__(self) -> bool:
        return self != RunFilter()

    def matches(self, run: Run, now: float) -> bool:
        """Return whether a run has all of it; ``now`` is UTC unix seconds."""
        choices = ((self.states, run.state), (self.profiles, run.profile), (self.studies, run.study_id))
        is_chosen = all(not names or value in names for names, value in choices)
        is_tagged = all(tag.removeprefix("#") in run.tags for tag in self.tags)
        is_old = self.older_seconds is None or age_seconds(run, now) > self.older_seconds
        return is_chosen and is_tagged and is_old


def age_seconds(run: Run, now: float) -> float:
    """Seconds since a run ended; of an active one since it started, or was launched."""
    return max(0.0, now - (run.ended_at or run.started_at or run.created_at))


def _cannot_stop(run: Run) -> str | None:
    if run.state.is_over:
        return "ended already"
    return None


def _cannot_remove(run: Run) -> str | None:
    if run.state.is_over:
        return None
    return "not ended yet"


def _cannot_read(run: Run) -> str | None:
    if known_spec(run) is None:
        return "a damaged specification"
    return None


def _cannot_restart(run: Run) -> str | None:
    return _cannot_remove(run) or _cannot_read(run)


def _cannot_restart_by_name(run: Run) -> str | None:
    """Return why a run cannot be stopped, if it is active, and begun anew."""
    if not run.state.is_over and not run.state.has_attempt:
        return run.waiting_for or "about to start"
    return _cannot_read(run)


def _cannot_resume_from_path(run: Run) -> str | None:
    spec = known_spec(run)
    if spec is not None and spec.checkpoints is None:
        return _cannot_remove(run) or "no known way to load a checkpoint"
    return _cannot_restart(run)


def _cannot_resume_by_force(run: Run) -> str | None:
    reason = _cannot_resume_from_path(run)
    if reason is not None:
        return reason
    lacks_checkpoint = run.has_checkpoint is False and not chooses_start(known_spec(run))
    if lacks_checkpoint or run.attempt == 0:
        return "no checkpoint to resume from"
    return None


def _cannot_resume(run: Run) -> str | None:
    """Return why a resume does not continue what a run was launched for."""
    if run.state is RunState.SUCCEEDED:
        return "complete"
    if run.state.is_over and run.study_id is not None:
        return "trials that no longer count"
    return _cannot_resume_by_force(run)


REFUSALS: Mapping[str, Callable[[Run], str | None]] = {
    "stop": _cannot_stop,
    "rm": _cannot_remove,
    "restart": _cannot_restart,
    "restart by name": _cannot_restart_by_name,
    "resume": _cannot_resume,
    "resume --force": _cannot_resume_by_force,
    "resume --from": _cannot_resume_from_path,
    "label": lambda _run: None,
}
"""Why a command cannot act on a run, as far as that is known before, in words about the run; None if it can."""


def resume_variant(*, names_checkpoint: bool, is_forced: bool) -> str:
    """The key of `REFUSALS` for a resume: a changed parameter forces one of a complete run, too."""
    if names_checkpoint:
        return "resume --from"
    if is_forced:
        return "resume --force"
    return "resume"
