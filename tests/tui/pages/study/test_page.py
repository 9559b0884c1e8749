"""The page of studies: what it shows, its keys, and looking back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.store.run_states import RunState
from gputui.store.studies import TrialState
from gputui.studies.spec import Objective
from gputui.tui.app import GputuiApp
from gputui.tui.data.snapshot import Moment, Progress
from gputui.tui.pages.compare.page import CompareScreen
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.pages.run.page import RunScreen
from gputui.tui.pages.study.page import StudyScreen
from gputui.tui.pages.study.view import StudyTable, _params, trial_rows
from gputui.tui.widgets.pane import Pane
from tests.tui.conftest import MakeApp
from tests.tui.filling import NOW, Filler
from tests.tui.test_screens import asked, text, until

SIZES = pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    filler.study()
    return make_app()


def page(app: GputuiApp) -> StudyScreen:
    assert isinstance(app.screen, StudyScreen)
    return app.screen


async def opened(pilot: Pilot[Any]) -> None:
    await pilot.press("S")
    await pilot.pause()


@SIZES
@pytest.mark.parametrize("keys", [(), ("v",), ("v", "v")], ids=["values", "slices", "courses"])
def test_a_study(
    snap_compare: Callable[..., bool],
    filler: Filler,
    make_app: MakeApp,
    size: tuple[int, int],
    keys: tuple[str, ...],
) -> None:
    filler.overnight()
    filler.study()

    async def look(pilot: Pilot[Any]) -> None:
        for key in ("S", *keys):
            await pilot.press(key)
            await pilot.pause()

    assert snap_compare(make_app(), run_before=look, terminal_size=size)


async def test_the_overview_names_the_study_and_the_page_fills_the_screen(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        strip = text(app, "studies")
        assert "lr-search" in strip and "12 of 40 trials" in strip and "0.4044" in strip
        await opened(pilot)
        assert sum(pane.size.height for pane in page(app).query(Pane)) == 36
        assert page(app).row_ids == list(range(14))
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_a_home_without_studies_has_no_strip_and_an_empty_page(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        assert text(app, "studies") == ""
        await opened(pilot)
        assert page(app).study is None and page(app).row_ids == []
        await pilot.press("v", "o", "tab", "enter", "c")
        assert isinstance(app.screen, StudyScreen)


async def test_trials_are_sorted_by_value_the_complete_ones_first(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        await pilot.press("o")
        rows = page(app).row_ids
        assert rows[0] == 4 and rows[:8] == sorted(rows[:8], key=lambda number: value(app, number))
        assert {state(app, number) for number in rows[:8]} == {"complete"}


def value(app: GputuiApp, number: int) -> float:
    study = page(app).study
    assert study is not None
    found = study.trials[number].value
    assert found is not None
    return found


def state(app: GputuiApp, number: int) -> str:
    study = page(app).study
    assert study is not None
    return study.trials[number].state


async def test_a_filter_keeps_the_trials_that_match(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        await pilot.press("slash", *"pruned", "enter")
        assert {state(app, number) for number in page(app).row_ids} == {"pruned"}
        await pilot.press("escape")
        assert len(page(app).row_ids) == 14


async def test_the_trial_under_the_cursor_opens_as_a_run_and_is_compared(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        await pilot.press("down", "down", "enter")
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == "lr-search-1-t2"
        await pilot.press("escape")
        await pilot.press("c")
        assert isinstance(app.screen, CompareScreen)
        assert "lr-search-1-t4" in app.screen.comparison.run_ids


async def test_tab_goes_from_study_to_study(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.study("old-1", trials=6, state="finished", reason="its budget is spent", began_ago=90_000.0)
    filler.study()
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        shown = page(app).study
        assert shown is not None and shown.study.study_id == "lr-search-1"
        await pilot.press("tab")
        await pilot.pause()
        shown = page(app).study
        assert shown is not None and shown.study.study_id == "old-1" and len(page(app).row_ids) == 6


async def test_the_past_shows_the_trials_of_then(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.study(began_ago=5700.0)
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        app.look_back(Moment(NOW - 600.0))
        await pilot.pause()
        assert page(app).row_ids == list(range(13))
        assert [state(app, number) for number in (8, 9, 10, 11, 12)] == ["complete"] * 2 + ["pruned"] + ["running"] * 2


async def test_several_objectives_have_a_front(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.study(objectives=(Objective("val_loss"), Objective("latency_ms")))
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        views = []
        for _ in range(4):
            views.append(page(app).table.view)
            await pilot.press("v")
            await pilot.pause()
        assert views == ["values", "slices", "courses", "front"] and page(app).table.view == "values"


async def test_a_point_is_added_by_hand_from_that_of_a_trial(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        await pilot.press("n")
        line = page(app).line
        assert line is not None and "lr=0.00739" in line.text
        await pilot.press(*["backspace"] * len("muon"), *"adamw", "enter")
        await until(pilot, lambda: bool(asked(filler)))
        point = {"lr": 0.00739, "batch_size": 256, "optimizer": "adamw"}
        assert asked(filler) == [("study_enqueue", None, {"study": "lr-search-1", "set": point})]
        await pilot.press("n", "space", "x", "enter")
        assert len(asked(filler)) == 1 and "NAME=VALUE" in text(app, "message")


@pytest.mark.parametrize(("typed", "value"), [("1e-05", 1e-05), ("2e-3", 0.002), ("[", "["), ("{a", "{a")])
async def test_a_value_is_read_as_the_command_line_reads_it(
    app: GputuiApp, filler: Filler, typed: str, value: object
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        await pilot.press("n", "ctrl+u")
        page(app).type_line(None, f"lr={typed}")
        await until(pilot, lambda: bool(asked(filler)))
        assert asked(filler) == [("study_enqueue", None, {"study": "lr-search-1", "set": {"lr": value}})]


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_trial_is_pruned_and_kept(app: GputuiApp, filler: Filler, is_kept: bool) -> None:
    if is_kept:
        filler.connection.execute("UPDATE trials SET wish = 'keep' WHERE number = 13")
    async with app.run_test(size=(160, 36)) as pilot:
        await opened(pilot)
        assert ("kept" in text(app, "trials")) is is_kept
        await pilot.press("end", "x", "y")
        await until(pilot, lambda: len(asked(filler)) == 1)
        await pilot.press("e")
        await until(pilot, lambda: len(asked(filler)) == 2)
        trial = {"study": "lr-search-1", "trial": 13}
        assert asked(filler) == [("study_prune", None, trial), ("study_keep", None, {**trial, "keep": not is_kept})]


async def test_the_study_is_paused_and_stopped(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        await pilot.press("P")
        await until(pilot, lambda: len(asked(filler)) == 1)
        await pilot.press("X", "y")
        await until(pilot, lambda: len(asked(filler)) == 2)
        assert [verb for verb, _, _ in asked(filler)] == ["study_pause", "study_stop"]


async def test_the_same_rungs_of_trials_lie_below_each_other(app: GputuiApp) -> None:
    async with app.run_test(size=(170, 36)) as pilot:
        await opened(pilot)
        lines = text(app, "trials").splitlines()
        column = lines[1].index("CURVE")
        curves = {int(line[:5]): line[column : column + 10] for line in lines[2:16]}
        assert curves[0].strip() and len(curves[0].rstrip()) == 10
        # Pruned at rung 5 of 27, and still at rung 3.
        assert curves[2][0] != " " and len(curves[2].rstrip()) == 2
        assert curves[12][0] != " " and len(curves[12].rstrip()) == 2
        assert "rung 5: 7th of 9" in lines[4] and "pruned at" not in lines[4]


@pytest.mark.parametrize(("metric", "shown"), [("loss", (3.0, 2.0, 1.0)), ("val/accuracy", ())])
async def test_losses_are_a_trials_curve_only_where_the_loss_is_what_is_searched(
    app: GputuiApp, metric: str, shown: tuple[float, ...]
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        found = page(app).study
    assert found is not None and found.spec is not None
    objective = replace(found.spec.objectives[0], metric=metric)
    without_rungs = found._replace(rungs={}, spec=replace(found.spec, objectives=(objective,)))
    trial = next(trial for trial in found.trials if trial.run_id is not None)
    progress = {str(trial.run_id): Progress(losses=(3.0, 2.0, 1.0))}
    rows = {row.trial.number: row for row in trial_rows(without_rungs, progress, StudyTable())}
    assert rows[trial.number].curve == shown


async def test_a_trial_whose_run_is_queued_is_not_called_running(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        found = page(app).study
    assert found is not None
    trial = next(trial for trial in found.trials if trial.state is TrialState.RUNNING)
    for state, word in ((RunState.QUEUED, "queued"), (RunState.RUNNING, "running"), (RunState.FAILED, "running")):
        rows = trial_rows(found, {}, StudyTable(), {str(trial.run_id): state})
        assert next(row for row in rows if row.trial.number == trial.number).sign.word == word


async def test_small_parameters_have_exponents_below_each_other(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(pilot)
        found = page(app).study
    assert found is not None
    trials = [
        replace(trial, params={"lr": value}) for trial, value in zip(found.trials, (1.958e-5, 0.003), strict=False)
    ]
    assert list(_params(trials, "lr").values()) == ["1.958e-5", "3.000e-3"]
    assert list(_params(trials[1:], "lr").values()) == ["0.003"]
