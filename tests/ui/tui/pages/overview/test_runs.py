"""The table of runs, as text."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.metrics.progress import Progress
from gputui.store.run_states import RunState
from gputui.ui.tui.layout.lists import filter_rows
from gputui.ui.tui.pages.overview.run_order import entry_words
from gputui.ui.tui.pages.overview.runs import RunsState, runs_panel
from gputui.ui.views.snapshot import Snapshot
from tests.homes import NOW, Home
from tests.stories import curve
from tests.ui.tui.screens import read, text_of


def test_losses_and_steps_are_never_cut(snapshot: Snapshot) -> None:
    row = snapshot.runs[0]

    def line(width: int, **progress: float) -> str:
        changed = replace(row, progress=replace(row.progress, **progress))
        return text_of(runs_panel([changed], RunsState(), snapshot, width, 2))[1]

    losses = {1.9421: "1.942", 0.012345: "0.01235", 0.004332: "0.00433", 0.00043: "0.00043", 4.3e-5: "4.3e-5",
              123456.0: "123456", 0.2052: "0.205", 3.0: "3.000", 0.0: "0"}  # fmt: skip
    for loss, text in losses.items():
        assert f" {text}  6 h" in line(80, loss=loss), loss
        assert "…" not in line(80, loss=loss), loss
    for step, total, text in ((3_060, 8_000, "3 060/8 000"), (49_026, 120_000, "49 026/120k"),
                               (12_345_678, 99_000_000, "12 345 678")):  # fmt: skip
        assert f" {text} " in line(120, step=step, total_steps=total), step


@pytest.mark.parametrize(
    ("state", "step", "share", "text"),
    [
        pytest.param("succeeded", 599, 1.0, "100%", id="ended a step early"),
        pytest.param("succeeded", None, None, "", id="no step is known"),
        pytest.param("failed", 300, 0.5, "step 300 · ", id="the reason takes the room of the progress"),
        pytest.param("running", 600, 1.0, "100%", id="at its last step"),
        pytest.param("running", 900, 1.0, "100%", id="beyond its last step"),
    ],
)
def test_a_run_that_succeeded_is_done(
    snapshot: Snapshot, state: str, step: int | None, share: float | None, text: str
) -> None:
    row = snapshot.runs[0]
    row = replace(row, run=replace(row.run, state=RunState(state)), progress=Progress(step=step, total_steps=600))
    assert row.share_done == share
    line = text_of(runs_panel([row], RunsState(), snapshot, 160, 2))[1]
    assert text in line
    assert ("%" in line) is ("%" in text)


@pytest.mark.parametrize("width", [50, 60, 80, 120, 200])
def test_a_recovered_run_says_so_in_every_width_however_it_ended(home: Home, workspace: Workspace, width: int) -> None:
    for state in ("succeeded", "failed", "stopped"):
        home.run(state, state, attempt=2, ended_ago=60)
        home.attempt(state, 2, state, ended_ago=60, last_step=300)
    home.run("first-1", "succeeded", ended_ago=60)
    snapshot = read(workspace)
    rows = text_of(runs_panel(snapshot.runs, RunsState(), snapshot, width, 9))
    assert [state for state in ("succeeded", "failed", "stopped") if any(f" {state} ↻1" in row for row in rows)] == [
        "succeeded", "failed", "stopped",
    ]  # fmt: skip
    assert "↻" not in next(row for row in rows if "first-1" in row)


def test_the_filter_needs_every_word(snapshot: Snapshot) -> None:
    assert [row.run.run_id for row in filter_rows(snapshot.runs, "running vit", entry_words)] == ["vit-b16-1"]
    assert [row.run.run_id for row in filter_rows(snapshot.runs, "KeyError", entry_words)] == ["resnet50-2"]
    assert filter_rows(snapshot.runs, "nothing like it", entry_words) == []
    assert (
        "No run matches"
        in text_of(runs_panel([], RunsState(cursor=None, top=0, filter_text="x"), Snapshot(NOW), 80, 3))[1]
    )
    assert "Press n" in text_of(runs_panel([], RunsState(), Snapshot(NOW), 80, 3))[1]


def test_no_column_of_runs_is_wider_than_its_cells_and_which_gpus_is_never_cut(
    home: Home, workspace: Workspace
) -> None:
    home.agent()
    home.gpus(8)
    home.run("a-1", gpus=(0, 1, 3, 5, 7))
    curve(home, "a-1", 1, 0, 40)
    home.run("b-1", "failed", ended_ago=60.0, reason="it broke")
    for width in (120, 160, 200):
        snapshot = read(workspace)
        heading, training, failed = text_of(runs_panel(snapshot.runs, RunsState(), snapshot, width, 3))
        assert " 0–1, 3, 5, 7" in training
        assert "LOST" not in heading, "no failure cost anything"
        if "PROFILE" in heading:
            assert heading.index("PROFILE") - heading.index("TIME") == len("TIME  ")
        assert failed.index("1 min ago") == heading.index("PROGRESS")


@pytest.mark.parametrize(("width", "number", "part"), [(60, 9, "1–3 of 9"), (80, 9, "1–3 of 9"), (80, 400, "1–3/400"),
                                                        (120, 40, "1–3 of 40")])  # fmt: skip
def test_the_shown_part_of_a_long_list_covers_no_heading(
    snapshot: Snapshot, width: int, number: int, part: str
) -> None:
    rows = list(itertools.islice(itertools.cycle(snapshot.runs), number))
    [heading, *_] = text_of(runs_panel(rows, RunsState(), snapshot, width, 4))
    assert heading.startswith((f" RUNS {part} ─", f" RUNS {part}  "))
    heads = heading.split(part)[1].replace("─", " ").split()
    assert heads[0] == "STATE"
    assert heads[-1] == "ETA"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_columns_stay_where_they_are_as_the_state_of_a_run_changes(snapshot: Snapshot, width: int) -> None:
    row = snapshot.runs[0]
    headings = set()
    for state, attempt in itertools.product(("starting", "running", "recovering", "stopping"), (1, 2)):
        changed = replace(row, run=replace(row.run, state=RunState(state), attempt=attempt))
        heading = text_of(runs_panel([changed], RunsState(), snapshot, width, 2))[0]
        headings.add((heading.index("STATE"), heading.index("STEP")))
    assert len(headings) == 1


def test_runs_without_gpus_have_no_column_of_gpus(home: Home, workspace: Workspace) -> None:
    home.agent()
    home.gpus(2)
    home.run("cpu-1", gpus=())
    curve(home, "cpu-1", 1, 0, 40)
    for width in (120, 200):
        snapshot = read(workspace)
        assert " GPUS " not in text_of(runs_panel(snapshot.runs, RunsState(), snapshot, width, 2))[0]
