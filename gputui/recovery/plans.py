"""The input and the result of a decision: a failed attempt, and the plan for the next one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gputui.recovery.actions import ELSEWHERE, NO_CHECKPOINTS
from gputui.recovery.checkpoints.ledger import rolled_back
from gputui.recovery.checkpoints.resumable import WORKED_SECONDS
from gputui.recovery.classify import Incident
from gputui.recovery.effects import NO_EFFECT, AppliedAction, Effect, MachineContext, Result, SkippedAction
from gputui.recovery.policies import Policy
from gputui.recovery.resumptions import Resumption
from gputui.runs.checkpoint_formats import CheckpointInfo
from gputui.runs.spec import RunSpec, Scalar
from gputui.store.checkpoints import CheckpointRow

MOST_SHOWN = 3  # rejected checkpoints in a plan's reason
UNDO = "undo"
"""The action that reverts the changes of another one; ladders cannot name it."""

Verdict = Literal["retry", "stop"]
Because = Literal[
    "ladder", "exhausted", "off", "deterministic", "before_first_step", "attempts", "crash_loop",
    "no_difference", "unreadable", "doubted", "not_resumed",
]  # fmt: skip


class PastDecision(Struct, frozen=True):
    """An earlier decision of the same run.

    Attributes:
        attempt: at whose end it was made.
        kind: of the incident, a name in `gputui.recovery.kinds`.
        rung: the position on the ladder, counted from 0.
        progressed: that attempt got further than those before it.
        changed: the decision changed parameters.
        actions: the names of the applied actions.
        replaced: the former values of changed parameters.
        step: where the incident happened; None if unknown.
        detail: what tells the incident from others of its kind.
    """

    attempt: int
    kind: str
    rung: int
    verdict: Verdict
    progressed: bool
    changed: bool
    actions: tuple[str, ...] = ()
    replaced: Mapping[str, Scalar] = msgspec.field(default_factory=dict)
    step: int | None = None
    detail: str = ""


class AttemptReach(Struct, frozen=True):
    """The reach of the ended attempt. Unknown is None.

    Attributes:
        last_step: its last step.
        best_step_before: the furthest step of the attempts before it.
        new_checkpoint: it wrote a checkpoint.
        further_checkpoint: it wrote one beyond those before it, where steps start again with every epoch or attempt.
        ran_seconds: its duration.
        resumption: where it began.
    """

    last_step: int | None = None
    best_step_before: int | None = None
    new_checkpoint: bool = False
    further_checkpoint: bool = False
    ran_seconds: float | None = None
    resumption: Resumption | None = None

    @property
    def made(self) -> bool:
        """True if the attempt got further than every one before it."""
        if self.last_step is None:
            return self.new_checkpoint
        is_furthest = self.best_step_before is None or self.last_step > self.best_step_before
        return self.further_checkpoint or is_furthest

    def has_begun(self, spec: RunSpec) -> bool:
        has_shown = self.last_step is not None or self.new_checkpoint
        is_silent = not spec.names_metrics and self.best_step_before is None
        return has_shown or (is_silent and (self.ran_seconds or 0.0) >= WORKED_SECONDS)


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that ended with an incident.

    Attributes:
        number: the attempt's in its run.
        params: the parameters that it ran with.
        history: the decisions since a person last started the run, oldest first
            (`gputui.recovery.past_decisions`).
        checkpoints: those of the run's lineage that may be resumed from, best first, and those that
            are passed over; None if only the run's target sees them.
        unreadable: why they cannot be read now.
        doubted: which of them may be another run's, or incomplete.
        machine: the state of the machine.
    """

    run_id: str
    number: int
    incident: Incident
    reach: AttemptReach
    spec: RunSpec
    params: Mapping[str, Scalar]
    policy: Policy
    history: Sequence[PastDecision] = ()
    checkpoints: Sequence[CheckpointInfo] | None = ()
    unreadable: str | None = None
    doubted: str | None = None
    machine: MachineContext = msgspec.field(default_factory=MachineContext)

    @property
    def step(self) -> int | None:
        """The step at which it failed; that of its incident as it is stored."""
        if self.incident.step is None:
            return self.reach.last_step
        return self.incident.step


