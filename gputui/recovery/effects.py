"""The input of recovery actions, and their results: changed parameters, and effects on the machine.
Pure.

An action never guesses: without the parameter in the profile, or with an unexpected value, it is
skipped with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gputui.core.units import parameter
from gputui.recovery.classify import Incident
from gputui.runs.checkpoint_formats import CheckpointInfo
from gputui.runs.spec import RunSpec, Scalar

Params = Mapping[str, Scalar]


class Precondition(Struct, frozen=True):
    """A condition of the next attempt's start.

    Attributes:
        kind: ``cool`` asks for GPUs below their throttling temperature, ``disk`` for bytes on the disk of the
            checkpoints, ``room`` for the same or 5 % of the disk if that is less, ``prune`` for the removal of
            checkpoints older than the newest valid ones.
        limit_seconds: then the run continues anyway; with ``disk`` it fails.
        margin_celsius: below throttling.
        bytes_needed: on the disk.
        keep: how many of the newest valid checkpoints.
    """

    kind: Literal["cool", "disk", "prune", "room"]
    limit_seconds: float = 0.0
    margin_celsius: float = 0.0
    bytes_needed: int = 0
    keep: int = 0


class Effect(Struct, frozen=True):
    """Effects of an action besides changed parameters.

    Attributes:
        env: variables of the next attempt only; they override the profile's.
        quarantine: UUIDs of GPUs that no run gets until a person clears them.
        replacements: UUIDs of GPUs in their place, as many as are available.
        preconditions: what the next attempt waits for.
        gpu_count: the run's new, smaller number of GPUs; None leaves it.
    """

    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    quarantine: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    gpu_count: int | None = None

    def __or__(self, second: Effect) -> Effect:
        """The combination of both."""
        gpu_count = self.gpu_count if second.gpu_count is None else second.gpu_count
        return Effect(
            {**self.env, **second.env},
            self.quarantine + second.quarantine,
            self.replacements + second.replacements,
            self.preconditions + second.preconditions,
            gpu_count,
        )


NO_EFFECT = Effect()


class Change(Struct, frozen=True):
    """One parameter's old and new value."""

    parameter: str
    before: Scalar
    after: Scalar


class AppliedAction(Struct, frozen=True):
    """An action that changes the next attempt. ``note`` is a phrase that completes "gputui …"."""

    name: str
    note: str
    changes: tuple[Change, ...] = ()
    effect: Effect = NO_EFFECT

    def to_json(self) -> dict[str, Any]:
        changes = [{"parameter": c.parameter, "from": c.before, "to": c.after} for c in self.changes]
        return {"action": self.name, "applied": True, "changes": changes, "note": self.note}


class SkippedAction(Struct, frozen=True):
    """An action that is not possible here, and why. ``effect`` applies if the run stops for it."""

    name: str
    why: str
    effect: Effect = NO_EFFECT

    def to_json(self) -> dict[str, Any]:
        return {"action": self.name, "applied": False, "changes": [], "note": self.why}


Result = AppliedAction | SkippedAction


class MachineContext(Struct, frozen=True):
    """The state of the machine after an attempt.

    Attributes:
        gpus: UUIDs of the attempt's GPUs, in the order of its local ranks.
        spares: UUIDs of free, healthy GPUs that the run may use instead, best first.
        later: UUIDs of healthy GPUs that it may use once other runs have released them.
        no_pruning: why checkpoints must not be removed; None if old ones may be.
        sees_checkpoints: the checkpoints and their disk are accessible from here.
    """

    gpus: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    no_pruning: str | None = None
    sees_checkpoints: bool = True


class ActionContext(Struct, frozen=True):
    """Input of an action.

    Attributes:
        params: those of the failed attempt, as changed by the actions before.
        argument: the number of the action in the ladder.
        checkpoints: those that may be resumed from, best first, and those that are passed over.
        below: the run did not start with this batch size.
    """

    incident: Incident
    spec: RunSpec
    params: Params
    argument: float | None = None
    checkpoints: Sequence[CheckpointInfo] = ()
    machine: MachineContext = msgspec.field(default_factory=MachineContext)
    below: int | None = None

    def role(self, role: str) -> tuple[str | None, Scalar]:
        """The name and the value of the parameter with a role; (None, None) without one."""
        return role_parameter(self.spec, role, self.params)


def apply_changes(params: Params, results: tuple[Result, ...]) -> dict[str, Scalar]:
    """Parameters with the changes of the applied actions."""
    applied = (result for result in results if isinstance(result, AppliedAction))
    changes = (change for result in applied for change in result.changes)
    return {**params, **{change.parameter: change.after for change in changes}}


def unmapped(action: str, role: str) -> SkippedAction:
    return SkippedAction(action, f"no parameter is known for {role}")


def role_parameter(spec: RunSpec, role: str, params: Params) -> tuple[str | None, Scalar]:
    """The name and the value of the parameter with a role, such as ``batch_size``; (None, None) without one."""
    name = spec.role(role, params)
    if name is None:
        return None, None
    return name, params[name]


def number(value: Scalar) -> float | None:
    """The value as a finite number, also if it is text; None if it is none."""
    if value is None or isinstance(value, bool):
        return None
    try:
        as_float = float(value)
    except (ValueError, OverflowError):
        return None
    if math.isfinite(as_float):
        return as_float
    return None


def whole(value: Scalar) -> int | None:
    """The value as an integer, also if it is text or 16.0; None if it is not whole."""
    finite = number(value)
    is_whole = finite is not None and finite.is_integer() and abs(finite) < 2**53
    if finite is not None and is_whole:
        return int(finite)
    return None


def changed(name: str, former: Scalar, value: int) -> Change:
    """A change to a new value in the type of the former one, which the script's flag expects."""
    after: Scalar = value
    if isinstance(former, str):
        after = str(value)
    elif isinstance(former, float):
        after = float(value)
    return Change(name, former, after)


def show(value: Scalar) -> str:
    if value is None:
        return "not set"
    if isinstance(value, str):
        return repr(value)
    return parameter(value)
