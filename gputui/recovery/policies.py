"""Recovery policies: a ladder of actions for each kind of incident, and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.actions import ACTIONS
from gputui.recovery.kinds import KINDS

DEFAULT = "default"
"""The ladder of kinds without one."""
ENDS_ON = {
    "hang": "no progress for longer than the run's own history explains, and no rank computes, reads or writes",
    "nan_loss": "the loss is no number in 5 lines in a row, or null in 50",
    "loss_spike": "the loss stays far above its recent values for 30 lines",
    "memory_leak": "private memory grows steadily and is nearly used up; only a run that can resume, "
    "and it gets its grace to save",
}
"""Findings for which gputui may end a live attempt, and their conditions."""


class PolicyAction(Struct, frozen=True):
    """One action of a rung, with its number if it takes one."""

    name: str
    argument: float | None = None


Rung = tuple[PolicyAction, ...]
Ladder = tuple[Rung, ...]
RESTART: Rung = (PolicyAction("restart"),)
STOP: Rung = (PolicyAction("stop"),)


class Backoff(Struct, frozen=True):
    """The delay before an unchanged restart: ``base × factor^n`` after n attempts without progress.

    It is at most ``max_seconds``, less a random share of up to ``jitter``, so that runs that failed together do not
    restart together.
    """

    base_seconds: float = 2.0
    factor: float = 3.0
    max_seconds: float = 300.0
    jitter: float = 0.25

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after ``failures`` fruitless attempts; ``chance`` is in [0, 1)."""
        # Computed step by step, because the power may overflow.
        seconds = self.base_seconds
        for _ in range(failures):
            seconds = min(seconds * self.factor, self.max_seconds)
        return round(min(seconds, self.max_seconds) * (1 - self.jitter * chance), 3)


class Policy(Struct, frozen=True):
    """A recovery policy.

    Attributes:
        description: what a built-in policy does, in one line.
        ladders: rungs by kind, tried from the first; every ladder ends in ``stop``.
        max_attempts: maximum number of consecutive attempts, the first one included.
        max_without_progress: maximum number of consecutive unchanged attempts without progress.
        ends_on: the kinds of ENDS_ON for which gputui ends a live attempt.
        hang_after_seconds: the shortest silence that counts as a hang once a run makes steps.
        retry_on_exit: exit codes after which a run starts again where its kind of incident would not.
    """

    name: str
    description: str
    ladders: Mapping[str, Ladder]
    max_attempts: int = 8
    max_without_progress: int = 3
    backoff: Backoff = msgspec.field(default_factory=Backoff)
    ends_on: frozenset[str] = frozenset({"hang", "nan_loss", "memory_leak"})
    hang_after_seconds: float = 60.0
    retry_on_exit: frozenset[int] = frozenset()

    @property
    def enabled(self) -> bool:
        return bool(self.ladders)

    def ladder(self, kind: str) -> Ladder:
        """The rungs for a kind of incident."""
        ladder = self.ladders.get(kind)
        if ladder is not None:
            return ladder
        return self.ladders.get(DEFAULT, (STOP,))

    @property
    def checkpoints_wanted(self) -> int:
        """Number of valid checkpoints that a decision may need to go back over or to keep."""
        steps = [
            int(action.argument or 1)
            for ladder in self.ladders.values()
            for rung in ladder
            for action in rung
            if action.name in ("rollback", "prune_checkpoints")
        ]
        return 1 + max(steps, default=0)

    @property
    def checkpoints_kept(self) -> int:
        """Number of valid checkpoints that the rungs of a ladder may go back over together, and one."""
        steps = [
            sum(int(action.argument or 1) for rung in ladder for action in rung if action.name == "rollback")
            for ladder in self.ladders.values()
        ]
        return 1 + max(steps, default=0)


def _ladders(**ladders: str | list[Any]) -> dict[str, Ladder]:
    """Ladders by kind, written as in a profile; ``stop`` is appended."""
    return {kind: _ladder(ladder) for kind, ladder in ladders.items()}


def _ladder(value: str | list[Any]) -> Ladder:
    if isinstance(value, str):
        value = [value]
    rungs = [_rung(entry) for entry in value]
    return (*(rung for rung in rungs if rung != STOP), STOP)


def _rung(value: str | Mapping[str, float | None] | list[Any]) -> Rung:
    """A rung given as ``restart``, ``{rollback: 2}``, or a list of these."""
    if isinstance(value, list):
        return tuple(action for entry in value for action in _rung(entry))
    if isinstance(value, str):
        return (PolicyAction(value, ACTIONS[value].default),)
    actions = []
    for name, number in value.items():
        argument = ACTIONS[name].default if number is None else float(number)
        actions.append(PolicyAction(name, argument))
    return tuple(actions)


