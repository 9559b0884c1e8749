"""From which checkpoint the next attempt may go on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.recovery.actions import AppliedAction, Result, SkippedAction
from gputui.recovery.checkpoints import CheckpointInfo
from gputui.recovery.classify import Incident
from gputui.runs.spec import RunSpec

# Of checkpoints that cannot be resumed from.
MOST_TOLD = 3
NUMERIC_TROUBLE = frozenset({"nan_loss", "loss_spike"})


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoints that may be resumed from, the newest first, and why newer ones are not among them.

    ``configured`` says whether the profile names checkpoints at all.
    """

    usable: tuple[CheckpointInfo, ...]
    rejected: tuple[SkippedAction, ...]
    configured: bool

    def path(self, back: int) -> str | None:
        """The checkpoint ``back`` places before the newest, None where there is none: the beginning."""
        return str(self.usable[back].path) if back < len(self.usable) else None

    def rollback(self, count: int) -> tuple[Result, int]:
        """Going back ``count`` checkpoints further than the newest, or as far as there are any."""
        if not self.configured:
            return SkippedAction("rollback", "the profile names no checkpoints"), 0
        back = min(count, len(self.usable) - 1)
        if back < 1:
            return SkippedAction("rollback", "there is no older valid checkpoint"), 0
        steps = "one checkpoint" if back == 1 else f"{back} checkpoints"
        return AppliedAction("rollback", f"went back {steps} before the newest usable one"), back

    def describe(self, back: int) -> str:
        """Where the next attempt begins, as the end of a sentence."""
        if back < len(self.usable):
            return f"resuming from {self.usable[back].path.name}"
        if not self.configured:
            return "starting from the beginning because the profile names no checkpoints"
        return "starting from the beginning because there is no valid checkpoint"


def resume_points(
    incident: Incident,
    checkpoints: Sequence[CheckpointInfo],
    spec: RunSpec,
    resumed_from: str | None,
    resumed_step: int | None,
    started_at: float | None,
    last_step: int | None,
) -> ResumePoint:
    """Sort out checkpoints that are damaged, that belong to a branch of training that was left, that were written
    after numbers went wrong, or that this attempt could not be started from."""
    usable: list[CheckpointInfo] = []
    rejected: list[SkippedAction] = []
    refused = incident.kind == "corrupt_checkpoint" and last_step is None and resumed_from is not None
    refused_step = None if resumed_from is None else resumed_step
    for info in checkpoints:
        if not info.valid:
            why = f"it {info.why}"
        elif _left(info, resumed_step, started_at):
            why = "it belongs to a course of training that was left"
        elif incident.kind in NUMERIC_TROUBLE and _not_before(info.step, incident.step):
            why = "it was written after the trouble began"
        elif refused and (str(info.path) == resumed_from or _not_before(info.step, refused_step)):
            why = "it could not be loaded"
        else:
            usable.append(info)
            continue
        rejected.append(SkippedAction(f"resuming from {info.path.name}", why))
    return ResumePoint(tuple(usable), _summed_up(rejected), spec.checkpoints is not None)


def _summed_up(rejected: Sequence[SkippedAction]) -> tuple[SkippedAction, ...]:
    """A folder may hold thousands that are of no use; nobody reads why of each."""
    told, rest = tuple(rejected[:MOST_TOLD]), rejected[MOST_TOLD:]
    if not rest:
        return told
    noun = "one more" if len(rest) == 1 else f"{len(rest)} more"
    return (*told, SkippedAction(f"resuming from {noun}", "of the last one, " + rest[-1].why))


def _left(info: CheckpointInfo, resumed_step: int | None, started_at: float | None) -> bool:
    """Beyond the point where this attempt began, but not written by it: what came before went back behind it."""
    if resumed_step is None or started_at is None or info.step is None or info.modified_at is None:
        return False
    return info.step > resumed_step and info.modified_at < started_at


def _not_before(step: int | None, limit: int | None) -> bool:
    return step is not None and limit is not None and step >= limit
