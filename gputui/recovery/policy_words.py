"""A policy as text and as JSON."""

from __future__ import annotations

from typing import Any

from gputui.core.units import duration
from gputui.recovery.actions import ACTIONS
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import ENDS_ON, POLICIES, Policy, PolicyAction, kinds_with_ladders
from gputui.recovery.watch.silence import EARLY_FACTOR, EVIDENT_SHARE, START_FACTOR

SAYS = {
    "off": "nothing: the run stops with its first incident",
    "restart-only": "starts again from the newest valid checkpoint and never changes a parameter",
    "standard": "the same, and changes what makes a run fit: batch size, gradient checkpointing, workers, clipping",
    "aggressive": "longer ladders; also lowers the learning rate, and starts again after a reboot or an outside stop",
}
"""One line per built-in policy."""


def action_words(action: PolicyAction) -> str:
    """``rollback 2``, ``wait 30 s``."""
    if action.argument is None:
        return action.name
    unit = " s" if ACTIONS[action.name].argument == "seconds" else ""
    return f"{action.name} {action.argument:g}{unit}"


def kind_words(kind: str, policy: Policy) -> str:
    """The ladder for a kind of incident: ``restart → rollback 1 + tighter_clip 2 → stop``."""
    if kind in KINDS and KINDS[kind].deterministic:
        return "never retried"
    words = " → ".join(" + ".join(action_words(action) for action in rung) for rung in policy.ladder(kind))
    return f"{words} (not before the first step)" if kind in KINDS and KINDS[kind].needs_step else words


def limit_lines(policy: Policy) -> list[str]:
    """The policy's limits, one sentence each."""
    if not policy.enabled:
        return ["nothing is ever tried again", *_ending_lines(policy)]
    backoff = policy.backoff
    return [
        f"at most {policy.max_attempts} attempts (max_attempts)",
        f"at most {policy.max_without_progress} unchanged attempts in a row without progress (max_without_progress)",
        f"before an unchanged restart a wait of {duration(backoff.base_seconds)}, times {backoff.factor:g} after every "
        f"attempt without progress, at most {duration(backoff.max_seconds)}, less up to {backoff.jitter * 100:g} % "
        "(backoff)",
        *_ending_lines(policy),
    ]


def _ending_lines(policy: Policy) -> list[str]:
    """The findings that end a live attempt, those that are only reported, and the meaning of `hang_after`."""
    ended = [f"  {kind}: {ENDS_ON[kind]}" for kind in ENDS_ON if kind in policy.ends_on]
    reported = [kind for kind in ENDS_ON if kind not in policy.ends_on]
    seconds = policy.hang_after_seconds
    return [
        *(["ends an attempt that is alive (ends_on) for", *ended] if ended else []),
        *([f"only reports {', '.join(reported)} while an attempt is alive (not in ends_on)"] if reported else []),
        f"calls no silence of less than {duration(seconds)} a hang, {duration(seconds * EARLY_FACTOR)} in the first "
        f"steps and {duration(seconds * START_FACTOR)} before them, in any history (hang_after); "
        f"{duration(seconds * EVIDENT_SHARE)} will do where a rank is stopped or all wait for each other",
    ]


def policy_json(policy: Policy) -> dict[str, Any]:
    """The policy as JSON. ``ladders`` has every kind that may be retried, and ``default``."""
    ladders = {
        kind: [
            [{"action": action.name, "argument": action.argument} for action in rung] for rung in policy.ladder(kind)
        ]
        for kind in kinds_with_ladders()
    }
    return {
        "name": policy.name,
        "description": SAYS.get(policy.name),
        "enabled": policy.enabled,
        "max_attempts": policy.max_attempts if policy.enabled else 1,
        "max_without_progress": policy.max_without_progress if policy.enabled else None,
        "backoff": {
            "base_seconds": policy.backoff.base_seconds,
            "factor": policy.backoff.factor,
            "max_seconds": policy.backoff.max_seconds,
            "jitter": policy.backoff.jitter,
        }
        if policy.enabled
        else None,
        "ends_on": sorted(policy.ends_on),
        "watches": [{"kind": kind, "when": when, "ends": kind in policy.ends_on} for kind, when in ENDS_ON.items()],
        "hang_after_seconds": policy.hang_after_seconds,
        "notifies": policy.notify is not None,
        "ladders": ladders,
        "never_retried": [name for name, kind in KINDS.items() if kind.deterministic],
        "not_before_first_step": [name for name, kind in KINDS.items() if kind.needs_step],
    }


def own_name(policy: Policy) -> str:
    """The policy's name, marked if the profile changes the built-in policy."""
    ready = POLICIES.get(policy.name)
    return policy.name if ready == policy else f"{policy.name}, changed"


def actions_in(policy: Policy) -> list[PolicyAction]:
    """The distinct actions of the policy's ladders except ``stop``, in the order of the documentation."""
    found = {
        action: None for ladder in policy.ladders.values() for rung in ladder for action in rung
        if action.name != "stop"
    }  # fmt: skip
    order = list(ACTIONS)
    return sorted(found, key=lambda action: (order.index(action.name), action.argument or 0.0))
