"""`gputui --once`: one frame as text or JSON, also of a past moment."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.cli.once import WIDTH_WITHOUT_TERMINAL, frame_size
from gputui.config import locate
from gputui.runs.agent_process import read_identity, stop_agent
from tests.texts import mentions
from tests.tui.filling import Filler


@pytest.fixture
def filler(tmp_path: Path) -> Iterator[Filler]:
    made = Filler(locate(tmp_path / "home"), now=time.time())
    made.overnight()
    yield made
    made.close()
    stop_agent(made.workspace)


def gputui(filler: Filler, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    home = filler.workspace.state.parent
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "GPUTUI_HOME")}
    return subprocess.run(
        [sys.executable, "-m", "gputui", "--home", str(home), *words],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False,
        env={**clean, "TZ": "UTC", "LC_ALL": "C.UTF-8", **environ},
    )  # fmt: skip


def test_a_frame_without_a_terminal_is_plain_text_of_its_whole_height(filler: Filler) -> None:
    for number in range(40):
        filler.run(f"old-{number}", "succeeded", ended_ago=10_000.0 + number)
    done = gputui(filler, "--once", "--readonly")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout and max(map(len, lines)) <= WIDTH_WITHOUT_TERMINAL
    assert all(line == line.rstrip() for line in lines)
    for word in (
        "gpt2-124m-1 r0",
        "✗ lost",
        "vit-b16-1",
        "lr-sweep-3",
        "resnet50-2",
        "RUNS",
        "EVENTS",
        "host  cpu 34%",
    ):
        assert word in done.stdout
    assert mentions(done.stdout, "31 older", "gputui ps")
    assert mentions(lines[1], "No agent runs")
    assert read_identity(filler.workspace) is None  # a read-only look starts nothing
    assert "help" not in done.stdout and "live" not in done.stdout


def test_columns_lines_and_ascii_are_heeded(filler: Filler) -> None:
    done = gputui(filler, "--once", "--readonly", COLUMNS="80", LINES="20", GPUTUI_ASCII="1")
    lines = done.stdout.splitlines()
    assert done.stdout.isascii() and len(lines) <= 20 and max(map(len, lines)) <= 80
    assert "EVENTS" in done.stdout and "RUNS" in done.stdout


def test_a_past_moment_needs_no_agent_and_shows_what_was(filler: Filler) -> None:
    done = gputui(filler, "--once", "--at", "-400s")
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *_ = done.stdout.splitlines()
    assert "◀ " in first and first.endswith("· 6 min ago") and second.endswith("now")
    assert "lr-sweep-3" not in done.stdout and mentions(done.stdout, "after 47 s")
    assert read_identity(filler.workspace) is None


def test_json_is_one_object_of_the_known_shapes(filler: Filler) -> None:
    now = json.loads(gputui(filler, "--once", "--json", "--readonly").stdout)
    then = json.loads(gputui(filler, "--once", "--json", "--at", "10 min ago").stdout)
    assert (now["is_past"], then["is_past"]) == (False, True)
    listed = json.loads(gputui(filler, "ps", "--json").stdout)
    runs = {run["id"]: run for run in now["runs"]}
    for run in listed:
        assert run.items() <= runs[run["id"]].items()
    assert runs["gpt2-124m-1"]["step"] == 4120 and runs["gpt2-124m-1"]["total_steps"] == 6000
    assert [gpu["index"] for gpu in now["gpus"]] == list(range(8))
    assert now["gpus"][0]["run_id"] == "gpt2-124m-1" and now["gpus"][0]["rank"] == 0
    assert now["host"]["cpu_percent"] == 34 and now["agent"]["running"] is False
    assert {run["id"] for run in then["runs"]} == {"gpt2-124m-1", "vit-b16-1", "resnet50-2"}
    assert then["runs"][0]["step"] < runs[then["runs"][0]["id"]]["step"]
    assert [event["message"] for event in then["events"]][-1].startswith("GPU 7 fell off")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--once", "--at", "soon"), "--at: 'soon' is not a time"),
        (("--once", "--demo"), "do not go together"),
        (("--json",), "--json goes with --record and --once"),
        (("--at", "soon"), "the screen needs a terminal; gputui --once and gputui --record work without one"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_a_line(filler: Filler, words: tuple[str, ...], message: str) -> None:
    done = gputui(filler, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_an_agent_is_started_so_that_the_values_are_of_now(filler: Filler) -> None:
    filler.workspace.scenario.write_text("gpus: 2\nseed: 7\nfaults: []\n")
    done = gputui(filler, "--once")
    assert done.returncode == 0, done.stderr
    assert "simulated GPUs" in done.stdout and "No agent runs" not in done.stdout
    assert read_identity(filler.workspace) is not None


def test_without_any_record_a_read_only_look_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gputui", "--home", str(tmp_path), "--once", "--readonly"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and "nothing has been recorded" in done.stderr


class Output(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def test_the_size_of_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: os.terminal_size((132, 43)))
    assert frame_size({}, Output(True)) == (132, 42)
    assert frame_size({"COLUMNS": "70", "LINES": "30"}, Output(True)) == (70, 30)
    assert frame_size({}, Output(False)) == (WIDTH_WITHOUT_TERMINAL, None)
    assert frame_size({"COLUMNS": "3", "LINES": "no"}, Output(False)) == (40, None)
