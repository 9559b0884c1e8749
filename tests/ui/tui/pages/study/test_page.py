"""The page of studies: the rows of its table, its keys, and looking back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from gputui.metrics.progress import Progress
from gputui.store.run_states import RunState
from gputui.store.studies import TrialRecord, TrialState
from gputui.studies.results import StudyResults
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.tui.dialogs.questions import FormScreen
from gputui.ui.tui.pages.compare.page import CompareScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.pages.overview.run_order import StudyEntry
from gputui.ui.tui.pages.overview.runs import study_words
from gputui.ui.tui.pages.run.page import RunScreen
from gputui.ui.tui.pages.study.page import StudyScreen
from gputui.ui.tui.pages.study.view import (
    TrialList,
    picture_lines,
    result_lines,
    study_lines,
    trial_listing,
    trial_rows,
)
from gputui.ui.views.snapshot import Interest, Moment, RunRow, Snapshot
from tests.homes import NOW, Home
from tests.stories import overnight, search
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import commands_of, text, text_of, wait_for

SIZE = (120, 36)


def read(home: Home, moment: Moment | None = None) -> Snapshot:
    return SnapshotReader(home.workspace).read(home.connection, NOW, Interest(studies=True, moment=moment))


def head_of(study: StudyResults, snapshot: Snapshot, runs: Mapping[str, RunRow] | None = None) -> list[str]:
    return text_of(result_lines(study, snapshot.all_studies, runs or {}, 170))


def run_row(home: Home, trial: TrialRecord) -> RunRow:
    rows = SnapshotReader(home.workspace).read(home.connection, NOW, Interest()).runs
    return next(row for row in rows if row.run.run_id == trial.run_id)


@pytest.fixture
def snapshot(home: Home) -> Snapshot:
    search(home)
    return read(home)


@pytest.fixture
def study_page(snapshot: Snapshot) -> StudyResults:
    assert snapshot.study_page is not None
    return snapshot.study_page


@pytest.fixture
def app(home: Home, make_app: MakeApp) -> GputuiApp:
    overnight(home)
    search(home)
    return make_app()


def page(app: GputuiApp) -> StudyScreen:
    assert isinstance(app.screen, StudyScreen)
    return app.screen


async def open_study(pilot: Pilot[Any]) -> None:
    await pilot.press("S")
    await pilot.pause()


# --- rows


def test_trials_are_sorted_by_value_the_complete_ones_first_and_filtered(study_page: StudyResults) -> None:
    rows = trial_rows(study_page, TrialList(order="value"), {})
    assert len(rows) == 14
    assert rows[0].trial.number == 4
    assert {row.trial.state for row in rows[:8]} == {TrialState.COMPLETE}
    values = [row.trial.value for row in rows[:8]]
    assert values == sorted(value for value in values if value is not None)
    pruned = trial_rows(study_page, TrialList(filter_text="pruned"), {})
    assert {row.trial.state for row in pruned} == {TrialState.PRUNED}
    assert len(pruned) < 14


def test_the_past_has_the_trials_of_then(home: Home) -> None:
    search(home, began_ago=5700.0)
    study = read(home, Moment(NOW - 600.0)).study_page
    assert study is not None
    trials = study.trials
    assert [trial.number for trial in trials] == list(range(13))
    assert [trial.state for trial in trials[8:]] == ["complete"] * 2 + ["pruned"] + ["running"] * 2


def test_the_same_rungs_of_trials_lie_below_each_other(study_page: StudyResults) -> None:
    listing = trial_listing(study_page, trial_rows(study_page, TrialList(), {}))
    lines = text_of(listing.lines(TrialList(), 170, 20))
    column = lines[1].index("CURVE")
    curves = {int(line[:5].replace("★", "")): line[column : column + 10].ljust(10) for line in lines[2:16]}
    assert curves[0].strip()
    assert len(curves[0].rstrip()) == 10
    # Pruned at rung 5 of 27, and still at rung 3.
    assert curves[2][0] != " "
    assert len(curves[2].rstrip()) == 2
    assert curves[12][0] != " "
    assert len(curves[12].rstrip()) == 2
    assert "✂ pruned" in lines[4]
    assert "rung 5: 7th of 9" in lines[4]
    assert "pruned at" not in lines[4]


def test_losses_are_a_trials_curve_only_where_the_loss_is_what_is_searched(
    home: Home, study_page: StudyResults
) -> None:
    trial = next(trial for trial in study_page.trials if trial.run_id is not None)
    row = run_row(home, trial)
    runs = {row.run.run_id: msgspec.structs.replace(row, progress=Progress(losses=(3.0, 2.0, 1.0)))}
    for metric, curve in (("loss", (3.0, 2.0, 1.0)), ("val/accuracy", ())):
        objective = replace(study_page.spec.objectives[0], metric=metric)
        without_rungs = msgspec.structs.replace(
            study_page, rungs={}, spec=replace(study_page.spec, objectives=(objective,))
        )
        rows = {row.trial.number: row for row in trial_rows(without_rungs, TrialList(), runs)}
        assert rows[trial.number].curve == curve, metric


def test_a_trial_whose_run_is_queued_is_not_called_running(
    home: Home, snapshot: Snapshot, study_page: StudyResults
) -> None:
    trial = next(trial for trial in study_page.trials if trial.state is TrialState.RUNNING)
    listed = run_row(home, trial)
    for state, word in ((RunState.QUEUED, "queued"), (RunState.RUNNING, "running"), (RunState.FAILED, "running")):
        run = msgspec.structs.replace(listed.run, state=state, waiting_for="#1 · 4 GPUs")
        runs = {run.run_id: msgspec.structs.replace(listed, run=run)}
        row = next(row for row in trial_rows(study_page, TrialList(), runs) if row.trial.number == trial.number)
        assert row.sign.word == word
        line = " ".join(text_of(trial_listing(study_page, [row]).lines(TrialList(), 120, 4)))
        assert ("#1 · 4 GPUs" in line) == (state is RunState.QUEUED)
        counts = "1 queued · 1 running" if state is RunState.QUEUED else "2 running"
        assert f" · {counts} · 4 pruned" in head_of(study_page, snapshot, runs)[0]


def test_the_overview_counts_the_queued_trials_of_a_study_apart(home: Home) -> None:
    search(home)
    lines = {}
    for run_ids in ([], ["lr-search-1-t12"], ["lr-search-1-t12", "lr-search-1-t13"]):
        home.connection.executemany(
            "UPDATE runs SET state = 'queued' WHERE run_id = ?", [(run_id,) for run_id in run_ids]
        )
        snapshot = SnapshotReader(home.workspace).read(home.connection, NOW, Interest())
        (study,) = snapshot.studies
        entry = StudyEntry(study.study_id, study=study)
        lines[study.running, study.queued] = "".join(text for text, _ in study_words(entry, NOW))
    assert {counts: text.rpartition(") · ")[2] for counts, text in lines.items()} == {
        (2, 0): "2 running",
        (1, 1): "1 running · 1 queued",
        (0, 2): "2 queued",
    }


def test_no_trial_is_the_best_of_several_objectives(snapshot: Snapshot, study_page: StudyResults) -> None:
    first = study_page.spec.objectives[0]
    spec = replace(study_page.spec, objectives=(first, replace(first, metric="seconds")))
    trials = tuple(
        msgspec.structs.replace(trial, values=(*trial.values, -trial.values[0])) if trial.values else trial
        for trial in study_page.trials
    )
    page = msgspec.structs.replace(study_page, spec=spec, trials=trials)
    head = " ".join(head_of(page, snapshot))
    assert "Pareto front: 8" in head
    assert " best " not in head
    head = " ".join(head_of(study_page, snapshot))
    assert "12 of 40 trials ended" in head
    assert " best 0.4044" in head
    assert "val_loss, lower is better" in head
    study = msgspec.structs.replace(study_page.study, problem="its process failed 3 times in a row: no room")
    assert head_of(msgspec.structs.replace(study_page, study=study), snapshot)[-1].strip() == study.problem
    assert sum(row.is_best for row in trial_rows(page, TrialList(), {})) == 8
    pictures = " ".join(text_of(picture_lines(page, TrialList(), 100, 60)))
    assert "for val_loss" in pictures
    assert "for seconds" in pictures


def test_studies_are_listed_newest_first_with_their_best_value(home: Home) -> None:
    search(home, "lr-search-1", state="finished")
    search(home, "lr-search-2")
    lines = text_of(study_lines(read(home).all_studies, "lr-search-2", 110, 5))
    assert "1 of 2" in lines[0]
    assert lines[1].startswith("▸lr-search-2")
    assert "● running" in lines[1]
    assert lines[2].startswith(" lr-search-1")
    assert lines[2].split()[-2:] == ["val_loss", "0.4044"]


# --- keys


async def test_the_overview_names_the_study_and_its_trials_open_and_are_compared(app: GputuiApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        (row,) = [line for line in text(app, "runs").splitlines() if " lr-search-1 " in line]
        assert "12/40 trials" in row
        assert "best 0.4044" in row
        await open_study(pilot)
        assert page(app).row_ids == list(range(14))
        await pilot.press("down", "down", "enter")
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "lr-search-1-t2"
        await pilot.press("escape", "c")
        assert isinstance(app.screen, CompareScreen)
        assert "lr-search-1-t4" in app.screen.comparison.run_ids
        await pilot.press("escape", "escape")
        assert isinstance(app.screen, OverviewScreen)


@pytest.mark.parametrize(("state", "order", "first"), [("running", "number", 0), ("finished", "value", 4)])
async def test_a_study_that_is_over_opens_with_its_best_trials_first(
    home: Home, make_app: MakeApp, state: str, order: str, first: int
) -> None:
    search(home, state=state)
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await open_study(pilot)
        assert page(app).table.order == order
        assert page(app).row_ids[0] == first
        await pilot.press("o", "o")
        assert page(app).table.order == order


async def test_a_point_is_added_by_hand_from_that_of_a_trial(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await open_study(pilot)
        assert shlex.split(page(app).copyable()[0].text)[:2] == ["--set", "lr=0.00739"]
        await pilot.press("N", "tab", "tab", "ctrl+u", *"adamw", "enter")
        await wait_for(pilot, lambda: bool(commands_of(home)))
        point: dict[str, object] = {"lr": 0.00739, "batch_size": 256, "optimizer": "adamw"}
        assert commands_of(home) == [("study_enqueue", None, {"study": "lr-search-1", "set": point})]
        await pilot.press("N", "ctrl+u", "tab", "ctrl+u", "tab", "ctrl+u", "enter")
        assert isinstance(app.screen, FormScreen), "there is no value yet"
        # Values are read as on the command line.
        await pilot.press(*"[", "shift+tab", "shift+tab", *"1e-05", "enter")
        await wait_for(pilot, lambda: len(commands_of(home)) == 2)
        assert commands_of(home)[1][2] == {"study": "lr-search-1", "set": {"lr": 1e-05, "optimizer": "["}}


async def test_a_trial_is_pruned_and_kept_and_the_study_paused_and_stopped(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=(160, 36)) as pilot:
        await open_study(pilot)
        await pilot.press("end", "x", "y")
        await wait_for(pilot, lambda: len(commands_of(home)) == 1)
        await pilot.press("e")
        await wait_for(pilot, lambda: len(commands_of(home)) == 2)
        trial = {"study": "lr-search-1", "trial": 13}
        assert commands_of(home) == [("study_prune", None, trial), ("study_keep", None, {**trial, "keep": True})]
        await pilot.press("P")
        await wait_for(pilot, lambda: len(commands_of(home)) == 3)
        await pilot.press("X", "y")
        await wait_for(pilot, lambda: len(commands_of(home)) == 4)
        assert [verb for verb, _, _ in commands_of(home)[2:]] == ["study_pause", "study_stop"]
