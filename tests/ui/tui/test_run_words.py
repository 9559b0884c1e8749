"""The words of a row about a run that starts, stops, stalls or was resumed, from the store."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.metrics.progress import Progress, progress_now
from gputui.runs.spec import MetricsSpec, RunSpec
from gputui.store import checkpoints
from gputui.store.placements import PlacementState, PlacementView
from gputui.store.run_states import RunState
from gputui.store.runs import Run, StopRequest
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.tui.pages.compare.comparison import Comparison, compared_runs
from gputui.ui.tui.pages.run.head import run_head
from gputui.ui.views.run_words import (
    MOST_NAMED,
    awaits_step,
    placement_words,
    runs_question,
    shared_tag_words,
    silent_seconds,
    state_sign,
    status_line,
    unsaved_words,
    waiting_words,
)
from gputui.ui.views.snapshot import Interest, RunRow
from gputui.ui.views.words import run_state_text
from tests.homes import NOW, Home
from tests.ledgers import ledger_row
from tests.tables import table
from tests.texts import mentions
from tests.ui.tui.screens import read

RUN = Run(
    "a-1",
    1,
    "a",
    profile="a",
    state=RunState.RUNNING,
    attempt=1,
    params={},
    spec_json="{}",
    created_at=NOW - 100,
    started_at=NOW - 90,
    attempt_state="running",
    attempt_started_at=NOW - 90,
)


def row_of(workspace: Workspace, run_id: str) -> RunRow:
    return next(row for row in read(workspace).runs if row.run.run_id == run_id)


def test_a_start_has_a_clock_and_what_the_last_one_took(home: Home, workspace: Workspace) -> None:
    home.run("vit-1", "starting", name="vit", started_ago=14)
    home.attempt("vit-1", 1, "starting", started_ago=14)
    home.connection.execute("UPDATE attempts SET first_step_at = NULL")
    assert status_line(row_of(workspace, "vit-1"), NOW)[0] == "14 s"
    home.run("vit-0", "succeeded", name="vit", started_ago=500, ended_ago=400)
    home.attempt("vit-0", 1, "succeeded", started_ago=500, ended_ago=400)  # its first step came after 4 s
    home.run("bert-0", "succeeded", name="bert", started_ago=300, ended_ago=200)
    home.attempt("bert-0", 1, "succeeded", started_ago=300, ended_ago=200)
    home.connection.execute("UPDATE attempts SET first_step_at = started_at + 77 WHERE run_id = 'bert-0'")
    assert status_line(row_of(workspace, "vit-1"), NOW)[0] == "14 s (last time 4 s)"
    assert row_of(workspace, "vit-0").run.usual_start_seconds is None, "only what starts needs it"


def test_a_run_before_its_first_step_says_so_for_how_long_and_from_where(home: Home, workspace: Workspace) -> None:
    home.run("vit-0", "succeeded", name="vit", started_ago=500, ended_ago=400)
    home.attempt("vit-0", 1, "succeeded", started_ago=500, ended_ago=400)  # its first step came after 4 s
    home.run("vit-1", "running", name="vit", started_ago=300, attempt=2)
    home.attempt("vit-1", 1, "failed", started_ago=300, ended_ago=100)
    home.attempt("vit-1", 2, started_ago=20)
    home.connection.execute("UPDATE attempts SET first_step_at = NULL WHERE number = 2")
    row = row_of(workspace, "vit-1")
    assert awaits_step(row)
    assert status_line(row, NOW) == ("no step yet, 20 s (last time 4 s)", "text")
    home.connection.execute("UPDATE attempts SET resumed_step = 40 WHERE number = 2")
    assert status_line(row_of(workspace, "vit-1"), NOW)[0] == "from step 40, no step yet, 20 s (last time 4 s)"
    home.metrics("vit-1", 2, [{"step": 41, "time": NOW - 1, "loss": 1.0}])
    home.connection.execute("UPDATE attempts SET first_step_at = ? WHERE number = 2", (NOW - 1,))
    row = row_of(workspace, "vit-1")
    assert not awaits_step(row)
    assert "no step" not in status_line(row, NOW)[0]
    assert row.run.usual_start_seconds is None


@table("metrics, expected", [
    ([], None), ([MetricsSpec("auto")], "no step yet"),
    ([MetricsSpec("hf")], "come with its first checkpoint"), ([MetricsSpec("jsonl", "m.jsonl")], "no step yet"),
])  # fmt: skip
def test_a_run_whose_steps_are_never_known_awaits_none(metrics: list[MetricsSpec], expected: str | None) -> None:
    spec = RunSpec("a", "torchrun", ("a.py",), "/srv", python="/bin/python", metrics=tuple(metrics))
    row = RunRow(replace(RUN, spec_json=json.dumps(spec.to_json())), Progress())
    assert awaits_step(row) == (expected is not None)
    assert (expected or "") in status_line(row, NOW)[0]


def test_that_nothing_looks_like_metrics_is_said_once_lines_were_seen_and_none_was_ever_read(
    home: Home, workspace: Workspace
) -> None:
    home.run("vit-1", attempt=2)
    home.attempt("vit-1", 1, "failed", started_ago=300, ended_ago=100)
    home.attempt("vit-1", 2, started_ago=20)
    home.connection.execute("UPDATE attempts SET first_step_at = NULL")
    assert status_line(row_of(workspace, "vit-1"), NOW)[0] == "no step yet, 20 s"
    text = "it has printed 200 lines, but nothing looks like metrics"
    query = "INSERT INTO observations (run_id, attempt, at, kind, text) VALUES ('vit-1', ?, ?, 'no_metrics', ?)"
    home.connection.execute(query, (1, NOW - 200, text))
    assert status_line(row_of(workspace, "vit-1"), NOW)[0] == "no step yet, 20 s", "that was of the attempt before"
    home.connection.execute(query, (2, NOW - 1, text))
    assert status_line(row_of(workspace, "vit-1"), NOW)[0] == f"no step yet, 20 s · {text}"
    home.metrics("vit-1", 1, [{"step": 41, "time": NOW - 150, "loss": 1.0}])
    assert row_of(workspace, "vit-1").run.no_metrics is None, "the attempt before was read"


@table("state, waiting_for, expected", [
    (RunState.RUNNING, None, "attempt 1 has ended; its logs and checkpoints are being read"),
    (RunState.STOPPING, None, "attempt 1 has ended; its logs and checkpoints are being read"),
    (RunState.RUNNING, "has ended, and waits for a reading of its GPUs",
     "attempt 1 has ended, and waits for a reading of its GPUs"),
])  # fmt: skip
def test_a_run_whose_command_has_exited_says_what_it_waits_for_and_its_time_stands_still(
    state: RunState, waiting_for: str | None, expected: str
) -> None:
    run = replace(RUN, state=state, attempt_exited_at=NOW - 30, waiting_for=waiting_for)
    assert expected == status_line(RunRow(run, Progress(step=7)), NOW)[0]
    assert run_state_text(run) == ("ending" if state is RunState.RUNNING else "stopping")
    assert silent_seconds(RunRow(run, Progress(step=7, newest_at=NOW - 90, steps_per_second=1.0)), NOW) is None
    assert run.trained_seconds(NOW) == run.trained_seconds(NOW + 60) == 60.0


def test_a_stop_says_since_when_what_for_and_until_when(home: Home, workspace: Workspace) -> None:
    home.run("vit-1", "stopping")
    home.attempt("vit-1", 1)
    home.transition("vit-1", "running", "stopping", "stop", 12)
    row = row_of(workspace, "vit-1")
    assert row.run.stop == StopRequest(NOW - 12, 35.0, is_kill=False)
    line, style = status_line(row, NOW)
    assert "12 s" in line
    assert "killed in 23 s" in line
    assert style == "text"
    assert "being killed" in status_line(row, NOW + 30)[0]
    home.connection.execute("UPDATE attempts SET stop_requested = 'kill'")
    assert row_of(workspace, "vit-1").run.stop == StopRequest(NOW - 12, 35.0, is_kill=True)


def test_a_stop_that_a_hung_rank_holds_up_says_for_how_long_no_step_came() -> None:
    run = replace(RUN, state=RunState.STOPPING, stop=StopRequest(NOW - 20, 35.0))
    line, style = status_line(RunRow(run, Progress(step=40, steps_per_second=10.0, newest_at=NOW - 26)), NOW)
    assert "no step for 26 s" in line
    assert style == "warn"
    line, style = status_line(RunRow(run, Progress(step=40, steps_per_second=10.0, newest_at=NOW - 0.2)), NOW)
    assert "no step" not in line
    assert style == "text"


def test_a_script_that_tells_of_every_hundredth_step_is_not_silent_between_two_of_them(
    home: Home, workspace: Workspace
) -> None:
    home.run("vit-1", "running")
    home.attempt("vit-1", 1)
    ranks = [{"step": 100 * number, "time": NOW - 400 + 40 * number, "loss": 1.0} for number in range(1, 10)]
    home.metrics("vit-1", 1, [{**line, "rank": rank} for line in ranks for rank in range(2)])
    row = row_of(workspace, "vit-1")
    assert row.progress.report_seconds == pytest.approx(40.0)
    assert row.progress.steps_per_second == pytest.approx(2.5)
    assert silent_seconds(row, NOW + 60) is None
    assert silent_seconds(row, NOW + 200) == pytest.approx(240.0)
    assert "usually 40 s" in status_line(row, NOW + 200)[0]


def test_a_pause_within_the_last_minute_is_no_slower_pace(home: Home, workspace: Workspace) -> None:
    """As the processes of the demo, which begin some seconds after its past ended, or a validation."""
    home.run("vit-1", "running")
    home.attempt("vit-1", 1)
    times = [*(NOW - 50 + 0.5 * number for number in range(40)), *(NOW - 10 + 0.5 * number for number in range(21))]
    lines = [{"step": step, "time": at, "loss": 1.0, "total_steps": 261} for step, at in enumerate(times, 1)]
    home.metrics("vit-1", 1, lines)
    progress = row_of(workspace, "vit-1").progress
    assert progress.steps_per_second == pytest.approx(2.0)
    assert progress.seconds_left == pytest.approx(200 * 50 / 60), "such pauses will come again"


def test_reports_of_one_step_by_several_lines_are_one(home: Home, workspace: Workspace) -> None:
    """Trainers print a line for the loss and, some time later, one for the validation, at the same step."""
    home.run("vit-1", "running")
    home.attempt("vit-1", 1)
    times = [(step, NOW - 60 + 5.0 * step + late) for step in range(12) for late in (0.0, 2.0)]
    lines = [{"step": step, "time": at, "loss": 1.0, "total_steps": 111} for step, at in times]
    home.metrics("vit-1", 1, lines)
    progress = row_of(workspace, "vit-1").progress
    assert progress.steps_per_second == pytest.approx(0.2)
    assert progress.seconds_left == pytest.approx(500.0)


@table("contact, age, poll, problem, expected", [
    (30.0, 30.5, 60.0, None, None), (89.0, 89.5, 60.0, None, None), (1.0, 40.0, 2.0, None, "usually 0.1 s"),
    (30.0, 30.5, 60.0, "no route", "lab: running"), (33.0, 33.5, 2.0, None, "lab: running"),
    (91.0, 91.5, 60.0, None, "lab: running"), (61.0, 61.5, 60.0, None, None), (63.0, 63.5, 2.0, None, "lab: unknown"),
    (121.0, 121.5, 60.0, None, "lab: unknown"),
])  # fmt: skip
def test_a_step_that_was_not_fetched_yet_is_not_missing(
    contact: float, age: float, poll: float, problem: str | None, expected: str | None
) -> None:
    placed = PlacementView("running", contact_at=NOW - contact, poll_seconds=poll, problem=problem)
    progress = Progress(step=40, steps_per_second=10.0, newest_at=NOW - age)
    line = status_line(RunRow(replace(RUN, target="lab", placement=placed), progress), NOW)[0]
    assert line.startswith(expected) if expected is not None else "usually" not in line
    stopping = replace(RUN, state=RunState.STOPPING, stop=StopRequest(NOW - 9, 35.0), placement=placed)
    assert ("no step" in status_line(RunRow(stopping, progress), NOW)[0]) == (age > contact + 1.0)


@table("is_kill, expected", [(False, "gputui stop --now"), (True, "given up")])
def test_a_stop_that_its_target_does_not_answer_says_so_and_names_the_way_out(is_kill: bool, expected: str) -> None:
    placed = PlacementView("running", contact_at=NOW - 300, problem="no route")
    run = replace(RUN, target="lab", state=RunState.STOPPING, placement=placed)
    line = status_line(RunRow(replace(run, stop=StopRequest(NOW - 9, 35.0, is_kill)), Progress()), NOW)[0]
    assert "no route" in line
    assert expected in line


@table("state, is_ending", [("running", True), ("starting", True), ("failed", False)])
def test_a_run_whose_job_has_ended_does_not_run(state: str, is_ending: bool) -> None:
    place = PlacementView("ended", reason="FAILED", nodes=("n1",), contact_at=NOW)
    run = replace(RUN, state=RunState(state), target="lab", placement=place)
    assert run.has_ended_there == (run.shown_state == "ending") == is_ending
    assert ("being examined" in placement_words(run, NOW)[0]) == is_ending


@table("state, placed, expected", [
    ("queued", None, "waits for GPUs"), ("running", "pending", "lab: pending (Priority)"), ("running", "running", ""),
    ("running", "suspended", "lab: suspended (Priority)"), ("succeeded", "pending", ""),
])  # fmt: skip
def test_what_a_run_waits_for_in_a_queue(state: str, placed: PlacementState | None, expected: str) -> None:
    place = None if placed is None else PlacementView(placed, reason="Priority", contact_at=NOW)
    run = replace(RUN, state=RunState(state), target="lab", placement=place, waiting_for="waits for GPUs")
    assert waiting_words(run, NOW) == expected


def test_a_stop_says_what_is_not_saved(home: Home, workspace: Workspace) -> None:
    home.run("vit-1", "stopping")
    home.attempt("vit-1", 1)
    home.transition("vit-1", "running", "stopping", "stop", 12)
    stop = row_of(workspace, "vit-1").run.stop
    assert stop is not None
    assert stop.saved_step is None
    assert unsaved_words(40, stop).startswith("40 steps")
    assert unsaved_words(None, stop) == ""
    for step, verdict in ((30, "valid"), (39, "struck"), (20, "unexamined")):
        checkpoints.save(home.connection, "vit-1", (), [ledger_row(str(step), step=step, verdict=verdict)])
    stop = row_of(workspace, "vit-1").run.stop
    assert stop is not None
    assert stop.saved_step == 30
    assert unsaved_words(40, stop).startswith("10 steps")
    assert unsaved_words(30, stop) == ""
    assert mentions(status_line(row_of(workspace, "vit-1"), NOW)[0], "save a checkpoint")


def test_a_success_with_a_loss_that_is_no_number_says_so(home: Home, workspace: Workspace) -> None:
    home.run("vit-1", "succeeded")
    home.attempt("vit-1", 1)
    assert status_line(row_of(workspace, "vit-1"), NOW)[1] == "dim"
    home.connection.execute("UPDATE attempts SET exit = ?", ('{"unsound_since": 1200}',))
    line, style = status_line(row_of(workspace, "vit-1"), NOW)
    assert mentions(line.replace("\u202f", " "), "not finite", "1 200")
    assert style == "warn"


@table("state, number, step, loss", [
    ("failed", "failed", 19, 5.0), ("queued", "failed", 19, 5.0), ("running", "running", None, None),
])  # fmt: skip
def test_the_step_of_a_run_is_the_last_of_any_attempt_unless_one_lives(
    home: Home, workspace: Workspace, state: str, number: str, step: int | None, loss: float | None
) -> None:
    home.run(f"{state}-1", state, attempt=2, ended_ago=60.0 if state == "failed" else None)
    home.attempt(f"{state}-1", 1, "failed", ended_ago=3600.0)
    home.metrics(f"{state}-1", 1, [{"step": 19, "time": NOW - 4000, "loss": 5.0}])
    ended_ago = None if state == "running" else 60.0
    home.attempt(f"{state}-1", 2, number, started_ago=120.0, ended_ago=ended_ago)
    progress = row_of(workspace, f"{state}-1").progress
    assert (progress.step, progress.loss) == (step, loss)
    now = progress_now(home.connection, row_of(workspace, f"{state}-1").run)
    assert (now.step, now.loss) == (step, loss)


def test_the_parameters_say_how_long_a_script_trains(home: Home, workspace: Workspace) -> None:
    totals = [({"max_iters": 400}, 400), ({"max_steps": -1}, None), ({"steps": 30}, None), ({"steps": True}, None)]
    for number, (params, total) in enumerate(totals):
        run_id = f"vit-{number}"
        home.run(run_id, params={**params, "lr": 0.1})
        home.attempt(run_id, 1)
        home.metrics(run_id, 1, [{"step": step, "time": NOW - 41 + step, "loss": 1.0} for step in range(41)])
        progress = row_of(workspace, run_id).progress
        assert (progress.step, progress.total_steps) == (40, total), params
        expected = None if total is None else pytest.approx(360.0, rel=0.1)
        assert progress.seconds_left == expected, params


def test_a_run_that_has_done_its_last_step_finishes() -> None:
    progress = Progress(step=60, total_steps=60, steps_per_second=6.0, newest_at=NOW - 14)
    assert status_line(RunRow(RUN, progress), NOW) == ("finishing for 14 s", "text")
    assert status_line(RunRow(RUN, progress), NOW + 600)[1] == "warn"
    assert status_line(RunRow(RUN, replace(progress, step=59)), NOW)[0] == "usually 0.2 s"


@table("state, age, word, style", [
    (RunState.RUNNING, 0.5, "● running", "good"), (RunState.RUNNING, 14.0, "▲ no step 14 s", "warn"),
    (RunState.STOPPING, 14.0, "◑ stopping", "warn"),
])  # fmt: skip
def test_a_run_without_progress_has_one_sign_on_all_pages(
    home: Home, workspace: Workspace, state: RunState, age: float, word: str, style: str
) -> None:
    home.run(f"{word}-1")
    row = RunRow(replace(RUN, state=state), Progress(step=40, steps_per_second=6.0, newest_at=NOW - age))
    sign = state_sign(row, NOW)
    assert (f"{sign.glyph} {sign.word}", sign.style) == (word, style)
    page = SnapshotReader(workspace).read(home.connection, NOW, Interest(f"{word}-1")).page
    assert page is not None
    head = run_head(replace(page, run=row.run, progress=row.progress), (), NOW, width=120, past=None, keys={})
    assert (word, style) in head
    (compared,) = compared_runs([row], {}, Comparison((row.run.run_id,)), "loss", NOW)
    assert compared.sign == sign


def test_a_question_about_several_runs_names_them_with_their_sizes() -> None:
    runs = [replace(RUN, run_id=f"a-{number}", size_bytes=2**30) for number in range(1, 4)]
    question = runs_question(runs, {"b-1": "not ended yet"}, "Gone.", with_sizes=True)
    assert mentions(question, "a-1 (1 GiB)", "a-3", "Together 3 GiB", "Gone.", "b-1 (not ended yet)")
    assert "at least" not in question
    question = runs_question([*runs, RUN], {}, "", with_sizes=True)
    assert "at least 3 GiB" in question
    assert "Left out" not in question
    many = [replace(RUN, run_id=f"c-{number}") for number in range(MOST_NAMED + 5)]
    question = runs_question(many, {}, "")
    assert mentions(question, f"c-{MOST_NAMED - 1}", "5 more")
    assert f"c-{MOST_NAMED}," not in question


def test_tags_of_several_runs_are_shown_with_their_runs() -> None:
    tags = [("all", "most", "small"), ("all", "most"), ("all", "most"), ("all", "most"), ("all",)]
    runs = [replace(RUN, run_id=f"a-{number}", tags=labels) for number, labels in enumerate(tags, 1)]
    assert shared_tag_words(runs) == "all, most (4 of 5), small (a-1)"
    assert shared_tag_words(runs[4:]) == "all"
    assert shared_tag_words([RUN]) == ""
