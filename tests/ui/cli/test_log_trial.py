"""`gputui check --log`: patterns are tried before anything is launched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.metrics.log_trial import try_log
from gputui.metrics.printed import OutputPatterns
from tests.ui.cli.program import said, shape

NANOGPT = r"iter (?P<iter>\d+): loss (?P<loss>\S+), time (?P<step_time>\S+),"


@pytest.fixture(autouse=True)
def in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def profile(folder: Path, metrics: str) -> str:
    (folder / "a.yaml").write_text(f"script: a.py\nmetrics: {metrics}\n")
    return "./a.yaml"


def test_what_would_be_drawn(workspace: Workspace, tmp_path: Path) -> None:
    log = "".join(f"iter {n}: loss {4 / (n + 1):.4f}, time {n + 10}.00ms, mfu -1%\n" for n in range(50))
    (tmp_path / "train.log").write_text("loading\n" + log + "step 25: train loss 0.5\n")
    words = ("check", profile(tmp_path, json.dumps({"source": "output", "patterns": [NANOGPT]})), "--log", "train.log")
    assert "50 of 52 lines" in said(workspace, *words)
    found = shape(workspace, *words)
    assert found["metrics"] == [
        {"name": "loss", "count": 50, "first": 4.0, "last": 0.08},
        {"name": "step_time", "count": 50, "first": 0.01, "last": pytest.approx(0.059)},
    ]
    assert (found["first_step"], found["last_step"], found["steps_go_back_at_line"]) == (0, 49, None)


def test_a_file_of_its_own(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    found = shape(workspace, "check", profile(tmp_path, "{source: csv, path: log.csv}"), "--log", "log.csv")
    assert found["metrics"] == [{"name": "loss", "count": 2, "first": 0.5, "last": 0.25}]


def test_which_lines_nearly_matched() -> None:
    pattern = r"iter (?P<iter>\d+): loss (?P<loss>[\d.]+) time"
    log = b"hello\niter 10: loss 0.5, time 3ms\niter 11: loss 0.4, time 3ms\nepoch 3\n"
    trial = try_log(log, OutputPatterns([pattern]), [pattern])
    assert not trial.points
    (near,) = trial.near
    assert (near.number, near.found) == (2, ", time 3ms")
    assert pattern == near.fits + near.expected
    assert near.fits.endswith(r"(?P<loss>[\d.]+)")


def test_the_last_step_and_its_total_are_named(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 3/100 loss 0.5\n")
    words = {"source": "output", "patterns": [r"step (?P<step>\d+)/(?P<total_steps>\d+) loss (?P<loss>\S+)"]}
    assert "step 3 of 100" in said(workspace, "check", profile(tmp_path, json.dumps(words)), "--log", "a.log")
