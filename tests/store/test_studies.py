"""Studies and trials as they are and as they were."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.core.config import Workspace
from gputui.store.database import open_writer
from gputui.store.studies import (
    StudyLookupError,
    StudyState,
    TrialState,
    find_study,
    read_rungs,
    read_studies,
    read_trials,
    study_gpu_hours,
)

STUDY = (
    "INSERT INTO studies (study_id, sequence, name, profile, state, reason, spec, source, created_at, ended_at) "
    "VALUES (?, ?, ?, 'net', ?, ?, '{}', '', ?, ?)"
)


@pytest.fixture
def history(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    """A study from 100 to 200 whose trial 0 ran from 110 to 150, and was paused from 160 to 170."""
    with closing(open_writer(workspace.database)) as connection:
        connection.execute(STUDY, ("lr-1", 1, "lr", "finished", "its grid is done", 100.0, 200.0))
        connection.execute(STUDY, ("lr-2", 2, "lr", "running", None, 300.0, None))
        connection.executemany(
            "INSERT INTO study_moves (study_id, at, from_state, to_state, cause, actor) "
            "VALUES ('lr-1', ?, ?, ?, ?, 'me')",
            [
                (100.0, None, "running", "begun"), (160.0, "running", "paused", "by hand"),
                (170.0, "paused", "running", "by hand"), (200.0, "running", "finished", "its grid is done"),
            ],
        )  # fmt: skip
        connection.execute(
            "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at, study_id, trial) "
            "VALUES ('lr-1-t0-1', 1, 'lr-1-t0', 'net', 'succeeded', '{}', '{}', 105, 'lr-1', 0)"
        )
        connection.execute(
            "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, started_at, ended_at) "
            "VALUES ('lr-1-t0-1', 1, 'succeeded', '{}', '[\"a\", \"b\"]', '{}', 110, 110, 150)"
        )
        connection.execute(
            "INSERT INTO trials (study_id, number, run_id, state, origin, params, rung, value, created_at, ended_at) "
            "VALUES ('lr-1', 0, 'lr-1-t0-1', 'complete', 'sampled', '{\"lr\": 0.1}', 2, 0.5, 104, 150)"
        )
        connection.executemany(
            "INSERT INTO trial_rungs (study_id, number, rung, step, value, attempt, at) "
            "VALUES ('lr-1', 0, ?, ?, ?, 1, ?)",
            [(1, 10, 0.7, 120.0), (2, 20, None, 140.0)],
        )
        yield connection


def test_a_study_is_found_by_its_id_or_as_the_newest_of_its_name(history: sqlite3.Connection) -> None:
    assert find_study(history, "lr-1").study_id == "lr-1"
    assert find_study(history, "lr").study_id == find_study(history, None).study_id == "lr-2"
    assert find_study(history, "lr", 150.0).study_id == "lr-1"
    assert find_study(history, "lr-1", only=True).study_id == "lr-1"
    for name in ("lr", "lr-", "rl"):
        with pytest.raises(StudyLookupError):
            find_study(history, name, only=True)


def test_a_study_is_shown_as_it_was(history: sqlite3.Connection) -> None:
    for at, state, reason in [
        (100.0, "running", None),
        (165.0, "paused", "by hand"),
        (180.0, "running", None),
        (200.0, "finished", "its grid is done"),
    ]:
        (study,) = read_studies(history, at)
        assert (study.state, study.reason) == (state, reason)
        expected = 200.0 if study.state.is_over else None
        assert study.ended_at == expected


def test_a_trial_is_shown_as_it_was(history: sqlite3.Connection) -> None:
    for at, state, rung, value in [
        (104.0, TrialState.LAUNCHING, None, None),
        (115.0, TrialState.RUNNING, None, None),
        (120.0, TrialState.RUNNING, 1, None),
        (149.0, TrialState.RUNNING, 2, None),
        (150.0, TrialState.COMPLETE, 2, 0.5),
    ]:
        (trial,) = read_trials(history, "lr-1", at)
        assert (trial.state, trial.rung, trial.value) == (state, rung, value)
        expected = None if at < 105 else "lr-1-t0-1"
        assert trial.run_id == expected
        assert [rung.rung for rung in read_rungs(history, "lr-1", at)] == list(range(1, (rung or 0) + 1))


def test_a_study_costs_what_its_runs_did_up_to_a_moment(history: sqlite3.Connection) -> None:
    assert study_gpu_hours(history, "lr-1", 130.0) == pytest.approx(2 * 20 / 3600)
    assert study_gpu_hours(history, "lr-1", 1000.0) == pytest.approx(2 * 40 / 3600)
    assert study_gpu_hours(history, "lr-2", 1000.0) == 0
    assert read_trials(history, "lr-1", 103.0) == []


def test_a_word_that_is_no_state_is_an_unknown_one(history: sqlite3.Connection) -> None:
    history.execute("UPDATE studies SET state = 'zombified'")
    history.execute("UPDATE trials SET state = 'zombified'")
    assert {study.state for study in read_studies(history)} == {StudyState.UNKNOWN}
    assert [trial.state for trial in read_trials(history, "lr-1")] == [TrialState.UNKNOWN]
