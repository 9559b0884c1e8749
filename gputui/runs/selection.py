"""Choosing several runs: by what they have in common, and by what a command can act on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

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


def _is_over(run: Run) -> bool:
    return run.state.is_over


def _is_active(run: Run) -> bool:
    return not run.state.is_over


def _is_unfinished(run: Run) -> bool:
    """Return whether a resume continues what a run was launched for: a complete run has done that, and a trial no
    longer counts."""
    return run.state in (RunState.FAILED, RunState.STOPPED) and run.study_id is None


def _is_any(_run: Run) -> bool:
    return True


ACTS_ON: Mapping[str, Callable[[Run], bool]] = {
    "stop": _is_active,
    "rm": _is_over,
    "restart": _is_over,
    "resume": _is_unfinished,
    "resume --force": _is_over,
    "label": _is_any,
}
"""Which runs a command acts on when it is given several by what they have in common."""
