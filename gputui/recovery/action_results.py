"""Results of recovery actions: applied, with changes and effects, or skipped, with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gputui.runs.spec import Scalar


class Precondition(Struct, frozen=True):
    """A condition of the next attempt's start.

    ``cool``: every GPU of the run is ``margin_celsius`` below its throttling temperature. ``disk``: ``bytes_needed``
    are free on the disk of the checkpoints. ``room``: the same, or 5 % of the disk if that is less, because the need is
    not known. ``prune``: checkpoints older than the ``keep`` newest valid ones are removed. After ``limit_seconds`` the
    run continues anyway; with ``disk`` it fails.
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
        notify: send a notification.
        gpu_count: the run's new, smaller number of GPUs; None leaves it.
    """

    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    quarantine: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    notify: bool = False
    gpu_count: int | None = None

    def __or__(self, other: Effect) -> Effect:
        """The combination of both."""
        return Effect(
            env={**self.env, **other.env},
            quarantine=self.quarantine + other.quarantine,
            replacements=self.replacements + other.replacements,
            preconditions=self.preconditions + other.preconditions,
            notify=self.notify or other.notify,
            gpu_count=self.gpu_count if other.gpu_count is None else other.gpu_count,
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
    """An action that is not possible here, and why. ``effect`` still applies if the run stops for it."""

    name: str
    why: str
    effect: Effect = NO_EFFECT

    def to_json(self) -> dict[str, Any]:
        return {"action": self.name, "applied": False, "changes": [], "note": self.why}


Result = AppliedAction | SkippedAction
Params = Mapping[str, Scalar]


def apply_changes(params: Params, results: tuple[Result, ...]) -> dict[str, Scalar]:
    """Parameters with the changes of the applied actions."""
    changed = dict(params)
    for result in results:
        if isinstance(result, AppliedAction):
            changed |= {change.parameter: change.after for change in result.changes}
    return changed


def unmapped(action: str, role: str) -> SkippedAction:
    return SkippedAction(action, f"the profile has no parameter for {role}")


def whole(value: Scalar) -> int | None:
    """The value as an integer, also if it is text or 16.0; None if it is not whole."""
    as_float = number(value)
    return int(as_float) if as_float is not None and as_float.is_integer() and abs(as_float) < 2**53 else None


def number(value: Scalar) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def like(former: Scalar, value: int) -> Scalar:
    """The new value in the type of the former one, which the script's flag expects."""
    return str(value) if isinstance(former, str) else float(value) if isinstance(former, float) else value


def switched_on(value: Scalar) -> Scalar:
    """The value that means on; the same if it is on already; None if the parameter is no switch."""
    if value is None or value is False:
        return True
    if isinstance(value, str):
        pairs = {"false": "true", "False": "True", "0": "1", "no": "yes", "off": "on", "": "true"}
        return pairs.get(value, value if value in pairs.values() else None)
    if isinstance(value, bool):
        return value
    return 1 if value == 0 else value if value == 1 else None


def show(value: Scalar) -> str:
    return "not set" if value is None else repr(value)
