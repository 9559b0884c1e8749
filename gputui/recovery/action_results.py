"""What becomes of an action: what the next attempt carries out, or why nothing can be done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gputui.runs.spec import Scalar


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must be so, or be done, before the next attempt may start.

    ``cool``: every GPU of the run is ``margin_celsius`` below the temperature where its clocks are lowered; ``disk``:
    so many bytes are free where the checkpoints lie; ``prune``: the checkpoints older than the ``keep`` newest valid
    ones are removed; ``room``: so many bytes, or a twentieth of a small disk, are free there, where it is not yet known
    how much is needed. After ``limit_seconds`` the run continues all the same, but fails where it waits for the disk.
    """

    kind: Literal["cool", "disk", "prune", "room"]
    limit_seconds: float = 0.0
    margin_celsius: float = 0.0
    bytes_needed: int = 0
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """What an action does besides changing parameters.

    Attributes:
        env: variables of the next attempt only; they win over the profile's.
        quarantine: UUIDs of GPUs that no run gets any more until a person clears them.
        replacements: UUIDs of the GPUs that take their place; fewer than those if there are none.
        preconditions: what the next attempt waits for.
        notify: a notification is sent.
        gpu_count: how many GPUs the run has from now on, fewer than before; None leaves it.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    quarantine: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    notify: bool = False
    gpu_count: int | None = None

    def __or__(self, other: Effect) -> Effect:
        """Both."""
        return Effect(
            env={**self.env, **other.env},
            quarantine=self.quarantine + other.quarantine,
            replacements=self.replacements + other.replacements,
            preconditions=self.preconditions + other.preconditions,
            notify=self.notify or other.notify,
            gpu_count=self.gpu_count if other.gpu_count is None else other.gpu_count,
        )


NO_EFFECT = Effect()


@dataclass(frozen=True, slots=True)
class Change:
    """One parameter's old and new value."""

    parameter: str
    before: Scalar
    after: Scalar


@dataclass(frozen=True, slots=True)
class AppliedAction:
    """An action that the next attempt carries out. ``note`` is a phrase that completes "gputui …"."""

    name: str
    note: str
    changes: tuple[Change, ...] = ()
    effect: Effect = NO_EFFECT

    def to_json(self) -> dict[str, Any]:
        changes = [{"parameter": c.parameter, "from": c.before, "to": c.after} for c in self.changes]
        return {"action": self.name, "applied": True, "changes": changes, "note": self.note}


@dataclass(frozen=True, slots=True)
class SkippedAction:
    """An action of the ladder that cannot be carried out here, and why. ``effect`` is what remains of it to be done
    where the run stops for that."""

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
    """A whole number, also where it was given as text or as 16.0."""
    found = number(value)
    return int(found) if found is not None and found.is_integer() and abs(found) < 2**53 else None


def number(value: Scalar) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def like(former: Scalar, value: int) -> Scalar:
    """A new value in the type of the former one, so that the script gets what its flag expects."""
    return str(value) if isinstance(former, str) else float(value) if isinstance(former, float) else value


def switched_on(value: Scalar) -> Scalar:
    """The value that means on; the same one where it is on already; None if it is no switch."""
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
