"""Past decisions and the progress of attempts, from rows."""

from __future__ import annotations

from gputui.recovery.past_decisions import past_decisions, progress_of, without_unsound_steps
from gputui.recovery.plans import PastDecision
from gputui.recovery.run_history import person_started_at
from gputui.store.checkpoints import CheckpointRow
from tests.recovery.histories import LAUNCH, Lines, attempt, decision, history, incident, move, saved


def test_decisions_become_what_the_policy_needs() -> None:
    attempts = [attempt(1, at=2.0, last=40), attempt(2, at=100.0, last=40), attempt(3, at=200.0, last=55)]
    full = "rank 1 ran out of GPU memory (tried to allocate 2.00 GiB, train.py:18)"
    incidents = [incident(1, 1, "cuda_oom", summary=full), incident(2, 2, "killed", step=None)]
    shrink = {"action": "shrink_batch", "applied": True, "changes": [], "note": ""}
    skipped = {"action": "gradient_checkpointing", "applied": False, "changes": [], "note": ""}
    decisions = [
        decision(1, 1, at=60.0, params={"batch_size": 12}, actions=(shrink, skipped)),
        decision(2, 2, at=160.0, rung=1),
    ]
    assert past_decisions(history(attempts, incidents, decisions)) == [
        PastDecision(
            1,
            "cuda_oom",
            0,
            verdict="retry",
            progressed=True,
            changed=True,
            actions=("shrink_batch",),
            replaced={},
            step=40,
            detail="tried to allocate 2.00 GiB, train.py:18",
        ),
        PastDecision(
            2, "killed", 1, verdict="retry", progressed=False, changed=False, actions=("restart",), detail="SIGKILL"
        ),
    ]


def test_only_what_happened_since_a_person_started_it_counts() -> None:
    attempts = [attempt(1, at=2.0, last=90), attempt(2, at=500.0, last=40)]
    incidents = [incident(1, 1), incident(2, 2)]
    decisions = [decision(1, 1, at=60.0, verdict="stop"), decision(2, 2, at=560.0)]
    moves = [LAUNCH, move(60.0, "recovering", "queued", "agent"), move(400.0, "failed", "queued", cause="resume")]
    assert person_started_at(moves) == 400.0
    past = past_decisions(history(attempts, incidents, decisions, moves))
    # Attempt 2 reached less than attempt 1, but that was before a person took a new start.
    assert [(entry.attempt, entry.progressed) for entry in past] == [(2, True)]
    progress = progress_of(history(attempts, transitions=moves), 2, ended_at=560.0)
    assert progress.best_step_before is None
    assert progress.made


def test_without_steps_a_checkpoint_of_its_own_is_progress() -> None:
    attempts = [attempt(1, at=2.0), attempt(2, at=100.0, resumed_from="/c/step_40.pt", resumed_step=40)]

    def has_progress(*rows: CheckpointRow) -> bool:
        return progress_of(history(attempts, checkpoints=rows), 2, ended_at=190.0).made

    assert has_progress(saved("/c/step_40.pt", 1), saved("/c/step_60.pt", 2))
    assert not has_progress(saved("/c/step_60.pt", 2, verdict="invalid"))
    assert not has_progress(saved("/c/step_60.pt", 2, origin="foreign"))
    assert not has_progress(saved("/c/step_40.pt", 1))


def test_steps_with_a_loss_that_is_not_finite_are_no_progress() -> None:
    attempts = [attempt(1, at=2.0, last=45), attempt(2, at=100.0, last=46), attempt(3, at=200.0, last=47)]
    sound = without_unsound_steps(attempts, Lines(unsound={2: 41, 3: 41}, losses={1: [1.0]}))
    assert [row.last_step for row in sound] == [45, 40, 40]
    past = past_decisions(history(sound, [incident(1, 2, "nan_loss")], [decision(1, 2, at=160.0)]))
    assert not past[0].progressed
    assert not progress_of(history(sound), 3, ended_at=260.0).made
