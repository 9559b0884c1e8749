"""The catalogue, kind by kind: what is left of an attempt, what it is taken for, and what happens next."""

from __future__ import annotations

from pathlib import Path

from gputui.recovery.classify import classify, outcome
from gputui.recovery.decide import decide
from gputui.recovery.effects import AppliedAction
from gputui.recovery.kinds import KINDS
from gputui.recovery.plans import AttemptReach, FailedAttempt, PastDecision, RecoveryPlan
from gputui.recovery.policies import POLICIES
from gputui.runs.checkpoint_formats import CheckpointInfo
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec, Scalar
from tests.faults.drills import DRILLS, LAST_STEP, Drill

PARAMS: dict[str, Scalar] = {
    "batch_size": 16,
    "grad_accum": 3,
    "gradient_checkpointing": False,
    "lr": 0.1,
    "grad_clip": 1.0,
    "num_workers": 4,
}
SPEC = RunSpec(
    name="job",
    launcher="torchrun",
    program=("t.py",),
    workdir="/w",
    python="/p",
    nproc=2,
    params=PARAMS,
    metrics=(MetricsSpec("jsonl", "/m"),),
    checkpoints=CheckpointSpec("/c", "step_*.pt", ("--resume", "{checkpoint}")),
)
SAVED = [
    CheckpointInfo(
        Path(f"/c/step_{step:08d}.pt"), step, valid=True, why="matches its SHA-256", size_bytes=10, place=step
    )
    for step in (40, 30)
]
# Kinds that only follow from a run's history, not from one failure.
OF_HISTORY = {"crash_loop"}


def planned(
    drill: Drill, folder: Path, history: tuple[PastDecision, ...] = (), best_before: int | None = None
) -> RecoveryPlan:
    evidence = drill.evidence_in(folder)
    progress = AttemptReach(last_step=evidence.last_step, best_step_before=best_before)
    # The checkpoint that could not be loaded is struck off before the decision.
    saved = SAVED[1:] if drill.kind == "corrupt_checkpoint" else SAVED
    failed = FailedAttempt(
        run_id="job-1",
        number=len(history) + 1,
        incident=classify(evidence),
        reach=progress,
        spec=SPEC,
        params=PARAMS,
        policy=POLICIES["standard"],
        history=history,
        checkpoints=saved,
    )
    return decide(failed)


def end_of(drill: Drill, folder: Path) -> dict[str, object]:
    """The end of a drill's attempt, as classified."""
    evidence = drill.evidence_in(folder)
    incident = classify(evidence)
    plan = planned(drill, folder)
    return {
        "outcomes": [outcome(evidence, stop_intended=intended) for intended in (False, True)],
        "incident": (incident.kind, incident.rank),
        "is told": any(drill.evidence in line for line in incident.evidence_lines) and bool(plan.reason),
        "plan": (plan.verdict, plan.changed, plan.params, plan.resume_from),
        "actions": tuple(action.name for action in plan.actions if isinstance(action, AppliedAction)),
    }


def test_every_kind_has_a_drill() -> None:
    assert {drill.kind for drill in DRILLS} | OF_HISTORY == set(KINDS)


def test_every_drill_is_known_for_what_it_is_and_answered(tmp_path: Path) -> None:
    wrong = {}
    for drill in DRILLS:
        resumes = None if drill.resumes is None else f"/c/step_{drill.resumes:08d}.pt"
        expected = {
            "outcomes": ["failed", "stopped"],
            "incident": (drill.kind, drill.rank),
            "is told": True,
            "plan": (drill.verdict, drill.changed, {**PARAMS, **drill.changed}, resumes),
            "actions": drill.actions if drill.verdict == "retry" else (),
        }
        end = end_of(drill, tmp_path / drill.kind)
        if end != expected:
            wrong[drill.kind] = {key: (end[key], expected[key]) for key in expected if end[key] != expected[key]}
    assert wrong == {}


def test_the_same_again_and_again_without_progress_ends(tmp_path: Path) -> None:
    """Whatever the kind: eight attempts that never get further are the most that the standard policy starts."""
    endless = []
    for drill in (drill for drill in DRILLS if drill.verdict == "retry"):
        history: tuple[PastDecision, ...] = ()
        for attempt in range(1, 9):
            folder = tmp_path / drill.kind / str(attempt)
            best_before = None if attempt == 1 else LAST_STEP
            plan = planned(drill, folder, history, best_before)
            if plan.verdict == "stop":
                break
            names = tuple(action.name for action in plan.actions)
            past = PastDecision(
                attempt,
                drill.kind,
                plan.rung,
                verdict="retry",
                progressed=attempt == 1,
                changed=bool(plan.changed),
                actions=names,
            )
            history = (*history, past)
        if plan.verdict != "stop" or not plan.reason:
            endless.append(drill.kind)
    assert endless == []


def test_a_crash_loop_is_stopped_whatever_its_incidents_are_called(tmp_path: Path) -> None:
    kinds = ("killed", "peer_lost", "shim_lost")
    history = tuple(
        PastDecision(number, kind, 0, verdict="retry", progressed=False, changed=False, actions=("restart",))
        for number, kind in enumerate(kinds, 1)
    )
    drill = next(drill for drill in DRILLS if drill.kind == "killed")
    plan = planned(drill, tmp_path, history, LAST_STEP)
    assert (plan.verdict, plan.because) == ("stop", "crash_loop"), plan
