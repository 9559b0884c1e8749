"""Subjects of `gputui policy`: a built-in policy, a profile, or an existing run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from gputui.agent.lifecycle.checkpoint_survey import search_of
from gputui.core.redaction import redact_params
from gputui.core.yaml_forms.problems import did_you_mean
from gputui.profiles.loading import ProfileNotFoundError
from gputui.profiles.loading import find as find_profile
from gputui.recovery import policy_simulation
from gputui.recovery.checkpoints.search import CheckpointChoice, choose, surveyed
from gputui.recovery.effects import Result
from gputui.recovery.history import past_decisions, progress_of
from gputui.recovery.policies import POLICIES, Policy, PolicyAction, PolicyError, policy_from
from gputui.recovery.policy_simulation import Situation, actions_in
from gputui.runs.command import checkpoint_directory
from gputui.runs.executors import Executors
from gputui.runs.spec import RunSpec, Scalar, SpecError, spec_of
from gputui.store.attempts import read_attempts
from gputui.store.database import StoreError, open_reader
from gputui.store.events import has_event
from gputui.store.run_history import read_decisions, read_incidents, read_transitions
from gputui.store.runs import RunLookupError, find_run, get_run
from gputui.ui.cli import launch_spec
from gputui.ui.cli.context import EXIT_REFUSED, EXIT_USAGE, Session, fail


class PolicySubject(Struct, frozen=True):
    """A policy, and the run that it applies to. ``profile`` or ``run`` is the name that was given."""

    policy: Policy
    situation: Situation
    profile: str | None = None
    run: str | None = None

    @property
    def is_example(self) -> bool:
        return self.profile is None and self.run is None

    @property
    def named(self) -> str:
        if self.run is not None:
            return f"the run {self.run}"
        return "an example run with every usual parameter" if self.profile is None else f"a new run of {self.profile}"

    def shown(self, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Parameters without secrets."""
        return redact_params(params)


def example() -> PolicySubject:
    return PolicySubject(POLICIES["standard"], policy_simulation.fresh(policy_simulation.EXAMPLE))


def ready(name: str) -> Policy:
    """The built-in policy of this name; ends the command if there is none."""
    if name not in POLICIES:
        hint = did_you_mean(name, POLICIES) or f"known are {', '.join(POLICIES)}"
        fail(f"unknown policy {name!r}; {hint}", EXIT_USAGE)
    return POLICIES[name]


def find(session: Session, what: str) -> PolicySubject:
    """A built-in policy by name, else a profile, else a run; ends the command if it is none of them."""
    if what in POLICIES:
        return PolicySubject(POLICIES[what], policy_simulation.fresh(policy_simulation.EXAMPLE))
    try:
        find_profile(what, session.workspace, Path.cwd())
    except ProfileNotFoundError:
        if _is_run(session, what):
            return of_run(session, what)
        hint = did_you_mean(what, POLICIES) or f"built-in policies are {', '.join(POLICIES)}"
        fail(f"no policy, profile or run {what!r}; {hint}, gputui profiles and gputui ps list the others", EXIT_USAGE)
    return of_profile(session, what)


def of_profile(session: Session, wanted: str) -> PolicySubject:
    """A new run of a profile; ends the command with one line per problem."""
    spec = launch_spec.resolve_spec(
        launch_spec.load_profile(session, wanted), (), None, launch_spec.gpu_situation(session)
    )  # fmt: skip
    return PolicySubject(_policy(spec, spec.name), policy_simulation.fresh(spec), profile=spec.name)