class RecoveryPlan(Struct, frozen=True):
    """The decision and its reason.

    Attributes:
        verdict: whether another attempt follows.
        actions: applied and skipped actions in the order of the ladder.
        reason: one sentence without its full stop.
        because: the reason as a keyword for programs.
        params: all parameters of the next attempt.
        rung: the position on the ladder, counted from 0.
        changed: the parameters that differ from those of the failed attempt.
        resume_from: the path of the checkpoint to begin from; None for the start of the training.
        delay_seconds: the time until the next attempt may start.
        effect: effects besides changed parameters.
    """

    verdict: Verdict
    reason: str
    because: Because
    params: dict[str, Scalar]
    rung: int = 0
    actions: tuple[Result, ...] = ()
    changed: dict[str, Scalar] = msgspec.field(default_factory=dict)
    resume_from: str | None = None
    delay_seconds: float = 0.0
    effect: Effect = NO_EFFECT

    def applied_to(self, rows: Sequence[CheckpointRow]) -> Sequence[CheckpointRow]:
        """The ledger after the plan: a rollback leaves what was written after its checkpoint."""
        applied = {action.name for action in self.actions if isinstance(action, AppliedAction)}
        if "rollback" not in applied or self.resume_from is None:
            return rows
        why = f"was left by a rollback to {Path(self.resume_from).name}"
        return rolled_back(rows, self.resume_from, why)

    def actions_json(self) -> list[dict[str, Any]]:
        """The actions in their stored form."""
        return [action.to_json() for action in self.actions]


class ResumePoint(Struct, frozen=True):
    """The checkpoints that may be resumed from, best first, and why others are rejected.

    Attributes:
        configured: the profile names checkpoints.
        chosen_there: only the run's target sees them, and chooses when the attempt begins.
        is_passed: an argument tells the script to resume; else only $GPUTUI_CHECKPOINT names the checkpoint, which
            the script may not read.
    """

    usable: tuple[CheckpointInfo, ...]
    rejected: tuple[SkippedAction, ...]
    configured: bool
    chosen_there: bool
    is_passed: bool

    @classmethod
    def of(cls, checkpoints: Sequence[CheckpointInfo] | None, spec: RunSpec) -> ResumePoint:
        """Split the checkpoints of a choice (`gputui.recovery.checkpoints.choices`) into usable and rejected
        ones; None if only the target sees them."""
        infos = checkpoints or ()
        rejected = [
            SkippedAction(f"resuming from {info.path.name}", f"it {info.why}") for info in infos if not info.valid
        ]
        if len(rejected) > MOST_SHOWN:
            more = f"resuming from {len(rejected) - MOST_SHOWN} more"
            rejected[MOST_SHOWN:] = [SkippedAction(more, f"of the last one, {rejected[-1].why}")]
        templates = (*(spec.args or ()), *spec.program, *spec.env.values())
        is_passed = bool(spec.checkpoints and spec.checkpoints.resume)
        return cls(
            tuple(info for info in infos if info.valid),
            tuple(rejected),
            spec.checkpoints is not None,
            chosen_there=checkpoints is None,
            is_passed=is_passed or any("{checkpoint}" in text for text in templates),
        )

    def path(self, back: int) -> str | None:
        """The checkpoint ``back`` places before the best; None for a start from scratch."""
        if back < len(self.usable):
            return str(self.usable[back].path)
        return None

    def rollback(self, count: int) -> tuple[Result, int]:
        """Go back ``count`` checkpoints before the best, or as many as there are.

        Returns:
            The result of the action, and the index of the checkpoint among the usable ones.
        """
        best = self.usable[0].place if self.usable else 0
        older = [index for index, info in enumerate(self.usable) if info.place < best]
        if not self.configured:
            return SkippedAction("rollback", NO_CHECKPOINTS), 0
        if self.chosen_there:
            return SkippedAction("rollback", ELSEWHERE), 0
        if not older:
            return SkippedAction("rollback", "there is no older valid checkpoint"), 0
        back = min(count, len(older))
        steps = "one checkpoint" if back == 1 else f"{back} checkpoints"
        note = f"went back {steps} before the newest usable one"
        return AppliedAction("rollback", note), older[back - 1]

    def describe(self, back: int) -> str:
        """The start of the next attempt, as the end of a sentence."""
        if back < len(self.usable):
            name = self.usable[back].path.name
            if self.is_passed:
                return f"resuming from {name}"
            return f"starting with {name} in $GPUTUI_CHECKPOINT"
        if self.configured and self.chosen_there:
            return "resuming from the newest valid checkpoint on its target"
        if not self.configured:
            return f"starting it again without a checkpoint because {NO_CHECKPOINTS}"
        return "starting from the beginning because there is no valid checkpoint"
