"""From which checkpoint the next attempt may go on, of those that the ledger allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.recovery.actions import AppliedAction, Result, SkippedAction
from gputui.recovery.checkpoints import CheckpointInfo
from gputui.runs.spec import RunSpec

# Of checkpoints that cannot be resumed from.
MOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoints that may be resumed from, the best first, and why others are not among them.

    ``configured`` says whether the profile names checkpoints at all.
    """

    usable: tuple[CheckpointInfo, ...]
    rejected: tuple[SkippedAction, ...]
    configured: bool

    def path(self, back: int) -> str | None:
        """The checkpoint ``back`` places before the best, None where there is none: the beginning."""
        return str(self.usable[back].path) if back < len(self.usable) else None

    def rollback(self, count: int) -> tuple[Result, int]:
        """Going back ``count`` checkpoints further than the best, or as far as there are any that are older."""
        if not self.configured:
            return SkippedAction("rollback", "the profile names no checkpoints"), 0
        older = [place for place in range(1, len(self.usable)) if self._is_older(place)]
        if not older:
            return SkippedAction("rollback", "there is no older valid checkpoint"), 0
        back = min(count, len(older))
        steps = "one checkpoint" if back == 1 else f"{back} checkpoints"
        return AppliedAction("rollback", f"went back {steps} before the newest usable one"), older[back - 1]

    def _is_older(self, place: int) -> bool:
        best, other = self.usable[0].modified_at, self.usable[place].modified_at
        return best is None or other is None or other <= best

    def describe(self, back: int) -> str:
        """Where the next attempt begins, as the end of a sentence."""
        if back < len(self.usable):
            return f"resuming from {self.usable[back].path.name}"
        if not self.configured:
            return "starting from the beginning because the profile names no checkpoints"
        return "starting from the beginning because there is no valid checkpoint"


def resume_points(checkpoints: Sequence[CheckpointInfo], spec: RunSpec) -> ResumePoint:
    """``checkpoints`` as `gputui.recovery.checkpoint_search.choose` gives them: the usable ones in the order in which
    they may be taken, and those that are passed over, with the reason."""
    usable = tuple(info for info in checkpoints if info.valid)
    rejected = [
        SkippedAction(f"resuming from {info.path.name}", f"it {info.why}") for info in checkpoints if not info.valid
    ]
    return ResumePoint(usable, _summed_up(rejected), spec.checkpoints is not None)


def _summed_up(rejected: Sequence[SkippedAction]) -> tuple[SkippedAction, ...]:
    """A folder may hold thousands that are of no use; nobody reads why of each."""
    told, rest = tuple(rejected[:MOST_TOLD]), rejected[MOST_TOLD:]
    if not rest:
        return told
    noun = "one more" if len(rest) == 1 else f"{len(rest)} more"
    return (*told, SkippedAction(f"resuming from {noun}", "of the last one, " + rest[-1].why))
