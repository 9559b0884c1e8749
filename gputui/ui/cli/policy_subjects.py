"""Subjects of `gputui policy`: a built-in policy, a profile, or the settings of a run."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import count_of
from gputui.core.yaml_forms.problems import did_you_mean
from gputui.profiles.profile_file import ProfileNotFoundError
from gputui.profiles.profile_file import find as find_profile
from gputui.recovery import policy_simulation
from gputui.recovery.effects import Result
from gputui.recovery.policies import POLICIES, Policy, PolicyAction, PolicyError, policy_from
from gputui.recovery.policy_simulation import Situation
from gputui.recovery.policy_words import actions_in
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.stored_spec import spec_of
from gputui.store.database import StoreError, open_reader
from gputui.store.runs import RunLookupError, find_run
from gputui.ui.cli import launch_spec
from gputui.ui.cli.context import Exit, Session, exit_on, fail


class PolicySubject(Struct, frozen=True):
    """A policy, and the run that it applies to.

    Attributes:
        situation: the run before its first failure.
        profile: the name of the profile that was given; None if none was.
        run: the id of the run that was given; None if none was.
    """

    policy: Policy
    situation: Situation
    profile: str | None = None
    run: str | None = None

    @property
    def is_example(self) -> bool:
        return self.profile is None and self.run is None

    @property
    def phrase(self) -> str:
        if self.run is not None:
            return f"a new run like {self.run}"
        if self.profile is None:
            return "an example run with every usual parameter"
        return f"a new run of {self.profile}"


def example(policy: Policy = POLICIES["standard"]) -> PolicySubject:
    """A policy with a run that has every usual parameter."""
    return PolicySubject(policy, policy_simulation.fresh(policy_simulation.EXAMPLE))


def builtin_policy(name: str) -> Policy:
    """The built-in policy of this name; ends the command if there is none."""
    if name not in POLICIES:
        hint = did_you_mean(name, POLICIES) or f"known are {', '.join(POLICIES)}"
        fail(f"unknown policy {name!r}; {hint}", Exit.USAGE)
    return POLICIES[name]


def find(session: Session, what: str) -> PolicySubject:
    """A built-in policy by name, else a profile, else a run; ends the command for anything else."""
    if what in POLICIES:
        return example(POLICIES[what])
    try:
        find_profile(what, session.workspace, Path.cwd())
    except ProfileNotFoundError:
        with suppress(StoreError, RunLookupError), closing(open_reader(session.workspace.database)) as connection:
            return of_run(session, find_run(connection, what).run_id)
        hint = did_you_mean(what, POLICIES) or f"built-in policies are {', '.join(POLICIES)}"
        fail(f"no policy, profile or run {what!r}; {hint}; see gputui profile list and gputui ps", Exit.USAGE)
    return of_profile(session, what)


def of_profile(session: Session, name: str) -> PolicySubject:
    """A new run of a profile; ends the command with one line per problem."""
    profile = launch_spec.load_profile(session, name)
    spec = launch_spec.resolve_spec(profile, (), gpus=None, situation=launch_spec.gpu_situation(session))
    return PolicySubject(_policy(spec, spec.name), policy_simulation.fresh(spec), profile=spec.name)


def of_run(session: Session, name: str) -> PolicySubject:
    """A new run like an existing one, with the parameters that that one has now."""
    with closing(session.reader()) as connection:
        view = session.find_run(connection, name)
    before = f"{view.run_id}: its stored specification cannot be read ("
    with exit_on(SpecError, code=Exit.REFUSED, before=before, after=")"):
        spec = replace(spec_of(view), params=dict(view.params))
    return PolicySubject(_policy(spec, view.run_id), policy_simulation.fresh(spec), run=view.run_id)


def effects(subject: PolicySubject) -> list[tuple[PolicyAction, Result]]:
    """The effect of each action of the policy's ladders on the run's parameters."""
    spec = subject.situation.spec
    params = subject.situation.params
    results = ((action, policy_simulation.effect_of(action, spec, params)) for action in actions_in(subject.policy))
    return [(action, result) for action, result in results if result is not None]


def assumptions(subject: PolicySubject, progress: bool) -> list[str]:
    """The assumptions of a simulation, one sentence each."""
    situation = subject.situation
    first = situation.fails_at
    steps = situation.every
    where = f"every attempt fails at step {first}"
    if progress:
        where = f"the first attempt fails at step {first}, each one after it {count_of(steps, 'step')} later"
    sentences = [where]
    if situation.gpus:
        sentences.append("no other GPU is free")
    if situation.spec.checkpoints is None:
        sentences.append("no checkpoints: the profile names none")
    else:
        sentences.append(f"a valid checkpoint every {count_of(steps, 'step')}")
    return sentences


def _policy(spec: RunSpec, name: str) -> Policy:
    with exit_on(PolicyError, code=Exit.USAGE, before=f"{name}: "):
        return policy_from(spec.recovery)
