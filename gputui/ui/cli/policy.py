"""`gputui policy`: show what recovery would do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gputui.core.redaction import redact_params
from gputui.core.units import duration, parameter
from gputui.core.yaml_forms.problems import did_you_mean
from gputui.recovery import policies, policy_simulation, policy_words
from gputui.recovery.effects import AppliedAction, Result
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import PolicyAction
from gputui.recovery.policy_simulation import SimulatedAttempt
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, fail, listing, print_json, print_table, say

if TYPE_CHECKING:
    from gputui.ui.cli.policy_subjects import PolicySubject


@listing("policy")
def command(_session: Session, as_json: bool) -> None:
    """Show what recovery does about incidents. Without a subcommand, list the built-in policies."""
    if as_json:
        print_json([policy_words.policy_json(policy) for policy in policies.POLICIES.values()])
        return
    rows = []
    for name, policy in policies.POLICIES.items():
        limits = ("1", "–")
        if policy.enabled:
            limits = (str(policy.max_attempts), str(policy.max_without_progress))
        rows.append((name, *limits, policy.description))
    print_table(("POLICY", "ATTEMPTS", "WITHOUT PROGRESS", ""), rows)


@command.verb("show", changes=False, has_json=True)
@click.argument("what", metavar="[NAME|PROFILE|RUN]", default="standard", shell_complete=completers.profiles)
def show(session: Session, what: str, as_json: bool) -> None:
    """Show the ladders and limits of a policy.

    Of a profile or a run also what each action would do to its parameters.
    """
    from gputui.ui.cli import policy_subjects

    subject = policy_subjects.find(session, what)
    effects = [] if subject.is_example else policy_subjects.effects(subject)
    if as_json:
        print_json(_policy_shape(subject, effects))
        return
    _say_ladders(subject)
    if effects:
        say("")
        say(f"what the actions would do with the parameters of {subject.situation.spec.name}")
        table = [(policy_words.action_words(action), *_effect(result)) for action, result in effects]
        print_table(("ACTION", "", ""), table)


def _policy_shape(subject: PolicySubject, effects: Sequence[tuple[PolicyAction, Result]]) -> dict[str, Any]:
    """The JSON of ``gputui policy show --json``."""
    shape: dict[str, Any] = {
        **policy_words.policy_json(subject.policy),
        "profile": subject.profile,
        "run": subject.run,
    }
    if not subject.is_example:
        shape["params"] = redact_params(subject.situation.params)
        shape["actions"] = [
            {"argument": action.argument, **result.to_json(), "action": action.name} for action, result in effects
        ]
    return shape


def _say_ladders(subject: PolicySubject) -> None:
    """Print the limits of a policy, and what it tries about each kind of incident."""
    policy = subject.policy
    title = f"policy {policy_words.own_name(policy)}"
    if not subject.is_example:
        title += f", of {subject.phrase}"
    say(title)
    for sentence in policy_words.limit_lines(policy):
        say(f"  {sentence}")
    if policy.enabled:
        say("")
        rows = [(kind, policy_words.kind_words(kind, policy)) for kind in policies.kinds_with_ladders()]
        print_table(("INCIDENT", "WHAT IS TRIED"), rows)
        say("")
        say("never retried: " + ", ".join(policy_words.policy_json(policy)["never_retried"]))


def _effect(result: Result) -> tuple[str, str]:
    if isinstance(result, AppliedAction):
        return "✓", result.note
    return "skipped", result.why


@command.verb("try", changes=False, has_json=True)
@click.option("--incident", "kind", required=True, metavar="KIND", help="The trouble that the run meets.")
@click.option("--profile", metavar="PROFILE", shell_complete=completers.profiles, help="A new run of this profile.")
@click.option("--run", "run", metavar="RUN", shell_complete=completers.runs, help="A new run like this one.")
@click.option("--policy", "policy_name", metavar="NAME", help="A built-in policy in place of its own.")
@click.option("--times", type=click.IntRange(1, 100), default=100, help="At most so many times (else until it stops).")
@click.option("--progress/--no-progress", default=False, help="Does each attempt get further than the one before?")
@click.option("--refuses", is_flag=True, help="Assume that the script does not start with changed parameters.")
def try_(
    session: Session,
    kind: str,
    profile: str | None,
    run: str | None,
    policy_name: str | None,
    times: int,
    progress: bool,
    refuses: bool,
    as_json: bool,
) -> None:
    """Simulate an incident that happens again and again.

    Shows the decision about each attempt; nothing is done.
    """
    from gputui.ui.cli import policy_subjects

    if profile is not None and run is not None:
        fail("choose --profile or --run, not both", Exit.USAGE)
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS) or f"known are {', '.join(KINDS)}"
        fail(f"unknown kind of incident {kind!r}; {hint}", Exit.USAGE)
    builtin = None if policy_name is None else policy_subjects.builtin_policy(policy_name)
    if run is not None:
        subject = policy_subjects.of_run(session, run)
    elif profile is not None:
        subject = policy_subjects.of_profile(session, profile)
    else:
        subject = policy_subjects.example()
    policy = builtin or subject.policy
    rounds = policy_simulation.attempts_of(
        subject.situation, kind, policy, times=times, progress=progress, refuses=refuses
    )
    is_stopped = rounds[-1].plan.verdict == "stop"
    assumed = policy_subjects.assumptions(subject, progress)
    if refuses:
        assumed.append("with changed parameters the script ends with an exception before its first step")
    if as_json:
        shape = {
            "policy": policy.name,
            "incident": kind,
            "profile": subject.profile,
            "run": subject.run,
            "progress": progress,
            "assumed": assumed,
            "attempts": [_round_json(attempt) for attempt in rounds],
            "stopped": is_stopped,
        }
        print_json(shape)
        return
    say(f"{kind} ({KINDS[kind].title}) again and again in {subject.phrase}, policy {policy_words.own_name(policy)}")
    for sentence in assumed:
        say(f"assumed: {sentence}")
    for attempt in rounds:
        say("")
        _say_round(attempt, kind, len(policy.ladder(kind)))
    if not is_stopped:
        say("")
        say(f"… and so on; --times {len(rounds)} ends here")


def _say_round(attempt: SimulatedAttempt, kind: str, rungs: int) -> None:
    plan = attempt.plan
    place = ""
    if attempt.kind != kind:
        place = f" at its start ({attempt.kind})"
    elif attempt.step is not None:
        place = f" at step {attempt.step}"
    if plan.verdict == "stop":
        say(f"attempt {attempt.attempt} fails{place}: the run stops")
        say(f"  {plan.reason}")
        return
    say(f"attempt {attempt.attempt} fails{place}: rung {plan.rung + 1} of {rungs}")
    say(f"  {plan.reason}")
    before = redact_params(attempt.before)
    for name, value in redact_params(plan.changed).items():
        say(f"  {name}  {parameter(before.get(name))} → {parameter(value)}")
    when = "at once"
    if plan.delay_seconds:
        when = f"after {duration(math.ceil(plan.delay_seconds))}"
    start = "the beginning" if plan.resume_from is None else Path(plan.resume_from).name
    say(f"  next: {when}, from {start}")


def _round_json(attempt: SimulatedAttempt) -> dict[str, Any]:
    plan = attempt.plan
    return {
        "attempt": attempt.attempt,
        "step": attempt.step,
        "incident": attempt.kind,
        "verdict": plan.verdict,
        "rung": plan.rung,
        "because": plan.because,
        "reason": plan.reason,
        "actions": plan.actions_json(),
        "params_before": redact_params(attempt.before),
        "params_after": redact_params(plan.params),
        "changed": redact_params(plan.changed),
        "resume_from": plan.resume_from,
        "delay_seconds": plan.delay_seconds,
    }