_RESTART_ONLY = _ladders(
    default=["restart"],
    cuda_oom=["restart"],
    shared_gpu_oom=["restart"],
    killed=["restart"] * 3,
    segfault=["restart"],
    user_exception=["restart"] * 2,
    nonzero_exit=["restart"] * 2,
    nccl_timeout=["restart"] * 2,
    hang=["restart"] * 2,
    peer_lost=["restart"] * 2,
    shim_lost=["restart"] * 2,
    memory_leak=["restart"] * 2,
    dataloader_killed=["restart"] * 2,
    dataloader_stall=["restart"] * 2,
    corrupt_checkpoint=["restart"] * 3,
    port_in_use=["new_port", "new_port", {"wait": 60}],
    rendezvous=["new_port", "restart"],
    lease_conflict=[{"wait": 30}, {"wait": 120}],
    gpu_busy=[{"wait": 60}, {"wait": 300}],
    # Not the run's fault; each step of progress restarts the ladder.
    preempted=["restart"] * 5,
    time_limit=["restart"] * 2,
    node_fail=["restart"] * 3,
    disk_full=[{"wait": 300}, {"wait": 900}],
    # These need a person: a lost GPU must be reset, and a stop from outside had a reason.
    gpu_lost=[],
    stopped_outside=[],
    interrupted=[],
    # Warnings, which do not end an attempt.
    overheating=[],
    loss_spike=[],
    straggler=[],
)
_STANDARD = _RESTART_ONLY | _ladders(
    cuda_oom=["shrink_batch", "gradient_checkpointing", "shrink_batch"],
    host_oom=["fewer_workers", "restart"],
    # The save before the end counts as progress, so a slow leak stays on the first rung.
    memory_leak=["restart", "fewer_workers", "restart"],
    shm_full=["fewer_workers"],
    resource_limit=["fewer_workers", "restart"],
    dataloader_killed=["restart", "fewer_workers", "restart"],
    nan_loss=["restart", [{"rollback": 1}, "tighter_clip"]],
    nccl_timeout=["restart", "nccl_debug"],
    nccl_error=["restart", "nccl_debug"],
    # The GPU itself is suspect, except after a contained error, when exclude_gpu is skipped.
    ecc=["exclude_gpu", "restart", "restart"],
    nvlink_error=["restart", "exclude_gpu"],
    gpu_lost=["exclude_gpu"],
    disk_full=[{"wait_disk": 2}, {"wait": 900}],
)
_AGGRESSIVE = _STANDARD | _ladders(
    cuda_oom=["shrink_batch", "gradient_checkpointing", "shrink_batch", "cpu_offload", "shrink_batch"],
    host_oom=["fewer_workers", "fewer_workers", "restart"],
    nan_loss=[
        "restart",
        [{"rollback": 1}, "tighter_clip"],
        [{"rollback": 2}, "lower_lr"],
        [{"rollback": 2}, "lower_lr", "tighter_clip"],
    ],
    loss_spike=[[{"rollback": 1}, "tighter_clip"], [{"rollback": 2}, "lower_lr"]],
    killed=["restart"] * 4,
    stopped_outside=[{"wait": 60}],
    interrupted=["restart"],
    unknown=["restart"] * 2,
    nccl_timeout=["restart", "nccl_debug", {"longer_timeout": 2}, "restart"],
    gpu_lost=["exclude_gpu"] * 2,
)

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            "off",
            "nothing: the run stops with its first incident",
            ladders={},
            ends_on=frozenset(),
        ),
        Policy(
            "restart-only",
            "starts again from the newest valid checkpoint and never changes a parameter",
            ladders=_RESTART_ONLY,
        ),
        Policy(
            "standard",
            "the same, and changes what makes a run fit: batch size, gradient checkpointing, workers, clipping",
            ladders=_STANDARD,
        ),
        Policy(
            "aggressive",
            "longer ladders; also lowers the learning rate, and starts again after a reboot or an outside stop",
            ladders=_AGGRESSIVE,
            max_attempts=20,
            max_without_progress=5,
            ends_on=frozenset(ENDS_ON),
        ),
    )
}
"""The built-in policies by name."""


def kinds_with_ladders() -> list[str]:
    """The kinds that a ladder can be for: those that may be retried, and the default."""
    return [name for name, kind in KINDS.items() if kind.retry != "never"] + [DEFAULT]


class PolicyError(ValueError):
    """A run's specification has a policy that this version does not understand."""


def policy_from(recovery: Mapping[str, Any]) -> Policy:
    """The policy of a valid ``recovery:`` (see `gputui.profiles.recovery_form`), based on the
    built-in policy that it names, by default ``standard``. Raises PolicyError."""
    try:
        name = recovery.get("policy", "standard")
        if name is False:  # how YAML reads off
            name = "off"
        base = POLICIES[name]
        changes = {key: recovery[key] for key in ("max_attempts", "max_without_progress") if key in recovery}
        if "hang_after" in recovery:
            changes["hang_after_seconds"] = float(recovery["hang_after"])
        if recovery.get("ends_on") is not None:
            changes["ends_on"] = frozenset(recovery["ends_on"])
        if recovery.get("retry_on_exit"):
            changes["retry_on_exit"] = frozenset(recovery["retry_on_exit"])
        if recovery.get("ladders"):
            changes["ladders"] = {**base.ladders, **_ladders(**recovery["ladders"])}
        if recovery.get("backoff"):
            names = {"base": "base_seconds", "max": "max_seconds"}
            numbers = {names.get(key, key): float(number) for key, number in recovery["backoff"].items()}
            changes["backoff"] = replace(base.backoff, **numbers)
        return replace(base, **changes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PolicyError(f"the recovery policy is not understood: {error!r}") from error
