"""`gputui label`, through a real agent; a lost database keeps what they did."""

from __future__ import annotations

import json

from gputui.runs.labels import LABELS_FILE
from tests.machines import Machine


def test_a_run_is_renamed_tagged_and_noted(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    tagged = machine.json("label", "steps-1", "--tag", "base", "--tag", "lr:0.1", "--tag", "old")
    assert tagged["tags"] == ["base", "lr:0.1", "old"]
    assert machine.json("label", "steps-1", "--untag", "old")["tags"] == ["base", "lr:0.1"]
    labelled = machine.json("label", "steps-1", "--name", "baseline", "--note", "first try")
    assert (labelled["name"], labelled["note"]) == ("baseline", "first try")
    for wanted in ("baseline", "steps-1"):
        shown = machine.json("show", wanted)
        assert (shown["id"], shown["name"], shown["tags"]) == ("steps-1", "baseline", ["base", "lr:0.1"])
    listed = machine.gputui("ps", "--tag", "base").splitlines()
    assert (
        listed[0].split()[:3] == ["RUN", "NAME", "TAGS"] and "#base #lr:0.1" in listed[1] and "first try" in listed[1]
    )
    assert "baseline" in machine.gputui("show", "steps-1")
    assert machine.json("ps", "--tag", "base", "--tag", "none") == []
    assert machine.json("label", "baseline") == labelled
    keys = machine.rows("SELECT key FROM events WHERE kind = 'labelled' ORDER BY event_id")
    assert keys == [("tags",), ("tags",), ("name",), ("note",)]
    # The next run of the profile gets an id of its own, also where the folder of the renamed one is gone.
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    assert {run["id"] for run in machine.json("ps")} == {"steps-1", "steps-2"}
    assert machine.json("label", "baseline", "--note", "")["note"] is None


def test_labels_survive_a_lost_database(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    machine.gputui("label", "steps-1", "--tag", "base", "--name", "baseline")
    machine.gputui("agent", "stop")
    for path in machine.workspace.state.glob("gputui.db*"):
        path.unlink()
    machine.gputui("agent", "start")
    shown = machine.json("show", "baseline")
    assert (shown["id"], shown["tags"], shown["note"]) == ("steps-1", ["base"], None)
    assert json.loads((machine.workspace.run_dir("steps-1") / LABELS_FILE).read_text())["tags"] == ["base"]
