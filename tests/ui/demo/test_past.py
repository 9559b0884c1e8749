"""The demo's past: what the agent's own code made of it."""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gputui.core.config import Workspace, locate
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store import checkpoints
from gputui.store.attempts import read_attempts
from gputui.store.database import open_reader
from gputui.store.hardware import gpu_history, quarantined
from gputui.store.metrics.queries import reported_values
from gputui.store.run_history import read_incidents
from gputui.store.runs import find_run, read_runs
from gputui.store.studies import StudyState, TrialState, find_study, read_rungs, read_trials
from gputui.studies.analysis import best_trial
from gputui.studies.spec import study_spec
from gputui.ui.demo.home import fill_home
from gputui.ui.demo.stories import STORIES

NOW = 1_795_230_764.0


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = locate(tmp_path_factory.mktemp("demo"), {})
    workspace.create()
    fill_home(workspace, NOW, 5).close()
    return workspace


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    with closing(open_reader(workspace.database)) as connection:
        yield connection


def test_every_story_is_a_run(connection: sqlite3.Connection) -> None:
    runs = read_runs(connection)
    stories = [run for run in runs if run.study_id is None]
    assert len(stories) == len(STORIES)
    assert {run.run_id: run.state for run in stories} == {
        "resnet50-1": "succeeded", "vit-b16-1": "succeeded", "gpt2-124m-1": "succeeded", "bert-mlm-1": "failed",
        "vit-b16-2": "succeeded", "vit-b16-3": "running", "gpt2-124m-2": "running", "resnet50-2": "queued",
    }  # fmt: skip
    assert all(run.ended_at is not None and run.ended_at < NOW for run in runs if run.state.is_over)
    assert connection.execute("SELECT count(*) FROM leases").fetchone() == (6,)


def test_incidents_and_decisions_are_those_of_the_standard_policy(connection: sqlite3.Connection) -> None:
    kinds = [
        (incident.run_id, incident.kind)
        for run in read_runs(connection)
        for incident in read_incidents(connection, run.run_id)
    ]
    assert sorted(kinds) == [
        ("bert-mlm-1", "user_exception"), ("gpt2-124m-1", "gpu_lost"), ("vit-b16-1", "cuda_oom"),
        ("vit-b16-3", "cuda_oom"), ("vit-b16-3", "illegal_access"),
    ]  # fmt: skip
    first, second = read_attempts(connection, "vit-b16-1")
    assert (first.params["batch_size"], second.params["batch_size"]) == (512, 256)
    assert second.resumed_step == 34_000
    assert second.first_step == 34_001
    lost = read_attempts(connection, "gpt2-124m-1")
    assert [len(attempt.gpus) for attempt in lost] == [4, 3]
    assert set(quarantined(connection)) == set(lost[0].gpus) - set(lost[1].gpus)


def test_each_run_can_be_resumed_from_its_last_checkpoint(connection: sqlite3.Connection) -> None:
    for run in read_runs(connection):
        rows = [row for row in checkpoints.of_run(connection, run.run_id) if row.is_written]
        is_pruned = run.study_id is not None and run.state == "stopped"
        if run.state.is_over and run.run_id != "bert-mlm-1" and not is_pruned:
            assert max(row.step or 0 for row in rows) == run.last_step
            assert any(Path(row.path).exists() for row in rows)


def test_the_study_is_what_its_file_says(connection: sqlite3.Connection) -> None:
    study = find_study(connection, None)
    assert (study.study_id, study.state) == ("vit-lr-1", StudyState.FINISHED)
    assert study.ended_at is not None
    assert study.ended_at < NOW
    spec = study_spec(study)
    trials = read_trials(connection, study.study_id)
    states = Counter(trial.state for trial in trials)
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(trials) == spec.budget.trials
    runs = {run.run_id: run for run in read_runs(connection)}
    for trial in trials:
        run = runs[trial.run_id or ""]
        assert (run.study_id, run.trial) == (study.study_id, trial.number)
        expected = "succeeded" if trial.state is TrialState.COMPLETE else "stopped"
        assert run.state == expected
        assert trial.reason in (None, run.reason)
        reported = reported_values(connection, run.run_id, ["val/loss"], "step", {})[0]
        rungs = [rung for rung in read_rungs(connection, study.study_id) if rung.number == trial.number]
        assert [rung.value for rung in rungs] == list(itertools.accumulate((rung.value for rung in reported), min))
    best = best_trial(trials, spec.objectives)
    assert best is not None
    assert 2e-4 < best.params["lr"] < 2e-3
    assert study.importances_for("val/loss")[0].name == "lr"


def test_gpus_were_busy_while_a_run_had_them(connection: sqlite3.Connection) -> None:
    """To the last sample: the run goes on, with no notch at the demo's start."""
    history = gpu_history(connection, NOW - 600, NOW, 60)
    run = find_run(connection, "gpt2-124m-2")
    second = find_run(connection, "vit-b16-3")
    assert len(history) == 8
    assert not set(run.gpus) & set(second.gpus)
    for uuid, gpu in history.items():
        loads = [value for value in gpu.utilization_percent if value is not None]
        if uuid in run.gpus:
            assert min(loads[:50]) > 50
            assert min(loads[-3:]) > 50
            assert len(set(loads)) > 20
        elif uuid in second.gpus:
            assert min(loads[30:]) > 50 > min(loads)


def test_events_are_written_in_the_order_of_their_times(connection: sqlite3.Connection) -> None:
    query = "SELECT at FROM events WHERE run_id IS NULL OR run_id NOT LIKE 'vit-lr-%' ORDER BY event_id"
    times = [at for (at,) in connection.execute(query)]
    assert times == sorted(times)
    assert times[-1] > NOW - 60
    assert connection.execute("SELECT count(*) FROM alerts WHERE cleared_at IS NULL").fetchone() == (1,)


def test_runs_know_the_version_of_their_code(connection: sqlite3.Connection, workspace: Workspace) -> None:
    before, after = (read_spec(workspace.run_dir(run_id) / SPEC_FILE) for run_id in ("vit-b16-1", "vit-b16-3"))
    assert before.code
    assert after.code
    assert before.code["commit"] != after.code["commit"]
    assert before.code["branch"] == "main"
    assert after.code["changed_files"] == 0
