"""Turns of a study's process, with commands of a person meanwhile."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gputui.agent.commands.request import RefusedError
from gputui.store import commands
from gputui.store.run_states import RunState
from gputui.store.studies import StudyState, read_rungs, study_gpu_hours, study_wall_seconds
from gputui.studies import rows
from gputui.studies.failures import SAME_OF_SPACE
from gputui.studies.json_shapes import show_shape
from gputui.studies.spec import Budget, Dimension, PrunerSpec, SamplerSpec
from tests.studies.conftest import GRID, STUDY, Begin, StudyHome

RANDOM = replace(
    GRID,
    space=(Dimension("rate", "float", 0.0, 1.0),),
    sampler=SamplerSpec("random"),
    budget=Budget(trials=3),
    pruner=PrunerSpec("median", length=100, rungs=10, startup=0),
)


def finish(home: StudyHome, number: int, loss: float = 0.5) -> None:
    home.report(number, 99, loss)
    home.end(number, RunState.SUCCEEDED)


# --- what the agent or the store refuses ------------------------------------------------------------------------------


def recovering(home: StudyHome) -> None:
    """Trial 0 met a fault of the machine after its first checkpoint, and is asked to resume."""
    home.work()
    home.report(0, 5, 0.5)
    home.end(0, RunState.FAILED, incident="nccl_error")
    home.process.turn()
    assert [command.verb for command in home.pending()] == ["resume"]


def test_a_resume_that_no_checkpoint_allows_becomes_a_restart(begin: Begin) -> None:
    home = begin(GRID)
    recovering(home)
    home.refuse("resume", kind=commands.NO_CHECKPOINT)
    home.process.turn()
    assert [command.verb for command in home.pending()] == ["restart"]


def test_a_resume_of_a_rerun_that_no_checkpoint_allows_becomes_a_restart(begin: Begin) -> None:
    pruner = PrunerSpec("median", length=100, rungs=10, startup=0)
    home = begin(replace(RANDOM, budget=Budget(trials=2), parallel=1, rerun=2, pruner=pruner))
    home.work()
    home.report(0, 50, 0.5)
    home.process.turn()
    home.report(0, 99, 0.5)
    home.end(0, RunState.SUCCEEDED)
    home.work()
    for step, loss in ((9, 0.9), (19, 0.9), (60, 0.9)):
        home.report(1, step, loss)
    home.work()
    assert (home.trial(1).state, home.trial(2).origin) == ("pruned", "rerun")
    said = home.connection.execute("SELECT subject, run_id, message FROM events WHERE kind = 'trial_ended'").fetchall()
    assert said == [
        (STUDY, None, "trial 0 · done, loss 0.5"), (STUDY, None, "trial 1 · pruned at step 9, loss 0.9")
    ]  # fmt: skip
    home.report(2, 5, 0.5)
    home.end(2, RunState.FAILED, incident="nccl_error")
    home.process.turn()
    home.refuse("resume", kind=commands.NO_CHECKPOINT)
    home.process.turn()
    assert [command.verb for command in home.pending()] == ["restart"]


def test_a_resume_that_the_agent_refuses_fails_the_trial(begin: Begin) -> None:
    home = begin(GRID)
    recovering(home)
    home.refuse("resume")
    home.process.turn()
    assert home.trial(0).state.value == "failed"
    assert not home.pending("resume", "restart")


# --- rungs that pass while no process lives ---------------------------------------------------------------------------


def test_rungs_that_pass_between_two_looks_are_all_kept_and_judged(begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    for step in range(40):
        home.report(0, step, 0.9 if step < 10 else 0.5)
    home.process.turn()
    rungs = [(rung.rung, rung.step, rung.value) for rung in read_rungs(home.connection, STUDY)]
    assert rungs == [(1, 9, 0.9), (2, 19, 0.5), (3, 29, 0.5), (4, 39, 0.5)]
    finish(home, 0)
    home.process.turn()
    # While no study process lives, the trial passes four rungs; the second is the first at which it is pruned.
    home.restart()
    for step in range(40):
        home.report(1, step, 0.8)
    home.process.turn()
    assert (home.trial(1).state.value, home.trial(1).rung) == ("pruning", 2)
    assert [rung.rung for rung in read_rungs(home.connection, STUDY, numbers=[1])] == [1, 2]


# --- the end of a study, and what a person asks for meanwhile ---------------------------------------------------------


def test_a_study_that_is_stopped_and_resumed_leaves_no_point_out(begin: Begin) -> None:
    home = begin(GRID)
    home.work()
    finish(home, 0)
    home.report(1, 5, 0.5)
    home.work()
    assert home.states() == ["complete", "running", "running"]
    home.now += 10
    home.ask("study_stop")
    home.work()
    assert (home.study.state, home.states()) == (StudyState.STOPPED, ["complete", "stopped", "stopped"])
    home.now += 10
    home.ask("study_resume")
    home.work()
    assert home.states() == ["complete", "running", "running"]
    # Trial 1 had made a step and may have a checkpoint, trial 2 had not.
    verbs = [row[0] for row in home.connection.execute("SELECT verb FROM commands WHERE verb IN ('resume', 'restart')")]
    assert sorted(verbs) == ["restart", "resume"]
    for _ in range(4):
        for number, state in enumerate(home.states()):
            if state == "running":
                finish(home, number)
        home.work()
    assert home.study.state is StudyState.FINISHED
    assert home.states() == ["complete"] * 4
    runs = home.connection.execute("SELECT count(*), count(DISTINCT trial) FROM runs").fetchone()
    assert runs == (4, 4)


def test_more_trials_are_more_than_those_that_a_person_added(begin: Begin) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=1), pruner=PrunerSpec("none"), parallel=1))
    home.work()
    finish(home, 0)
    home.work()
    for number in (1, 2):
        home.ask("study_enqueue", set={"rate": 0.5})
        home.work()
        finish(home, number)
        home.work()
    assert home.study.state is StudyState.FINISHED
    home.ask("study_extend", trials=1)
    home.work()
    assert home.states() == ["complete"] * 3 + ["running"]
    rows = home.connection.execute("SELECT message FROM events WHERE kind = 'study_moved' ORDER BY event_id")
    by_person = [text for (text,) in rows if not text.startswith("study finished: ")]
    assert by_person[0] == "study started by me"
    assert by_person[1:3] == ["study resumed for an added trial by me"] * 2
    assert by_person[3:] == ["study extended by me"]


def test_a_study_that_stops_takes_nothing_more(begin: Begin) -> None:
    home = begin(replace(GRID, budget=Budget(trials=3)))
    home.work()
    home.ask("study_stop")
    requests = {"enqueue": {"set": {"rate": 0.1}}, "extend": {"trials": 1}, "resume": {}, "pause": {}}
    for verb, args in requests.items():
        with pytest.raises(RefusedError):
            home.ask(f"study_{verb}", **args)
    assert len(home.trials) == 2


@pytest.mark.parametrize("good", [None, 1])
@pytest.mark.parametrize("incident", [None, "nan_loss", "cuda_oom", "host_oom"])
def test_a_study_ends_whose_first_trials_all_diverge_or_do_not_fit(
    begin: Begin, good: int | None, incident: str | None
) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=7), pruner=PrunerSpec("none"), parallel=1))
    while not home.study.state.is_over:
        home.work()
        number = len(home.trials) - 1
        if home.states()[-1] == "running":
            if number == good or incident in (None, "nan_loss"):
                home.report(number, 99, 0.5 if number == good else math.nan)
            failure = None if number == good else incident
            home.end(number, RunState.FAILED if failure else RunState.SUCCEEDED, incident=failure)
    expected = SAME_OF_SPACE if good is None else 7
    assert len(home.trials) == expected
    assert home.study.state is (StudyState.FAILED if good is None else StudyState.FINISHED)


@pytest.mark.parametrize("incident", ["nan_loss", "import_error"])
@pytest.mark.parametrize("good", [True, False])
def test_a_living_trial_that_steps_well_keeps_its_study(begin: Begin, good: bool, incident: str) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=5), pruner=PrunerSpec("none"), parallel=5))
    home.work()
    home.report(4, 7, 0.5)
    for number in range(4):
        home.end(number, RunState.FAILED, incident=incident)
    home.work()
    assert (home.study.state, home.states()[4]) == (StudyState.RUNNING, "running")
    home.report(4, 8, 0.5 if good else math.nan)
    home.end(4, RunState.SUCCEEDED)
    home.work()
    is_failed = not good and incident == "nan_loss"
    expected = StudyState.FAILED if is_failed else StudyState.FINISHED
    assert home.study.state is expected
    assert home.states()[4] == ("complete" if good else "failed")


# --- pruning and keeping by hand --------------------------------------------------------------------------------------


def test_a_trial_that_a_person_prunes_is_pruned_and_not_run_again(begin: Begin) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=2), rerun=2, parallel=1))
    home.work()
    home.report(0, 29, 0.1)
    home.process.turn()
    home.ask("study_prune", trial=0)
    assert (home.states(), home.trial(0).request) == (["pruning"], "prune")
    home.move(home.trial(0).run_id or "", RunState.STOPPED)
    home.work()
    assert (home.states()[0], home.trial(0).reason, home.trial(0).rung) == ("pruned", "pruned by me", 3)
    finish(home, 1, 0.9)
    home.work()
    assert home.study.state is StudyState.FINISHED
    assert len(home.trials) == 2


def test_a_trial_that_a_person_keeps_is_not_cut_short_until_it_is_left_to_the_pruner(begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    home.report(0, 99, 0.1)
    finish(home, 0, 0.1)
    home.work()
    home.ask("study_keep", trial=1)
    home.report(1, 49, 0.9)
    home.work()
    assert (home.states()[1], home.trial(1).rung, home.trial(1).request) == ("running", 5, "keep")
    home.ask("study_keep", trial=1, keep=False)
    home.report(1, 59, 0.9)
    home.process.turn()
    assert (home.states()[1], home.trial(1).request) == ("pruning", None)


# --- the best trials run to the end -----------------------------------------------------------------------------------


def test_the_best_of_those_that_were_cut_short_run_to_the_end(begin: Begin) -> None:
    pruner = PrunerSpec("median", length=100, rungs=10, startup=0)
    home = begin(replace(GRID, pruner=pruner, rerun=2, parallel=1))
    losses = {0.1: 0.5, 0.2: 0.9, 0.3: 0.6, 0.4: 0.8}
    while len(home.trials) < 4 or home.states()[3] in ("launching", "running"):
        home.work()
        number = len(home.trials) - 1
        home.report(number, 49, losses[home.trial(number).params["rate"]])
        home.process.turn()
        if home.trial(number).state.value == "running":
            finish(home, number, losses[home.trial(number).params["rate"]])
        home.carry_out()
        home.process.turn()
    assert home.states()[:4] == ["complete", "pruned", "pruned", "pruned"]
    home.work()
    again = home.trial(4)
    assert (again.origin, again.parent, again.params) == ("rerun", 2, {"rate": 0.3})
    # Whatever it reports, it is not cut short another time.
    home.report(4, 49, 5.0)
    home.work()
    assert home.trial(4).state.value == "running"
    finish(home, 4, 0.55)
    home.work()
    assert home.study.state is StudyState.FINISHED
    assert len(home.trials) == 5


# --- trials of other processes, points by hand ------------------------------------------------------------------------


def test_a_trial_of_another_process_is_listed_and_not_run(begin: Begin) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=1), parallel=1))
    home.work()
    study = home.process.journal.study
    trial = study.ask()
    assert trial.suggest_float("rate", 0.0, 1.0) <= 1.0
    home.process.turn()
    assert [(trial.origin, trial.state.value, trial.run_id is None) for trial in home.trials] == [
        ("sampled", "running", False), ("outside", "running", True),
    ]  # fmt: skip
    study.tell(trial.number, 0.125)
    finish(home, 0)
    home.work()
    assert (home.trial(1).state.value, home.trial(1).value, home.trial(1).params) == ("complete", 0.125, trial.params)
    assert home.study.state is StudyState.FINISHED
    assert len(home.trials) == 2


def test_what_json_does_not_know_is_a_word(begin: Begin) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=1), parallel=1))
    home.work()
    trial = home.process.journal.study.ask()
    home.process.journal.study.tell(trial.number, math.inf)
    home.report(0, 15, math.inf)
    home.process.turn()
    shape = show_shape(home.connection, home.study, home.now, at=None, workspace=home.workspace, waiting={})
    sampled, outside = json.loads(json.dumps(shape, allow_nan=False))["trials"]
    assert sampled["rungs"][0]["value"] == "Infinity"
    assert outside["origin"] == "outside"


@pytest.mark.parametrize("paused", [True, False])
def test_a_point_by_hand_is_in_the_journal_once(begin: Begin, paused: bool) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=1), parallel=1))
    home.work()
    if paused:
        home.ask("study_pause")
    home.ask("study_enqueue", set={"rate": 0.25})
    with pytest.MonkeyPatch.context() as patched:
        # The process dies before it has taken the request off the table.
        patched.setattr(home.process.view, "update", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            home.process.turn()
    home.restart()
    home.process.turn()
    home.process.turn()
    assert [(trial.origin, trial.params.get("rate") == 0.25) for trial in home.trials] == [
        ("sampled", False), ("enqueued", True),
    ]  # fmt: skip
    assert not rows.enqueued_points(home.connection, STUDY)


def test_a_verdict_that_only_the_journal_has_is_taken_over(begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    finish(home, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(home.process, "_end", lambda trial, verdict: home.process.journal.end(0, verdict, 5.0))
        home.process.turn()
    assert home.trial(0).state.value == "running"
    home.restart()
    home.process.turn()
    assert (home.trial(0).state.value, home.trial(0).value, home.trial(0).ended_at) == ("complete", 0.5, 5.0)


def test_a_journal_that_was_lost_is_made_again_from_the_table(begin: Begin) -> None:
    home = begin(replace(RANDOM, parallel=1))
    home.work()
    finish(home, 0)
    home.work()
    (home.workspace.studies / STUDY / rows.JOURNAL_FILE).unlink()
    home.restart()
    home.work()
    trials = home.process.journal.trials()
    assert [(trial.state.name, trial.params) for trial in trials] == [
        ("COMPLETE", home.trial(0).params), ("RUNNING", home.trial(1).params),
    ]  # fmt: skip
    assert len(trials[0].intermediate_values) == 10


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_a_run_that_is_removed_still_counts_for_the_budget(begin: Begin) -> None:
    home = begin(replace(GRID, budget=Budget(gpu_hours=1.0)))
    home.work()
    run_id = home.trial(0).run_id or ""
    home.connection.execute('UPDATE attempts SET gpus = \'["a", "b"]\' WHERE run_id = ?', (run_id,))
    home.now += 900
    finish(home, 0)
    home.work()
    assert study_gpu_hours(home.connection, STUDY, home.now) == pytest.approx(0.5)
    home.ask("rm", run_id)
    assert study_gpu_hours(home.connection, STUDY, home.now) == pytest.approx(0.5)
    assert home.trial(0).run_id is None
    assert home.trial(0).state.value == "complete"


def test_the_time_of_a_study_that_was_over_or_paused_does_not_count(begin: Begin) -> None:
    home = begin(replace(GRID, budget=Budget(wall_seconds=100.0)))
    home.work()
    home.now += 60
    home.ask("study_pause")
    home.now += 1000
    home.ask("study_resume")
    assert study_wall_seconds(home.connection, STUDY, home.now) == pytest.approx(60)
    home.now += 41
    home.work()
    assert home.study.state is StudyState.FINISHED
    assert home.states() == ["stopped"] * 2
    home.now += 5000
    home.ask("study_extend", wall_seconds=50.0)
    home.work()
    assert home.study.state is StudyState.RUNNING
    assert home.states().count("running") == 2
    home.now += 50
    home.work()
    assert home.study.state is StudyState.FINISHED


# --- what cannot be read ----------------------------------------------------------------------------------------------


def test_a_study_whose_specification_is_damaged_pauses_and_can_be_stopped(begin: Begin) -> None:
    home = begin(GRID)
    home.work()
    (home.workspace.studies / STUDY / rows.SPEC_FILE).write_text("{")
    home.restart()
    home.process.turn()
    assert home.study.state is StudyState.PAUSED
    assert rows.SPEC_FILE in (home.study.reason or "")
    finish(home, 0)
    home.work()
    assert home.states() == ["complete", "running"]
    home.ask("study_stop")
    home.work()
    assert (home.study.state, home.states()) == (StudyState.STOPPED, ["complete", "stopped"])
