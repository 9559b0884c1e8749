"""Commands about several runs: named, or chosen by what they have in common."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator

import pytest

from gputui.core.config import Workspace
from gputui.store.checkpoints import note_scan
from gputui.ui.cli import selection
from tests.homes import Home
from tests.machines import Machine
from tests.tables import table
from tests.texts import mentions
from tests.ui.cli.program import call, error_of, json_of, output_of

DAY = 86_400.0


@pytest.fixture
def home(workspace: Workspace) -> Iterator[Home]:
    """Two old runs that have ended, a young one, and one that trains."""
    home = Home(workspace, time.time())
    for run_id, state, days in (("old-1", "failed", 40.0), ("old-2", "succeeded", 35.0), ("new-1", "stopped", 1.0)):
        home.run(run_id, state, name=run_id[:3], started_ago=days * DAY + 60, ended_ago=days * DAY)
        workspace.run_dir(run_id).mkdir()
    home.run("live-1", "running", started_ago=50 * DAY)
    (workspace.run_dir("old-1") / "model.pt").write_bytes(b"x" * 100_000)
    yield home
    home.close()


@pytest.mark.parametrize("verb", ["stop", "rm", "resume", "restart", "label"])
def test_a_command_without_runs_and_filters_is_wrong(home: Home, verb: str) -> None:
    assert mentions(error_of(home.workspace, verb, code=2), verb, "--help")


@table(
    ("arguments", "ids", "code"),
    [
        (("rm", "--older", "30d"), ["old-1", "old-2"], 0),
        (("rm", "--older", "30d", "--state", "failed"), ["old-1"], 0),
        (("rm", "--older", "30d", "--state", "failed", "--state", "succeeded"), ["old-1", "old-2"], 0),
        (("rm", "--profile", "old"), ["old-1", "old-2"], 0),
        (("rm", "new-1", "old-1", "--older", "30d"), ["old-1"], 0),
        (("rm", "new-1", "live-1"), ["new-1"], 3),
        (("rm", "--state", "running"), [], 3),
        (("rm", "--tag", "none"), [], 3),
        (("stop", "--older", "30d"), ["live-1"], 0),
        (("resume", "--older", "0s"), ["old-1", "new-1"], 0),
        (("resume", "--force", "--older", "30d"), ["old-1", "old-2"], 0),
        (("resume", "old-1", "old-2"), ["old-1"], 3),
        (("resume", "old-2", "--set", "lr=0.1"), ["old-2"], 0),
        (("restart", "--older", "30d"), ["old-1", "old-2"], 0),
        (("restart", "old-1", "live-1"), ["old-1", "live-1"], 0),
        (("label", "--tag", "base", "--older", "30d"), ["old-1", "old-2", "live-1"], 0),
        (("label", "--tag", "base", "--tagged", "none"), [], 3),
    ],
)
def test_a_rehearsal_lists_what_would_be_acted_on(
    home: Home, arguments: tuple[str, ...], ids: list[str], code: int
) -> None:
    listed = json_of(home.workspace, *arguments, "--dry-run", code=code)
    assert [run["id"] for run in listed] == ids
    table = output_of(home.workspace, *arguments, "--dry-run", code=code)
    assert mentions(table, *ids)
    assert call(home.workspace, "--readonly", *arguments, "--dry-run").code == code


def test_what_cannot_be_acted_on_is_named_by_reason(home: Home) -> None:
    home.attempt("new-1", 1, "stopped", ended_ago=DAY)
    note_scan(home.connection, "new-1", 1, "/c", home.now)
    text = output_of(home.workspace, "resume", "--older", "0s", "--dry-run")
    assert mentions(text, "old-1", "1 run,")
    assert mentions(text, "old-2: complete", "new-1: no checkpoint", "live-1: not ended yet")
    for name in ("one", "two", "three"):
        home.run(name, "succeeded", name="old", ended_ago=DAY)
    assert mentions(
        output_of(home.workspace, "resume", "--older", "0s", "--dry-run"), "4 other runs cannot", "complete"
    )
    error = output_of(home.workspace, "resume", "one", "two", "three", "old-2", "--dry-run", code=3)
    assert "one, two, three, old-2: complete" in error


def test_a_listed_run_has_its_age_and_size(home: Home) -> None:
    (run,) = json_of(home.workspace, "rm", "old-1", "--dry-run")
    assert run["state"] == "failed"
    assert run["age_seconds"] > 40 * DAY
    assert 100_000 <= run["size_bytes"] < 200_000
    assert mentions(output_of(home.workspace, "rm", "--older", "30d", "--dry-run"), "KiB", "2 runs", "KiB")


def test_what_nobody_was_asked_about_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    done = call(home.workspace, "rm", "--older", "30d")
    assert done.code == 3
    assert "--yes" in done.stderr
    assert mentions(done.stdout, "old-1", "old-2")
    assert "--yes" in error_of(home.workspace, "rm", "--older", "30d", "--json", code=3)
    assert error_of(home.workspace, "rm", "--tag", "none", code=3)
    done = call(home.workspace, "rm", "nobody-1", "old-1", "--dry-run", "--json")
    assert done.code == 3
    assert [run["id"] for run in json.loads(done.stdout)] == ["old-1"]
    monkeypatch.setattr(selection, "can_ask", lambda: True)
    monkeypatch.setattr("click.confirm", lambda _words, **_options: False)
    assert call(home.workspace, "rm", "--older", "30d").code == 3
    assert len(json_of(home.workspace, "ps")) == 4


@table(
    "arguments",
    [
        ("resume", "old-1", "new-1", "--set", "lr=1"), ("resume", "--older", "1d", "--from", "x.pt"),
        ("resume", "old-1", "--state", "failed", "--wait"), ("label", "old-1", "new-1", "--name", "best"),
        ("rm", "--older", "soon"), ("rm", "--state", "done"),
    ],
)  # fmt: skip
def test_what_is_for_one_run_or_makes_no_sense(home: Home, arguments: tuple[str, ...]) -> None:
    assert error_of(home.workspace, *arguments, code=2).count("\n") == 1


def test_runs_are_removed_as_confirmed_and_failures_do_not_end_it(machine: Machine) -> None:
    profile = machine.profile()
    for _ in range(3):
        machine.gputui("run", profile, "--set", "steps=1", "--wait")
    machine.gputui("run", profile, "--set", "steps=100000")
    answers = json.loads(machine.gputui("rm", "steps-4", "nobody-1", "steps-1", "--json", code=3).splitlines()[0])
    assert answers[0] == {"id": "steps-1", "state": "removed"}
    assert {answer["id"] for answer in answers[1:]} == {"nobody-1", "steps-4"}
    assert all(answer["refused"] for answer in answers[1:])
    assert {run["id"] for run in machine.json("ps")} == {"steps-2", "steps-3", "steps-4"}
    machine.gputui("label", "steps-2", "steps-3", "steps-4", "--tag", "night")
    machine.gputui("stop", "--tag", "night", "--yes", "--now")
    machine.wait_for("steps-4", "stopped")
    machine.gputui("rm", "--tag", "night", "--state", "succeeded", "--yes")
    assert [run["id"] for run in machine.json("ps")] == ["steps-4"]


def test_sizes_are_in_wide_lists(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {run["id"]: run["size_bytes"] for run in json_of(home.workspace, "ps")}
    assert sizes["old-1"] >= 100_000
    assert json_of(home.workspace, "show", "old-1")["size_bytes"] == sizes["old-1"]
    home.connection.execute("INSERT INTO run_sizes (run_id, size_bytes) VALUES ('old-1', 5)")
    assert {run["id"]: run["size_bytes"] for run in json_of(home.workspace, "ps")} == {**sizes, "old-1": 5}
    monkeypatch.setattr("gputui.ui.cli.ps.is_wide", lambda: False)
    assert "SIZE" not in output_of(home.workspace, "ps")
    monkeypatch.setattr("gputui.ui.cli.ps.is_wide", lambda: True)
    assert "SIZE" in output_of(home.workspace, "ps")


def test_runs_are_listed_in_an_order_with_unknown_values_last(home: Home) -> None:
    for run_id, losses in {"old-1": (0.5, 0.25), "new-1": (3.0, 0.125), "live-1": (math.nan,)}.items():
        home.attempt(run_id, 1, "running")
        lines = [{"step": step, "time": home.now, "loss": loss} for step, loss in enumerate(losses)]
        home.metrics(run_id, 1, lines)

    def ids(*arguments: str) -> list[str]:
        return [run["id"] for run in json_of(home.workspace, "ps", *arguments)]

    assert ids("--sort", "loss")[:2] == ["new-1", "old-1"]
    assert ids("--sort", "started") == ["new-1", "old-2", "old-1", "live-1"]
    assert ids("--sort", "size")[0] == "old-1"
    assert ids("--older", "30d", "--state", "succeeded", "--state", "failed") == ["old-2", "old-1"]
    assert ids("--profile", "none") == []
    assert output_of(home.workspace, "ps", "--profile", "none").count("\n") == 1
