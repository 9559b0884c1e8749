"""Turns of a study's process, with commands of a person meanwhile."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from gputui.agent.commands.request import RefusedError
from gputui.core.config import Workspace
from gputui.store import commands
from gputui.store.run_states import RunState
from gputui.store.studies import StudyState, read_rungs, study_gpu_hours, study_wall_seconds
from gputui.studies import rows
from gputui.studies.failures import SAME_OF_SPACE
from gputui.studies.json_shapes import show_shape
from gputui.studies.spec import Budget, Dimension, PrunerSpec, SamplerSpec, StudySpec
from tests.homes import open_store
from tests.studies.desk import GRID, STUDY, Desk

RANDOM = replace(
    GRID,
    space=(Dimension("rate", "float", 0.0, 1.0),),
    sampler=SamplerSpec("random"),
    budget=Budget(trials=3),
    pruner=PrunerSpec("median", length=100, rungs=10, startup=0),
)

Begin = Callable[[StudySpec], Desk]


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    with closing(open_store(workspace.database)) as made:
        yield made


@pytest.fixture
def begin(workspace: Workspace, connection: sqlite3.Connection) -> Begin:
    return lambda spec: Desk(workspace, connection, spec)


def finish(desk: Desk, number: int, loss: float = 0.5) -> None:
    desk.report(number, 99, loss)
    desk.end(number, RunState.SUCCEEDED)


# --- what the agent or the store refuses ------------------------------------------------------------------------------


def recovering(desk: Desk) -> None:
    """Trial 0 met a fault of the machine after its first checkpoint, and is asked to resume."""
    desk.work()
    desk.report(0, 5, 0.5)
    desk.end(0, RunState.FAILED, incident="nccl_error")
    desk.process.turn()
    assert [one.verb for one in desk.pending()] == ["resume"]


def test_a_resume_that_no_checkpoint_allows_becomes_a_restart(begin: Begin) -> None:
    desk = begin(GRID)
    recovering(desk)
    desk.refuse("resume", kind=commands.NO_CHECKPOINT)
    desk.process.turn()
    assert [one.verb for one in desk.pending()] == ["restart"]


def test_a_resume_of_a_rerun_that_no_checkpoint_allows_becomes_a_restart(begin: Begin) -> None:
    pruner = PrunerSpec("median", length=100, rungs=10, startup=0)
    desk = begin(replace(RANDOM, budget=Budget(trials=2), parallel=1, rerun=2, pruner=pruner))
    desk.work()
    desk.report(0, 50, 0.5)
    desk.process.turn()
    desk.report(0, 99, 0.5)
    desk.end(0, RunState.SUCCEEDED)
    desk.work()
    for step, loss in ((9, 0.9), (19, 0.9), (60, 0.9)):
        desk.report(1, step, loss)
    desk.work()
    assert (desk.trial(1).state, desk.trial(2).origin) == ("pruned", "rerun")
    said = desk.connection.execute("SELECT subject, run_id, message FROM events WHERE kind = 'trial_ended'").fetchall()
    assert said == [
        (STUDY, None, "trial 0 · done, loss 0.5"), (STUDY, None, "trial 1 · pruned at step 9, loss 0.9")
    ]  # fmt: skip
    desk.report(2, 5, 0.5)
    desk.end(2, RunState.FAILED, incident="nccl_error")
    desk.process.turn()
    desk.refuse("resume", kind=commands.NO_CHECKPOINT)
    desk.process.turn()
    assert [asked.verb for asked in desk.pending()] == ["restart"]


def test_a_resume_that_the_agent_refuses_fails_the_trial(begin: Begin) -> None:
    desk = begin(GRID)
    recovering(desk)
    desk.refuse("resume")
    desk.process.turn()
    assert desk.trial(0).state.value == "failed" and not desk.pending("resume", "restart")


# --- rungs that pass while no process lives ---------------------------------------------------------------------------


def test_rungs_that_pass_between_two_looks_are_all_kept_and_judged(begin: Begin) -> None:
    desk = begin(RANDOM)
    desk.work()
    for step in range(40):
        desk.report(0, step, 0.9 if step < 10 else 0.5)
    desk.process.turn()
    found = [(one.rung, one.step, one.value) for one in read_rungs(desk.connection, STUDY)]
    assert found == [(1, 9, 0.9), (2, 19, 0.5), (3, 29, 0.5), (4, 39, 0.5)]
    finish(desk, 0)
    desk.process.turn()
    # No process lives while the other passes four rungs, of which the second is the first bad one.
    desk.restart()
    for step in range(40):
        desk.report(1, step, 0.8)
    desk.process.turn()
    assert (desk.trial(1).state.value, desk.trial(1).rung) == ("pruning", 2)
    assert [one.rung for one in read_rungs(desk.connection, STUDY, numbers=[1])] == [1, 2]


# --- the end of a study, and what a person asks for meanwhile ---------------------------------------------------------


def test_a_study_that_is_stopped_and_resumed_leaves_no_point_out(begin: Begin) -> None:
    desk = begin(GRID)
    desk.work()
    finish(desk, 0)
    desk.report(1, 5, 0.5)
    desk.work()
    assert desk.states() == ["complete", "running", "running"]
    desk.wall += 10
    desk.ask("study_stop")
    desk.work()
    assert (desk.study.state, desk.states()) == (StudyState.STOPPED, ["complete", "stopped", "stopped"])
    desk.wall += 10
    desk.ask("study_resume")
    desk.work()
    assert desk.states() == ["complete", "running", "running"]
    # Trial 1 had made a step and may have a checkpoint, trial 2 had not.
    verbs = [row[0] for row in desk.connection.execute("SELECT verb FROM commands WHERE verb IN ('resume', 'restart')")]
    assert sorted(verbs) == ["restart", "resume"]
    for _ in range(4):
        for number, state in enumerate(desk.states()):
            if state == "running":
                finish(desk, number)
        desk.work()
    assert desk.study.state is StudyState.FINISHED and desk.states() == ["complete"] * 4
    runs = desk.connection.execute("SELECT count(*), count(DISTINCT trial) FROM runs").fetchone()
    assert runs == (4, 4)


def test_more_trials_are_more_than_those_that_a_person_added(begin: Begin) -> None:
    desk = begin(replace(RANDOM, budget=Budget(trials=1), pruner=PrunerSpec("none"), parallel=1))
    desk.work()
    finish(desk, 0)
    desk.work()
    for number in (1, 2):
        desk.ask("study_enqueue", set={"rate": 0.5})
        desk.work()
        finish(desk, number)
        desk.work()
    assert desk.study.state is StudyState.FINISHED
    desk.ask("study_extend", trials=1)
    desk.work()
    assert desk.states() == ["complete"] * 3 + ["running"]
    rows = desk.connection.execute("SELECT message FROM events WHERE kind = 'study_moved' ORDER BY event_id")
    by_person = [text for (text,) in rows if not text.startswith("study finished: ")]
    assert by_person[0] == "study started by me"
    assert by_person[1:3] == ["study resumed for an added trial by me"] * 2
    assert by_person[3:] == ["study extended by me"]


def test_a_study_that_stops_takes_nothing_more(begin: Begin) -> None:
    desk = begin(replace(GRID, budget=Budget(trials=3)))
    desk.work()
    desk.ask("study_stop")
    asked = {"enqueue": {"set": {"rate": 0.1}}, "extend": {"trials": 1}, "resume": {}, "pause": {}}
    for verb, args in asked.items():
        with pytest.raises(RefusedError):
            desk.ask(f"study_{verb}", **args)
    assert len(desk.trials) == 2


@pytest.mark.parametrize("good", [None, 1])
@pytest.mark.parametrize("incident", [None, "nan_loss", "cuda_oom", "host_oom"])
def test_a_study_ends_whose_first_trials_all_diverge_or_do_not_fit(
    begin: Begin, good: int | None, incident: str | None
) -> None:
    desk = begin(replace(RANDOM, budget=Budget(trials=7), pruner=PrunerSpec("none"), parallel=1))
    while not desk.study.state.is_over:
        desk.work()
        number = len(desk.trials) - 1
        if desk.states()[-1] == "running":
            if number == good or incident in (None, "nan_loss"):
                desk.report(number, 99, 0.5 if number == good else math.nan)
            failure = None if number == good else incident
            desk.end(number, RunState.FAILED if failure else RunState.SUCCEEDED, incident=failure)
    assert len(desk.trials) == (SAME_OF_SPACE if good is None else 7)
    assert desk.study.state is (StudyState.FAILED if good is None else StudyState.FINISHED)


@pytest.mark.parametrize("incident", ["nan_loss", "import_error"])
@pytest.mark.parametrize("good", [True, False])
def test_a_living_trial_that_steps_well_keeps_its_study(begin: Begin, good: bool, incident: str) -> None:
    desk = begin(replace(RANDOM, budget=Budget(trials=5), pruner=PrunerSpec("none"), parallel=5))
    desk.work()
    desk.report(4, 7, 0.5)
    for number in range(4):
        desk.end(number, RunState.FAILED, incident=incident)
    desk.work()
    assert (desk.study.state, desk.states()[4]) == (StudyState.RUNNING, "running")
    desk.report(4, 8, 0.5 if good else math.nan)
    desk.end(4, RunState.SUCCEEDED)
    desk.work()
    is_failed = not good and incident == "nan_loss"
    assert desk.study.state is (StudyState.FAILED if is_failed else StudyState.FINISHED)
    assert desk.states()[4] == ("complete" if good else "failed")


# --- pruning and keeping by hand --------------------------------------------------------------------------------------


def test_a_trial_that_a_person_prunes_is_pruned_and_not_run_again(begin: Begin) -> None:
    desk = begin(replace(RANDOM, budget=Budget(trials=2), rerun=2, parallel=1))
    desk.work()
    desk.report(0, 29, 0.1)
    desk.process.turn()
    desk.ask("study_prune", trial=0)
    assert (desk.states(), desk.trial(0).request) == (["pruning"], "prune")
    desk.move(desk.trial(0).run_id or "", RunState.STOPPED)
    desk.work()
    assert (desk.states()[0], desk.trial(0).reason, desk.trial(0).rung) == ("pruned", "pruned by me", 3)
    finish(desk, 1, 0.9)
    desk.work()
    assert desk.study.state is StudyState.FINISHED and len(desk.trials) == 2


def test_a_trial_that_a_person_keeps_is_not_cut_short_until_it_is_left_to_the_pruner(begin: Begin) -> None:
    desk = begin(RANDOM)
    desk.work()
    desk.report(0, 99, 0.1)
    finish(desk, 0, 0.1)
    desk.work()
    desk.ask("study_keep", trial=1)
    desk.report(1, 49, 0.9)
    desk.work()
    assert (desk.states()[1], desk.trial(1).rung, desk.trial(1).request) == ("running", 5, "keep")
    desk.ask("study_keep", trial=1, keep=False)
    desk.report(1, 59, 0.9)
    desk.process.turn()
    assert (desk.states()[1], desk.trial(1).request) == ("pruning", None)


# --- the best trials run to the end -----------------------------------------------------------------------------------


def test_the_best_of_those_that_were_cut_short_run_to_the_end(begin: Begin) -> None:
    pruner = PrunerSpec("median", length=100, rungs=10, startup=0)
    desk = begin(replace(GRID, pruner=pruner, rerun=2, parallel=1))
    losses = {0.1: 0.5, 0.2: 0.9, 0.3: 0.6, 0.4: 0.8}
    while len(desk.trials) < 4 or desk.states()[3] in ("launching", "running"):
        desk.work()
        number = len(desk.trials) - 1
        desk.report(number, 49, losses[desk.trial(number).params["rate"]])
        desk.process.turn()
        if desk.trial(number).state.value == "running":
            finish(desk, number, losses[desk.trial(number).params["rate"]])
        desk.carry_out()
        desk.process.turn()
    assert desk.states()[:4] == ["complete", "pruned", "pruned", "pruned"]
    desk.work()
    again = desk.trial(4)
    assert (again.origin, again.parent, again.params) == ("rerun", 2, {"rate": 0.3})
    # Whatever it reports, it is not cut short another time.
    desk.report(4, 49, 5.0)
    desk.work()
    assert desk.trial(4).state.value == "running"
    finish(desk, 4, 0.55)
    desk.work()
    assert desk.study.state is StudyState.FINISHED and len(desk.trials) == 5


# --- trials of other processes, points by hand ------------------------------------------------------------------------


def test_a_trial_of_another_process_is_listed_and_not_run(begin: Begin) -> None:
    desk = begin(replace(RANDOM, budget=Budget(trials=1), parallel=1))
    desk.work()
    study = desk.process.journal.study
    asked = study.ask()
    assert asked.suggest_float("rate", 0.0, 1.0) <= 1.0
    desk.process.turn()
    assert [(one.origin, one.state.value, one.run_id is None) for one in desk.trials] == [
        ("sampled", "running", False), ("outside", "running", True),
    ]  # fmt: skip
    study.tell(asked.number, 0.125)
    finish(desk, 0)
    desk.work()
    assert (desk.trial(1).state.value, desk.trial(1).value, desk.trial(1).params) == ("complete", 0.125, asked.params)
    assert desk.study.state is StudyState.FINISHED and len(desk.trials) == 2


def test_what_json_does_not_know_is_a_word(begin: Begin) -> None:
    desk = begin(replace(RANDOM, budget=Budget(trials=1), parallel=1))
    desk.work()
    asked = desk.process.journal.study.ask()
    desk.process.journal.study.tell(asked.number, math.inf)
    desk.report(0, 15, math.inf)
    desk.process.turn()
    shape = show_shape(desk.connection, desk.study, desk.wall, None, desk.workspace, {})
    own, outside = json.loads(json.dumps(shape, allow_nan=False))["trials"]
    assert own["rungs"][0]["value"] == "Infinity" and outside["origin"] == "outside"


@pytest.mark.parametrize("paused", [True, False])
def test_a_point_by_hand_is_in_the_journal_once(begin: Begin, paused: bool) -> None:
    desk = begin(replace(RANDOM, budget=Budget(trials=1), parallel=1))
    desk.work()
    if paused:
        desk.ask("study_pause")
    desk.ask("study_enqueue", set={"rate": 0.25})
    with pytest.MonkeyPatch.context() as patched:
        # The process dies before it has taken the request off the table.
        patched.setattr(desk.process.view, "update", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            desk.process.turn()
    desk.restart()
    desk.process.turn()
    desk.process.turn()
    assert [(one.origin, one.params.get("rate") == 0.25) for one in desk.trials] == [
        ("sampled", False), ("enqueued", True),
    ]  # fmt: skip
    assert not rows.requested_trials(desk.connection, STUDY)


def test_a_verdict_that_only_the_journal_has_is_taken_over(begin: Begin) -> None:
    desk = begin(RANDOM)
    desk.work()
    finish(desk, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(desk.process, "_end", lambda trial, verdict: desk.process.journal.end(0, verdict, 5.0))
        desk.process.turn()
    assert desk.trial(0).state.value == "running"
    desk.restart()
    desk.process.turn()
    assert (desk.trial(0).state.value, desk.trial(0).value, desk.trial(0).ended_at) == ("complete", 0.5, 5.0)


def test_a_journal_that_was_lost_is_made_again_from_the_table(begin: Begin) -> None:
    desk = begin(replace(RANDOM, parallel=1))
    desk.work()
    finish(desk, 0)
    desk.work()
    (desk.workspace.studies / STUDY / rows.JOURNAL_FILE).unlink()
    desk.restart()
    desk.work()
    found = desk.process.journal.trials()
    assert [(one.state.name, one.params) for one in found] == [
        ("COMPLETE", desk.trial(0).params), ("RUNNING", desk.trial(1).params),
    ]  # fmt: skip
    assert len(found[0].intermediate_values) == 10


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_a_run_that_is_removed_still_counts_for_the_budget(begin: Begin) -> None:
    desk = begin(replace(GRID, budget=Budget(gpu_hours=1.0)))
    desk.work()
    run_id = desk.trial(0).run_id or ""
    desk.connection.execute('UPDATE attempts SET gpus = \'["a", "b"]\' WHERE run_id = ?', (run_id,))
    desk.wall += 900
    finish(desk, 0)
    desk.work()
    assert study_gpu_hours(desk.connection, STUDY, desk.wall) == pytest.approx(0.5)
    desk.ask("rm", run_id)
    assert study_gpu_hours(desk.connection, STUDY, desk.wall) == pytest.approx(0.5)
    assert desk.trial(0).run_id is None and desk.trial(0).state.value == "complete"


def test_the_time_of_a_study_that_was_over_or_paused_does_not_count(begin: Begin) -> None:
    desk = begin(replace(GRID, budget=Budget(wall_seconds=100.0)))
    desk.work()
    desk.wall += 60
    desk.ask("study_pause")
    desk.wall += 1000
    desk.ask("study_resume")
    assert study_wall_seconds(desk.connection, STUDY, desk.wall) == pytest.approx(60)
    desk.wall += 41
    desk.work()
    assert desk.study.state is StudyState.FINISHED and desk.states() == ["stopped"] * 2
    desk.wall += 5000
    desk.ask("study_extend", wall_seconds=50.0)
    desk.work()
    assert desk.study.state is StudyState.RUNNING and desk.states().count("running") == 2
    desk.wall += 50
    desk.work()
    assert desk.study.state is StudyState.FINISHED


# --- what cannot be read ----------------------------------------------------------------------------------------------


def test_a_study_whose_specification_is_damaged_pauses_and_can_be_stopped(begin: Begin) -> None:
    desk = begin(GRID)
    desk.work()
    (desk.workspace.studies / STUDY / rows.SPEC_FILE).write_text("{")
    desk.restart()
    desk.process.turn()
    assert desk.study.state is StudyState.PAUSED and rows.SPEC_FILE in (desk.study.reason or "")
    finish(desk, 0)
    desk.work()
    assert desk.states() == ["complete", "running"]
    desk.ask("study_stop")
    desk.work()
    assert (desk.study.state, desk.states()) == (StudyState.STOPPED, ["complete", "stopped"])
