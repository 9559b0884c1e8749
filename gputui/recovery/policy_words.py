"""Recovery policies in words and as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from gputui.core.units import duration
from gputui.recovery.actions import ACTIONS
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import ENDS_ON, POLICIES, Policy, PolicyAction, kinds_with_ladders
from gputui.recovery.watch.silence import EARLY_FACTOR, EVIDENT_SHARE, LONG_FACTOR


def action_words(action: PolicyAction) -> str:
    """``rollback 2``, ``wait 30 s``."""
    if action.argument is None:
        return action.name
    unit = " s" if ACTIONS[action.name].argument == "seconds" else ""
    return f"{action.name} {action.argument:g}{unit}"


def kind_words(kind: str, policy: Policy) -> str:
    """The ladder for a kind of incident: ``restart → rollback 1 + tighter_clip 2 → stop``."""
    if kind in KINDS and KINDS[kind].retry == "never":
        return "never retried"
    rungs = (" + ".join(action_words(action) for action in rung) for rung in policy.ladder(kind))
    ladder = " → ".join(rungs)
    if kind in KINDS and KINDS[kind].retry == "after_first_step":
        return f"{ladder} (not before the first step)"
    return ladder


def limit_lines(policy: Policy) -> list[str]:
    """The policy's limits, one sentence each."""
    lines = ["nothing is ever tried again"]
    backoff = policy.backoff
    if policy.enabled:
        base = duration(backoff.base_seconds)
        most = duration(backoff.max_seconds)
        lines = [
            f"at most {policy.max_attempts} attempts (max_attempts)",
            f"at most {policy.max_without_progress} unchanged attempts in a row without progress "
            "(max_without_progress)",
            f"before an unchanged restart a wait of {base}, times {backoff.factor:g} after every "
            f"attempt without progress, at most {most}, less up to {backoff.jitter * 100:g} % "
            "(backoff)",
        ]
    if policy.retry_on_exit:
        codes = ", ".join(map(str, sorted(policy.retry_on_exit)))
        lines.append(f"starts again after exit code {codes}, whatever the kind of incident (retry_on_exit)")
    ended = [f"  {kind}: {when}" for kind, when in ENDS_ON.items() if kind in policy.ends_on]
    if ended:
        lines += ["ends an attempt that is alive (ends_on) for", *ended]
    if reported := [kind for kind in ENDS_ON if kind not in policy.ends_on]:
        lines.append(f"only reports {', '.join(reported)} while an attempt is alive (not in ends_on)")
    seconds = policy.hang_after_seconds
    early = duration(seconds * EARLY_FACTOR)
    start = duration(seconds * LONG_FACTOR)
    return [
        *lines,
        f"calls no silence of less than {duration(seconds)} a hang, {early} in the first steps and "
        f"{start} before them, in any history (hang_after); {duration(seconds * EVIDENT_SHARE)} "
        "will do where a rank is stopped or all wait for each other",
    ]


def policy_json(policy: Policy) -> dict[str, Any]:
    """The policy as JSON. ``ladders`` has every kind that may be retried, and ``default``."""
    max_attempts = 1
    max_without_progress = None
    backoff = None
    if policy.enabled:
        max_attempts = policy.max_attempts
        max_without_progress = policy.max_without_progress
        backoff = msgspec.to_builtins(policy.backoff)
    return {
        "name": policy.name,
        "description": policy.description,
        "enabled": policy.enabled,
        "max_attempts": max_attempts,
        "max_without_progress": max_without_progress,
        "backoff": backoff,
        "ends_on": sorted(policy.ends_on),
        "watches": [{"kind": kind, "when": when, "ends": kind in policy.ends_on} for kind, when in ENDS_ON.items()],
        "retry_on_exit": sorted(policy.retry_on_exit),
        "hang_after_seconds": policy.hang_after_seconds,
        "ladders": {
            kind: [
                [{"action": action.name, "argument": action.argument} for action in rung]
                for rung in policy.ladder(kind)
            ]
            for kind in kinds_with_ladders()
        },
        "never_retried": [name for name, kind in KINDS.items() if kind.retry == "never"],
        "not_before_first_step": [name for name, kind in KINDS.items() if kind.retry == "after_first_step"],
    }


def own_name(policy: Policy) -> str:
    """The policy's name, marked if the profile changes the built-in policy."""
    is_built_in = POLICIES.get(policy.name) == policy
    if is_built_in:
        return policy.name
    return f"{policy.name}, changed"


def actions_in(policy: Policy) -> list[PolicyAction]:
    """The distinct actions of the ladders but ``stop``, in the order of the documentation."""
    rungs = (rung for ladder in policy.ladders.values() for rung in ladder)
    actions = {action for rung in rungs for action in rung if action.name != "stop"}
    order = list(ACTIONS)
    return sorted(actions, key=lambda action: (order.index(action.name), action.argument or 0.0))
