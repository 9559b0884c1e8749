"""The catalogue, kind by kind: what is left of an attempt, what it is taken for, and what happens next."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.recovery.actions import AppliedAction
from gputui.recovery.checkpoints import CheckpointInfo
from gputui.recovery.classify import classify, outcome
from gputui.recovery.decide import AttemptReach, PastDecision, RecoveryPlan, decide
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import POLICIES
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
    CheckpointInfo(Path(f"/c/step_{step:08d}.pt"), step, True, "matches its SHA-256", 10, 500.0) for step in (40, 30)
]
# Verdicts of gputui's own, which nothing but a history leads to.
OF_HISTORY = {"crash_loop"}


def test_every_kind_has_a_drill() -> None:
    assert {drill.kind for drill in DRILLS} | OF_HISTORY == set(KINDS)


def planned(
    drill: Drill, folder: Path, history: tuple[PastDecision, ...] = (), best_before: int | None = None
) -> RecoveryPlan:
    evidence = drill.left(folder)
    progress = AttemptReach(last_step=evidence.last_step, best_step_before=best_before)
    # The one that could not be loaded is struck off before anything is decided.
    saved = SAVED[1:] if drill.kind == "corrupt_checkpoint" else SAVED
    return decide(
        classify(evidence),
        history,
        progress,
        SPEC,
        PARAMS,
        POLICIES["standard"],
        saved,
        run_id="job-1",
        attempt=len(history) + 1,
    )


@pytest.mark.parametrize("drill", DRILLS, ids=[drill.kind for drill in DRILLS])
def test_drill(drill: Drill, tmp_path: Path) -> None:
    evidence = drill.left(tmp_path)
    assert outcome(evidence, stop_intended=False) == "failed"
    incident = classify(evidence)
    assert (incident.kind, incident.rank) == (drill.kind, drill.rank)
    assert any(drill.evidence in line for line in incident.evidence_lines), incident.evidence_lines
    plan = planned(drill, tmp_path)
    assert (plan.verdict, plan.changed) == (drill.verdict, drill.changed), plan.reason
    done = tuple(action.name for action in plan.actions if isinstance(action, AppliedAction))
    assert done == (drill.actions if drill.verdict == "retry" else ())
    assert plan.params == {**PARAMS, **drill.changed}
    assert plan.resume_from == (None if drill.resumes is None else f"/c/step_{drill.resumes:08d}.pt"), plan.reason
    assert plan.reason


@pytest.mark.parametrize("drill", DRILLS, ids=[drill.kind for drill in DRILLS])
def test_a_stop_that_a_person_asked_for_is_no_incident(drill: Drill, tmp_path: Path) -> None:
    assert outcome(drill.left(tmp_path), stop_intended=True) == "stopped"


@pytest.mark.parametrize(
    "drill", [drill for drill in DRILLS if drill.verdict == "retry"], ids=lambda drill: str(drill.kind)
)
def test_the_same_again_and_again_without_progress_ends(drill: Drill, tmp_path: Path) -> None:
    """Whatever the kind: eight attempts that never get further are the most that the standard policy starts."""
    history: tuple[PastDecision, ...] = ()
    for attempt in range(1, 9):
        plan = planned(drill, tmp_path / str(attempt), history, None if attempt == 1 else LAST_STEP)
        if plan.verdict == "stop":
            break
        names = tuple(action.name for action in plan.actions)
        past = PastDecision(attempt, drill.kind, plan.rung, "retry", attempt == 1, bool(plan.changed), names)
        history = (*history, past)
    assert plan.verdict == "stop"
    assert plan.reason


def test_a_crash_loop_is_stopped_whatever_its_incidents_are_called(tmp_path: Path) -> None:
    kinds = ("killed", "peer_lost", "shim_lost")
    history = tuple(
        PastDecision(number, kind, 0, "retry", False, False, ("restart",)) for number, kind in enumerate(kinds, 1)
    )
    drill = next(drill for drill in DRILLS if drill.kind == "killed")
    plan = planned(drill, tmp_path, history, LAST_STEP)
    assert (plan.verdict, plan.because) == ("stop", "crash_loop"), plan
