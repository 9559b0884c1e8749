"""One run: waiting for it, continuing, naming and importing it; and the newest, where none is named."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.metrics.trackers import steps_of
from gputui.runs.identity import actor
from gputui.runs.labels import LABELS_FILE
from gputui.store import commands
from gputui.ui.cli.context import Session
from gputui.ui.cli.resume import checkpoint_path
from tests.conftest import wait_until
from tests.homes import Home, open_store
from tests.ledgers import ledger_row
from tests.machines import Machine
from tests.metrics.tracker_files import append, chunked, event, events_of, history
from tests.stories import bad_night, overnight
from tests.ui.cli.program import json_of, output_of


def stopped(machine: Machine) -> str:
    machine.gputui("run", machine.profile(), "--set", "steps=2000")
    wait_until(lambda: len(machine.steps("steps-1")) > 15, 60, "some steps")
    machine.gputui("stop", "steps-1")
    machine.wait_for("steps-1", "stopped")
    return "steps-1"


def test_waiting_shows_the_incident_the_decision_and_the_story(machine: Machine) -> None:
    output = machine.gputui("run", machine.profile(), "--set", "fail_at=25", "--wait")
    lines = output.splitlines()
    stored = [row[0] for row in machine.rows("SELECT message FROM events WHERE run_id = 'steps-1' ORDER BY event_id")]
    printed = [line[11:] for line in lines if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert printed == stored
    assert next(line[9] for line in lines if re.match(r"\d\d:\d\d:\d\d [✗▲]", line)) == "✗"
    assert "\x1b" not in output, "no terminal, no rewritten line"
    story = machine.gputui("explain").split("\n\n")
    assert story[1] in output, "the attempt's paragraph"
    assert machine.gputui("explain") == machine.gputui("explain", "steps-1")


def test_commands_without_a_run_take_the_newest(home: Home, workspace: Workspace) -> None:
    assert "no runs yet" in output_of(workspace, "ps", "--active")
    for number in (1, 2):
        home.run(f"steps-{number}", "succeeded", ended_ago=10.0)
        home.attempt(f"steps-{number}", 1, "succeeded", ended_ago=10.0)
    assert json_of(workspace, "show")["id"] == "steps-2"
    assert output_of(workspace, "explain") == output_of(workspace, "explain", "steps-2")
    assert "2 that are over" in output_of(workspace, "ps", "--active")
    assert json_of(workspace, "ps", "--active") == []


def test_a_list_names_each_profile_where_one_is_not_told_by_a_run_s_name(home: Home, workspace: Workspace) -> None:
    home.run("steps-1", "succeeded", ended_ago=10.0)
    home.connection.execute("UPDATE runs SET profile = 'steps'")
    assert "PROFILE" not in output_of(workspace, "ps")
    home.run("typo-1", "failed", ended_ago=10.0)
    home.connection.execute("UPDATE runs SET profile = 'steps'")
    head, *rows = output_of(workspace, "ps").splitlines()
    assert "PROFILE" in head
    assert all("  steps  " in row for row in rows if "-1" in row)


def test_a_complete_run_is_resumed_only_on_request(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--wait")
    machine.gputui("resume", "steps-1", code=3)
    assert machine.json("show", "steps-1")["attempt"] == 1
    machine.gputui("resume", "steps-1", "--force")
    assert machine.wait_for("steps-1", "succeeded")
    assert machine.json("show", "steps-1")["attempt"] == 2


def test_a_finished_run_keeps_its_last_step_and_loss_in_the_list(home: Home, workspace: Workspace) -> None:
    home.run("steps-1", "succeeded", ended_ago=10.0)
    home.attempt("steps-1", 1, "succeeded", ended_ago=10.0)
    home.metrics("steps-1", 1, [{"step": step, "time": home.now - 20, "loss": 1 / (step + 1)} for step in range(3)])
    heads, row = (line.split() for line in output_of(workspace, "ps").splitlines()[:2])
    assert (row[heads.index("STEP")], row[heads.index("LOSS")]) == ("2", "0.3333")


def test_an_agent_that_ended_before_it_read_a_command_is_started_again(machine: Machine) -> None:
    open_store(machine.workspace.database).close()
    session = Session(machine.workspace)
    with closing(session.commander()) as connection:
        command_id = commands.submit(connection, "queue_pause", run_id=None, args={}, actor="me", now=time.time())
        assert session.wait(connection, command_id, 30.0) == {"paused": True}


def test_a_run_after_another_starts_once_that_has_succeeded(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    follower = machine.gputui("run", machine.profile(), "--after", "steps-1", "--set", "steps=3", "--json")
    assert '"steps-2"' in follower
    wait_until(lambda: "steps-1" in (machine.json("show", "steps-2")["reason"] or ""), what="what it waits for")
    assert machine.json("show", "steps-2")["attempt"] == 0
    machine.finish("steps-1")
    machine.wait_for("steps-2", "succeeded")
    ends = dict(machine.rows("SELECT run_id, started_at FROM attempts"))
    (ended,) = machine.rows("SELECT ended_at FROM attempts WHERE run_id = 'steps-1'")
    assert ends["steps-2"] >= ended[0]
    assert "no run" in machine.gputui("run", machine.profile(), "--after", "nothing-9", code=3)


def test_resume_names_the_checkpoint_and_the_time_between_does_not_count(machine: Machine) -> None:
    run_id = stopped(machine)
    with closing(sqlite3.connect(machine.workspace.database)) as connection, connection:
        connection.execute("UPDATE attempts SET started_at = started_at - 7200, ended_at = ended_at - 7200")
        connection.execute("UPDATE runs SET started_at = started_at - 7200")
    saved = machine.steps(run_id)[-1][1] + 1
    message = f"stopped by {actor()}; it can go on from step {saved - 1}"
    assert machine.rows("SELECT message FROM events WHERE kind = 'stopped'") == [(message,)]
    printed = machine.gputui("resume", run_id)
    assert f"queued from step_{saved:06d}.pt;" in printed
    assert "logs" in printed
    wait_until(lambda: any(attempt == 2 for attempt, _ in machine.steps(run_id)), 60, "a step of the next attempt")
    assert " h" not in machine.gputui("ps").splitlines()[1]
    machine.gputui("stop", run_id)
    machine.wait_for(run_id, "stopped")
    # `resume --json` has the same facts as fields.
    (answer,) = machine.json("resume", run_id)
    assert answer["resume_from"].endswith(".pt")
    assert answer["resume_step"] > saved
    machine.gputui("stop", run_id)
    machine.wait_for(run_id, "stopped")
    newest = max((machine.workspace.run_dir(run_id) / "checkpoints").glob("step_*.pt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    assert newest.name in machine.json("resume", run_id)[0]["passed_over"]
    machine.gputui("stop", run_id)


def test_a_path_or_the_name_of_one_of_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [ledger_row(name) for name in ("step_1.pt", "a/last.pt", "b/last.pt")]
    assert checkpoint_path("step_1.pt", rows) == "/c/step_1.pt"
    assert checkpoint_path("/c/step_2.pt", rows) == "/c/step_2.pt"
    # A name of two checkpoints, and a name of a file that lies here, are paths.
    assert checkpoint_path("last.pt", rows) == str(tmp_path / "last.pt")
    (tmp_path / "step_1.pt").touch()
    assert checkpoint_path("step_1.pt", rows) == str(tmp_path / "step_1.pt")


def test_a_run_is_renamed_tagged_and_noted(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    (tagged,) = machine.json("label", "steps-1", "--tag", "base", "--tag", "lr:0.1", "--tag", "old")
    assert tagged["tags"] == ["base", "lr:0.1", "old"]
    assert machine.json("label", "steps-1", "--untag", "old")[0]["tags"] == ["base", "lr:0.1"]
    (labelled,) = machine.json("label", "steps-1", "--name", "baseline", "--note", "first try")
    assert (labelled["name"], labelled["note"]) == ("baseline", "first try")
    for selector in ("baseline", "steps-1"):
        run = machine.json("show", selector)
        assert (run["id"], run["name"], run["tags"]) == ("steps-1", "baseline", ["base", "lr:0.1"])
    listed = machine.gputui("ps", "--tag", "base").splitlines()
    assert listed[0].split()[:3] == ["RUN", "NAME", "TAGS"]
    assert "#base #lr:0.1" in listed[1]
    assert "first try" in listed[1]
    assert "baseline" in machine.gputui("show", "steps-1")
    assert machine.json("ps", "--tag", "base", "--tag", "none") == []
    assert machine.json("label", "baseline") == [labelled]
    keys = machine.rows("SELECT key FROM events WHERE kind = 'labelled' ORDER BY event_id")
    assert keys == [("tags",), ("tags",), ("name",), ("note",)]
    # The next run of the profile gets an id of its own, also where the folder of the renamed one is gone.
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    assert {run["id"] for run in machine.json("ps")} == {"steps-1", "steps-2"}
    assert machine.json("label", "baseline", "--note", "")[0]["note"] is None


def test_labels_survive_a_lost_database(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    machine.gputui("label", "steps-1", "--tag", "base", "--name", "baseline")
    machine.gputui("agent", "stop")
    for path in machine.workspace.state.glob("gputui.db*"):
        path.unlink()
    machine.gputui("agent", "start")
    run = machine.json("show", "baseline")
    assert (run["id"], run["tags"], run["note"]) == ("steps-1", ["base"], None)
    assert json.loads((machine.workspace.run_dir("steps-1") / LABELS_FILE).read_text())["tags"] == ["base"]


def test_steps_are_put_together_from_all_files(tmp_path: Path) -> None:
    append(events_of(tmp_path / "train"), event(1, loss=0.5) + event(2, loss=0.25) + event(2, lr=0.125) + b"rest")
    append(events_of(tmp_path / "val"), event(2, loss=0.75))
    events_of(tmp_path / "empty").touch()
    assert steps_of("tensorboard", tmp_path) == {
        1: {"step": 1, "time": 1.6e9 + 1, "train/loss": 0.5},
        2: {"step": 2, "time": 1.6e9 + 2, "train/loss": 0.25, "train/lr": 0.125, "val/loss": 0.75},
    }


def test_an_imported_run_has_ended_and_its_metrics(machine: Machine) -> None:
    folder = machine.folder / "a {run_dir} name"
    append(events_of(folder), event(1, loss=0.5) + event(2, loss=0.25))
    append(events_of(folder, "run-x1.wandb"), chunked([history(1, 0.75)]))
    ids = [run["id"] for run in machine.json("import", str(folder))]
    assert ids == ["x1-1", "a-run_dir-name-1"]
    for run_id, points in zip(ids, ([(1, 0.75)], [(1, 0.5), (2, 0.25)]), strict=True):
        machine.wait_for(run_id, "succeeded")
        assert [(point["step"], point["value"]) for point in machine.json("metrics", run_id, "loss")] == points
    (machine.folder / "none").mkdir()
    machine.gputui("import", str(machine.folder / "none"), code=2)


def test_an_explanation_as_json_has_what_show_has_and_the_paragraphs(home: Home, workspace: Workspace) -> None:
    overnight(home)
    bad_night(home)
    folder = workspace.run_dir("vit-b16-1") / "incidents" / "1-cuda_oom"
    folder.mkdir(parents=True)
    explained = json_of(workspace, "explain", "vit-b16-1")
    run = json_of(workspace, "show", "vit-b16-1")
    assert explained["attempts"][:2] == run["attempts"][:2]
    assert explained["cost_of_failures"] == run["cost_of_failures"]
    assert set(explained) - set(run) == {"paragraphs", "alerts", "evidence_folders"}
    printed = " ".join(output_of(workspace, "explain", "vit-b16-1").split())
    assert all(paragraph in printed for paragraph in explained["paragraphs"])
    assert len(explained["paragraphs"]) >= 5
    assert [alert["rule"] for alert in explained["alerts"]].count("gradient_norm") == 1
    assert explained["evidence_folders"] == json_of(workspace, "explain", "vit-b16-1", "--evidence") == [str(folder)]
    assert json_of(workspace, "explain", "resnet50-2", "--evidence") == []