def of_run(session: Session, wanted: str) -> PolicySubject:
    """An existing run: its parameters, earlier decisions and valid checkpoints."""
    with closing(session.reader()) as connection:
        view = session.find_run(connection, wanted)
        attempts = read_attempts(connection, view.run_id)
        incidents = read_incidents(connection, view.run_id)
        decisions = read_decisions(connection, view.run_id)
        transitions = read_transitions(connection, view.run_id)
        record = get_run(connection, view.run_id)
        steps_start_again = has_event(connection, "steps_restarted", run_id=view.run_id)
        search = (
            None
            if record is None
            else search_of(connection, session.workspace, record, time.time(), executors=Executors())
        )
    try:
        spec = spec_of(view)
    except SpecError as error:
        fail(f"{view.run_id}: its stored specification cannot be read ({error})", EXIT_REFUSED)
    policy = _policy(spec, view.run_id)
    directory = checkpoint_directory(spec, session.workspace.run_dir(view.run_id))
    chosen_there = search is None and record is not None and spec.checkpoints is not None
    try:
        choice = (
            CheckpointChoice(())
            if search is None
            else choose(surveyed(search), search.attempts, policy.checkpoints_wanted, folder=search.folder)
        )
    except OSError as error:
        fail(
            f"{directory} cannot be read: {error.strerror or error}; see whether its file system answers", EXIT_REFUSED
        )
    # If the last attempt has a decision, the simulated incident is that of the next attempt.
    reached = progress_of(
        attempts, view.attempt, choice.rows, transitions, ended_at=time.time(), steps_start_again=steps_start_again
    )
    judged = any(decision.attempt == view.attempt for decision in decisions)
    spans = () if search is None else search.attempts
    newest = spans[-1] if spans else None
    before = spans if judged else spans[:-1]
    steps = [step for step in (reached.best_step_before, reached.last_step) if step is not None]
    situation = Situation(
        run_id=view.run_id,
        spec=spec,
        params=dict(view.params),
        attempt=max(1, view.attempt + (1 if judged else 0)),
        history=tuple(
            past_decisions(
                attempts, incidents, decisions, transitions, choice.rows, steps_start_again=steps_start_again
            )
        ),
        checkpoints=choice.rows,
        directory=None if chosen_there else directory,
        chosen_there=chosen_there,
        fails_at=reached.last_step,
        best_step_before=max(steps, default=None) if judged else reached.best_step_before,
        resumed_from=view.resume_from if judged or newest is None else newest.resumed_from,
        started_at=time.time() if judged or newest is None else newest.begun_at,
        before=before,
        gpus=view.gpus,
    )
    return PolicySubject(policy, situation, run=view.run_id)


def effects(subject: PolicySubject) -> list[tuple[PolicyAction, Result]]:
    """The effect of each action of the policy's ladders on the run's parameters."""
    spec, params = subject.situation.spec, subject.situation.params
    found = ((action, policy_simulation.effect_of(action, spec, params)) for action in actions_in(subject.policy))
    return [(action, result) for action, result in found if result is not None]


def assumptions(subject: PolicySubject, progress: bool) -> list[str]:
    """The assumptions of a simulation, one sentence each."""
    situation = subject.situation
    known = situation.fails_at
    if known is None:
        where = "no step of the run is known"
    elif progress:
        where = f"the first attempt fails at step {known}, each one after it {policy_simulation.STEPS} steps later"
    else:
        where = f"every attempt fails at step {known}"
    alone = ["no other GPU is free"] if situation.gpus else []
    if situation.chosen_there:
        return [where, *alone, "its checkpoints are seen by its target alone"]
    if subject.run is not None:
        return [where, *alone, f"{len(situation.checkpoints)} checkpoints were looked at" if situation.checkpoints else
                "the run has no checkpoint"]  # fmt: skip
    every = f"a valid checkpoint every {policy_simulation.STEPS} steps"
    return [
        where,
        *alone,
        every if situation.spec.checkpoints is not None else "no checkpoints: the profile names none",
    ]


def _policy(spec: RunSpec, name: str) -> Policy:
    try:
        return policy_from(spec.recovery)
    except PolicyError as error:
        launch_spec.refuse([f"{name}: {error}"], EXIT_USAGE)


def _is_run(session: Session, wanted: str) -> bool:
    try:
        with closing(open_reader(session.workspace.database)) as connection:
            find_run(connection, wanted)
    except (StoreError, RunLookupError):
        return False
    return True
