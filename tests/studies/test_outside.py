"""Changes of a study's journal by other processes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import create_trial

from gputui.agent.commands.request import RefusedError
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from gputui.store.studies import StudyState
from gputui.studies import rows
from gputui.studies.export import StudyExportError, export_storage
from gputui.studies.spec import Budget, Dimension, SamplerSpec
from tests.studies.conftest import BASE, GRID, POPULATION, STUDY, Begin, StudyHome

SPACE = (Dimension("rate", "float", 0.0, 1.0), Dimension("act", "choice", choices=("relu", "gelu")))
RANDOM = replace(GRID, space=SPACE[:1], sampler=SamplerSpec("random"), budget=Budget(trials=3), parallel=1)


def file_of(home: StudyHome) -> Path:
    return home.workspace.studies / STUDY / rows.JOURNAL_FILE


def outside(home: StudyHome) -> optuna.Study:
    """The study as another process has it."""
    return optuna.load_study(study_name=STUDY, storage=JournalStorage(JournalFileBackend(str(file_of(home)))))


def finish(home: StudyHome, number: int, loss: float = 0.5) -> None:
    home.report(number, 99, loss)
    home.end(number, RunState.SUCCEEDED)
    home.work()


def finish_all(home: StudyHome) -> None:
    while home.study.state is StudyState.RUNNING:
        home.work()
        for trial in home.trials:
            if trial.run_id is not None and not trial.state.is_over:
                finish(home, trial.number)


CHOICE = CategoricalDistribution(("tanh", "elu"))
RATE = FloatDistribution(0.0, 50.0)


def warm_desk(begin: Begin) -> StudyHome:
    """A study that learns from three earlier runs."""
    home = begin(replace(RANDOM, warm_start=3))
    for number in range(3):
        run_id = f"earlier-{number}"
        with transaction(home.connection):
            repository.insert_run(
                home.connection,
                repository.NewRun(
                    run_id=run_id, sequence=100 + number, name=run_id, spec=BASE, params={"rate": 0.1 * (number + 1)}
                ),
                now=home.now,
                actor="me",
            )
        home.begin_attempt(run_id)
        home.line(run_id, 99, 0.1 + number)
        home.move(run_id, RunState.SUCCEEDED)
    return home


@pytest.mark.parametrize("sampler", ["random", "tpe", "qmc", "nsga2", "cmaes"])
@pytest.mark.parametrize(
    ("params", "distributions"),
    [
        ({"rate": 40.0, "act": "tanh"}, {"rate": RATE, "act": CHOICE}), ({"rate": "tanh"}, {"rate": CHOICE}),
        ({"other": 3.0}, {"other": RATE}),
    ],
)  # fmt: skip
def test_values_that_the_space_has_not_are_left_out_by_the_sampler(
    params: dict[str, Any], distributions: dict[str, Any], sampler: Any, begin: Begin
) -> None:
    startup = 2 if sampler in ("tpe", "cmaes") else None
    home = begin(replace(RANDOM, space=SPACE, sampler=SamplerSpec(sampler, startup), budget=Budget(trials=30)))
    home.work()
    for value in range(5):
        outside(home).add_trial(create_trial(params=params, distributions=distributions, value=float(value)))
    for number in (0, 6, 7):
        finish(home, number)
    trials = [trial for trial in home.trials if trial.origin != "outside"]
    assert len(trials) == 4
    assert all(SPACE[0].holds(trial.params["rate"]) for trial in trials)
    assert home.trial(1).params == params


@pytest.mark.parametrize("sampler", ["gp", "cmaes", "qmc"])
def test_samplers_learn_from_a_trial_of_another_process_only_with_a_point_of_the_space(
    sampler: Any, begin: Begin
) -> None:
    numbers = (SPACE[0], replace(SPACE[0], name="other"))
    home = begin(replace(RANDOM, space=numbers, sampler=SamplerSpec(sampler, 1 if sampler != "qmc" else None)))
    whole: dict[str, Any] = {"rate": RATE, "other": FloatDistribution(0.0, 1.0)}
    for params in ({"rate": 0.5}, {"rate": 0.5, "other": 0.5}, {"rate": 40.0, "other": 0.5}):
        distributions = {name: whole[name] for name in params}
        home.process.turn()
        outside(home).add_trial(create_trial(params=params, distributions=distributions, value=0.5))
    trials = home.process.journal.trials()
    learned = [trial.number for trial in home.process.journal._learned_from()]
    assert [number for number in range(len(trials)) if number not in learned] == [
        trial.number for trial in trials if trial.params.get("rate") == 40.0 or len(trial.params) == 1
    ]
    home.process.view.update(home.process.journal)
    best = [trial.params for trial in home.trials if trial.state == "complete"]
    assert best == [{"rate": 0.5, "other": 0.5}]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_value_that_is_not_finite_fails_the_trial(value: float, begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    outsider = outside(home)
    trial = outsider.ask()
    trial.suggest_categorical("place", [math.nan, "x"])
    outsider.tell(trial, value)
    home.work()
    assert (home.trial(1).state, home.trial(1).values) == ("failed", ())
    (stored,) = home.connection.execute("SELECT params FROM trials WHERE number = 1").fetchone()
    json.loads(stored, parse_constant=lambda name: pytest.fail(name))


def test_a_run_whose_trial_another_process_has_ended_is_stopped(begin: Begin) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=1)))
    home.work()
    outside(home).tell(0, 0.125)
    home.process.turn()
    assert home.trial(0).state == "stopping"
    assert [command.verb for command in home.pending()] == ["stop"]
    home.work()
    run = get_run(home.connection, home.trial(0).run_id or "")
    assert run is not None
    assert run.state is RunState.STOPPED
    assert (home.trial(0).state, home.trial(0).value, home.study.state) == ("complete", 0.125, "finished")


def test_a_launch_whose_trial_another_process_has_ended_is_withdrawn(begin: Begin) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=1)))
    home.process.turn()
    home.process.turn()
    assert home.trial(0).state == "launching"
    outside(home).tell(0, 0.125)
    home.process.turn()
    assert not home.pending()
    assert (home.trial(0).state, home.trial(0).run_id) == ("complete", None)


def test_a_member_whose_trial_another_process_has_ended_is_stopped(begin: Begin) -> None:
    home = begin(POPULATION)
    home.work()
    for number in range(4):
        home.report(number, 9, float(number))
        home.save(number, 10)
    home.process.turn()
    assert home.trial(3).state == "stopping"  # it is to continue from the best
    for number in (0, 3):
        outside(home).tell(number, 0.125)
    home.report(0, 19, 0.0)
    home.work(30)
    assert [home.trial(number).state for number in (0, 3)] == ["complete"] * 2


def test_trials_that_were_copied_from_any_study_are_not_gputuis(begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    attributes = outside(home).trials[0].user_attrs["gputui"]
    for noted in ({"origin": "sampled", "study": "s-2"}, {"origin": "sampled"}, 5, attributes):
        distributions: dict[str, Any] = {"rate": FloatDistribution(0.0, 1.0)}
        copied = create_trial(
            params={"rate": 0.1}, distributions=distributions, value=0.3, user_attrs={"gputui": noted}
        )
        outside(home).add_trial(copied)
    finish_all(home)
    origins = [trial.origin for trial in home.trials]
    assert (origins.count("outside"), origins.count("sampled")) == (4, 3)
    assert len({trial.run_id for trial in home.trials}) == 4  # None is one


def test_what_another_process_told_of_a_stopped_trial_is_its_value(begin: Begin) -> None:
    home = begin(replace(RANDOM, budget=Budget(trials=1)))
    home.work()
    home.ask("study_stop")
    home.work()
    outside(home).tell(0, 0.125)
    home.ask("study_extend", trials=1)
    home.restart()
    home.work()
    assert (home.trial(0).state, home.trial(0).value) == ("complete", 0.125)


def test_a_trial_of_another_process_cannot_be_cut_short_or_kept(begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    outside(home).ask()
    home.work()
    for verb in ("study_prune", "study_keep"):
        with pytest.raises(RefusedError, match="another process"):
            home.ask(verb, trial=1)


def test_a_journal_that_is_emptied_ends_the_process_and_is_made_again(begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    finish(home, 0)
    before = [dict(trial.params) for trial in home.trials]
    file_of(home).write_bytes(b"")
    with pytest.raises(OSError, match="cut"):
        home.work()
    home.restart()
    finish_all(home)
    assert [trial.params for trial in outside(home).trials] == [dict(trial.params) for trial in home.trials]
    assert [dict(trial.params) for trial in home.trials][:2] == before
    assert len(home.trials) == 3


@pytest.mark.parametrize("content", [
    b"[]\n{}\n", b'{"op_code": 99}\n5\n', b"\xff\n\xff\n", None,
    b'{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {"gputui": 5}}\n',
    b'{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {"gputui:verdict": 5}}\n',
    b'{"op_code": 1, "worker_id": "x", "study_id": 0}\n',
])  # fmt: skip
@pytest.mark.parametrize("restarts", [False, True])
def test_a_study_can_be_stopped_whatever_its_journal_holds(content: bytes | None, restarts: bool, begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    if content is None:
        file_of(home).unlink()
        file_of(home).mkdir()
    else:
        with file_of(home).open("ab") as file:
            file.write(content)
    home.ask("study_stop")
    if restarts:
        home.restart()
    home.work()
    run = get_run(home.connection, home.trial(0).run_id or "")
    assert run is not None
    assert run.state is RunState.STOPPED
    assert (home.study.state, home.trial(0).state) == ("stopped", "stopped")
    target = home.workspace.state / "out.db"
    try:
        assert export_storage(home.connection, file_of(home).parent, home.study, target) == 1
    except StudyExportError:
        assert content is None or b"gputui" in content
        assert not target.exists()


def test_a_trial_that_ends_well_while_its_study_stops_is_complete_in_the_journal_too(begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    home.ask("study_stop")
    home.report(0, 99, 0.5)
    home.end(0, RunState.SUCCEEDED)
    home.work()
    assert (home.study.state, home.trial(0).state, home.trial(0).values) == ("stopped", "complete", (0.5,))
    assert [(trial.state.name, trial.value) for trial in outside(home).trials] == [("COMPLETE", 0.5)]


# --- warm starts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["nothing", "a point by hand", "another process"])
def test_earlier_runs_are_learned_from_once_whatever_came_first(first: str, begin: Begin) -> None:
    home = warm_desk(begin)
    if first != "nothing":
        home.ask("study_pause")
        if first == "a point by hand":
            home.ask("study_enqueue", set={"rate": 0.5})
        home.process.turn()
        if first == "another process":
            outside(home).ask()
        home.ask("study_resume")
        home.restart()
    finish_all(home)
    assert [trial.origin for trial in home.trials].count("warm") == 3


def test_earlier_runs_are_not_learned_from_twice_where_the_journal_was_lost(begin: Begin) -> None:
    home = warm_desk(begin)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(home.process, "_advance", lambda *_: True)
        home.process.turn()
    assert [trial.origin for trial in home.trials] == ["warm"] * 3
    file_of(home).unlink()
    home.restart()
    finish_all(home)
    assert [trial.origin for trial in home.trials] == ["warm"] * 3 + ["sampled"] * 3


# --- what another process reads ---------------------------------------------------------------------------------------


def test_a_trial_that_was_stopped_ends_once_its_study_goes_on_without_it(begin: Begin) -> None:
    home = begin(RANDOM)
    home.work()
    home.ask("study_stop")
    home.work()
    assert outside(home).trials[0].state.name == "RUNNING"  # its run may continue, so Optuna has no final state yet
    home.ask("study_extend", trials=1)
    home.restart()
    home.work()
    assert [trial.state.name for trial in outside(home).trials] == ["FAIL", "RUNNING"]


def test_an_export_leaves_the_journal_as_it_is(begin: Begin, tmp_path: Path) -> None:
    home = begin(RANDOM)
    home.work()
    home.ask("study_stop")
    home.work()
    before = file_of(home).read_bytes()
    target = tmp_path / "out.db"
    assert export_storage(home.connection, file_of(home).parent, home.study, target) == 1
    exported = optuna.load_study(study_name=STUDY, storage=f"sqlite:///{target}")
    assert [trial.state.name for trial in exported.trials] == ["FAIL"]
    assert file_of(home).read_bytes() == before


def test_the_journal_has_the_parameters_that_a_member_trains_with(begin: Begin) -> None:
    home = begin(POPULATION)
    home.work()
    for number in range(4):
        home.report(number, 9, float(number))
        home.save(number, 10)
    home.work(30)
    assert any(trial.generation is not None for trial in home.trials)
    assert [trial.params for trial in outside(home).trials] == [dict(trial.params) for trial in home.trials]
