"""`gputui --once`: one frame as text or JSON, also of a past moment."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gputui.core.config import Workspace
from gputui.runs.agent_process import read_identity, stop_agent
from gputui.studies.spec import Objective
from gputui.ui.once import WIDTH_WITHOUT_TERMINAL
from tests.homes import Home
from tests.stories import overnight, search
from tests.texts import mentions
from tests.ui.cli.program import json_of, output_of


@pytest.fixture
def home(workspace: Workspace) -> Iterator[Home]:
    home = Home(workspace, now=time.time())
    overnight(home)
    yield home
    home.close()


def test_a_frame_without_a_terminal_is_plain_text_of_its_whole_height(home: Home) -> None:
    for number in range(40):
        home.run(f"old-{number}", "succeeded", ended_ago=10_000.0 + number)
    screen = output_of(home.workspace, "--once", "--readonly")
    lines = screen.splitlines()
    assert "\x1b" not in screen
    assert max(map(len, lines)) <= WIDTH_WITHOUT_TERMINAL
    assert all(line == line.rstrip() for line in lines)
    texts = ("gpt2-124m-1 r0", "✗ lost", "vit-b16-1", "lr-sweep-3", "resnet50-2", "RUNS", "EVENTS", "host  cpu 34%")
    assert [word for word in texts if word not in screen] == []
    assert mentions(screen, "31 older", "gputui ps")
    assert mentions(lines[1], "No agent runs")
    assert read_identity(home.workspace) is None  # a read-only look starts nothing
    assert "help" not in screen
    assert "live" not in screen


def test_columns_lines_and_ascii_are_heeded(home: Home) -> None:
    screen = output_of(home.workspace, "--once", "--readonly", COLUMNS="80", LINES="20", GPUTUI_ASCII="1")
    lines = screen.splitlines()
    assert screen.isascii()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert "EVENTS" in screen
    assert "RUNS" in screen


def test_a_past_moment_needs_no_agent_and_shows_what_was(home: Home) -> None:
    screen = output_of(home.workspace, "--once", "--at", "-400s")
    first, second, *_ = screen.splitlines()
    assert "◀ " in first
    assert first.endswith("· 6 min ago")
    assert second.endswith("now")
    assert "lr-sweep-3" not in screen
    assert mentions(screen, "after 47 s")
    assert read_identity(home.workspace) is None


def test_json_is_one_object_of_the_known_shapes(home: Home) -> None:
    now = json_of(home.workspace, "--once", "--readonly")
    then = json_of(home.workspace, "--once", "--at", "-10m")
    assert (now["is_past"], then["is_past"]) == (False, True)
    runs = {run["id"]: run for run in now["runs"]}
    for run in json_of(home.workspace, "ps"):
        # `--once` measures no folder, so a size that was not measured before is absent.
        assert {**run, "size_bytes": None}.items() <= runs[run["id"]].items()
        shape_of_run = json_of(home.workspace, "show", run["id"])
        assert {key: shape_of_run[key] for key in run} == run
    assert runs["gpt2-124m-1"]["step"] == 4120
    assert runs["gpt2-124m-1"]["total_steps"] == 6000
    assert [gpu["index"] for gpu in now["gpus"]] == list(range(8))
    assert now["gpus"][0]["run_id"] == "gpt2-124m-1"
    assert now["gpus"][0]["rank"] == 0
    assert now["host"]["cpu_percent"] == 34
    assert now["agent"]["running"] is False
    assert {run["id"] for run in then["runs"]} == {"gpt2-124m-1", "vit-b16-1", "resnet50-2"}
    assert then["runs"][0]["step"] < runs[then["runs"][0]["id"]]["step"]
    assert [event["message"] for event in then["events"]][-1].startswith("GPU 7 fell off")


def test_lists_show_the_metric_that_a_run_is_judged_by(home: Home) -> None:
    search(home, "acc-1", trials=1, objectives=(Objective("top1"),))
    search(home, "two-1", trials=1, objectives=(Objective("top1"), Objective("seconds")))
    line = {"step": 3, "time": home.now - 9, "loss": 2.5, "val/accuracy": 0.625, "top1": 61}
    home.metrics("acc-1-t0", 1, [line])
    for run_id, ended_ago in (("own-1", None), ("own-2", 9.0)):
        state = "succeeded" if ended_ago else "running"
        home.run(run_id, state, params={"best_metric": "val/accuracy"}, ended_ago=ended_ago)
        home.attempt(run_id, 1, state, ended_ago=ended_ago)
        home.metrics(run_id, 1, [line])
    runs = {run["id"]: (run["loss"], run["metric"], run["metric_value"]) for run in json_of(home.workspace, "ps")}
    assert runs["own-1"] == runs["own-2"] == (2.5, "val/accuracy", 0.625)
    assert runs["acc-1-t0"] == (2.5, "top1", 61)
    assert runs["gpt2-124m-1"][1] is None
    assert runs["two-1-t0"][1] is None
    for text in (output_of(home.workspace, "ps"), output_of(home.workspace, "--once", "--readonly")):
        for texts in (("own-1", "accuracy 0.625"), ("own-2", "accuracy 0.625"), ("acc-1-t0", "top1 61")):
            (row,) = (row for row in text.splitlines() if all(word in row for word in texts))
            assert not set(row) & set("▁▂▃▄▅▆▇█"), "the curve of the loss"


def test_lists_say_of_a_run_that_ended_that_it_was_recovered(home: Home) -> None:
    home.run("oom-1", "succeeded", attempt=2, ended_ago=9.0)
    home.attempt("oom-1", 2, "succeeded", ended_ago=9.0)
    for text in (output_of(home.workspace, "ps"), output_of(home.workspace, "--once", "--readonly")):
        assert "succeeded ↻1" in next(row for row in text.splitlines() if "oom-1" in row)


def test_an_agent_is_started_so_that_the_values_are_of_now(home: Home) -> None:
    home.workspace.scenario.write_text("gpus: 2\nseed: 7\nfaults: []\n")
    try:
        screen = output_of(home.workspace, "--once")
        assert "Simulated GPU · simulated" in screen
        assert "No agent runs" not in screen
        assert read_identity(home.workspace) is not None
    finally:
        stop_agent(home.workspace)
