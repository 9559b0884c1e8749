"""Choosing several runs: by what they have in common, and by what a command can act on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from gputui.runs.executors import chooses_start
from gputui.runs.spec import known_spec
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


def _unless_active(run: Run) -> str | None:
    return "ended already" if run.state.is_over else None


def _unless_over(run: Run) -> str | None:
    return None if run.state.is_over else "not ended yet"


def _unless_damaged(run: Run) -> str | None:
    return "a damaged specification" if known_spec(run) is None else None


def _unless_begun_again(run: Run) -> str | None:
    return _unless_over(run) or _unless_damaged(run)


def _unless_stopped_and_begun_again(run: Run) -> str | None:
    if not run.state.is_over and not run.state.has_attempt:
        return "about to start anyway"
    return _unless_damaged(run)


def _unless_told_where_to_go_on(run: Run) -> str | None:
    if (reason := _unless_begun_again(run)) is not None:
        return reason
    spec = known_spec(run)
    return "no way to resume in the profile" if spec is None or spec.checkpoints is None else None


def _unless_able_to_go_on(run: Run) -> str | None:
    if (reason := _unless_told_where_to_go_on(run)) is not None:
        return reason
    lacks_own = run.has_checkpoint is False and not chooses_start(known_spec(run))
    return "no checkpoint to resume from" if lacks_own or run.attempt == 0 else None


def _unless_unfinished(run: Run) -> str | None:
    """A resume continues what a run was launched for: a complete run has done that, and a trial no longer counts."""
    if run.state is RunState.SUCCEEDED:
        return "complete"
    if run.state.is_over and run.study_id is not None:
        return "trials that no longer count"
    return _unless_able_to_go_on(run)


REFUSALS: Mapping[str, Callable[[Run], str | None]] = {
    "stop": _unless_active,
    "rm": _unless_over,
    "restart": _unless_begun_again,
    "restart by name": _unless_stopped_and_begun_again,
    "resume": _unless_unfinished,
    "resume --force": _unless_able_to_go_on,
    "resume --from": _unless_told_where_to_go_on,
    "label": lambda _run: None,
}
"""Why a command cannot act on a run, as far as that is known before, in words about the run; None if it can."""


def resume_variant(*, names_checkpoint: bool, is_forced: bool) -> str:
    """The key of `REFUSALS` for a resume: a changed parameter forces one of a complete run, too."""
    if names_checkpoint:
        return "resume --from"
    return "resume --force" if is_forced else "resume"
