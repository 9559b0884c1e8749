"""`gputui check --log`: patterns are tried before anything is launched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics.formats import OutputPatterns
from gputui.metrics.trial import try_log
from tests import forkserver

NANOGPT = r"iter (?P<iter>\d+): loss (?P<loss>\S+), time (?P<step_time>\S+),"


def run(folder: Path, *words: str) -> Any:
    return forkserver.run(["gputui", "--home", str(folder / "home"), *words], cwd=folder, timeout=60)


def profile(folder: Path, metrics: str) -> str:
    (folder / "a.yaml").write_text(f"script: a.py\nmetrics: {metrics}\n")
    return "./a.yaml"


def test_what_would_be_drawn(tmp_path: Path) -> None:
    log = "".join(f"iter {n}: loss {4 / (n + 1):.4f}, time {n + 10}.00ms, mfu -1%\n" for n in range(50))
    (tmp_path / "train.log").write_text("loading\n" + log + "step 25: train loss 0.5\n")
    named = profile(tmp_path, json.dumps({"source": "output", "patterns": [NANOGPT]}))
    done = run(tmp_path, "check", named, "--log", "train.log")
    assert done.returncode == 0
    assert "50 of 52 lines" in done.stdout
    found = json.loads(run(tmp_path, "check", named, "--log", "train.log", "--json").stdout)
    assert found["metrics"] == [
        {"name": "loss", "count": 50, "first": 4.0, "last": 0.08},
        {"name": "step_time", "count": 50, "first": 0.01, "last": pytest.approx(0.059)},
    ]
    assert (found["first_step"], found["last_step"], found["steps_go_back_at_line"]) == (0, 49, None)


def test_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    named = profile(tmp_path, "{source: csv, path: log.csv}")
    found = json.loads(run(tmp_path, "check", named, "--log", "log.csv", "--json").stdout)
    assert found["metrics"] == [{"name": "loss", "count": 2, "first": 0.5, "last": 0.25}]


@pytest.mark.parametrize("metrics", ["off", "{source: hf, path: x}"])
def test_nothing_to_try(tmp_path: Path, metrics: str) -> None:
    (tmp_path / "x.log").write_text("step 1\n")
    done = run(tmp_path, "check", profile(tmp_path, metrics), "--log", "x.log")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    # What it says to write is a profile that has lines of a log read.
    proposed = done.stderr.partition("metrics: ")[2] if metrics != "off" else done.stderr.rpartition("metrics: ")[2]
    (tmp_path / "x.log").write_text("step 1 loss 0.5\nstep 2 loss 0.4\n")
    assert run(tmp_path, "check", profile(tmp_path, proposed.strip()), "--log", "x.log").returncode == 0


def test_which_lines_nearly_matched() -> None:
    pattern = r"iter (?P<iter>\d+): loss (?P<loss>[\d.]+) time"
    log = b"hello\niter 10: loss 0.5, time 3ms\niter 11: loss 0.4, time 3ms\nepoch 3\n"
    trial = try_log(log, OutputPatterns([pattern]), [pattern])
    assert not trial.points
    (near,) = trial.near
    assert (near.number, near.found) == (2, ", time 3ms")
    assert pattern == near.fits + near.expected
    assert near.fits.endswith(r"(?P<loss>[\d.]+)")


def test_steps_that_go_back_are_shown() -> None:
    pattern = r"epoch (?P<epoch>\d+) \[(?P<step>\d+)/(?P<total>\d+)\] loss (?P<loss>\S+)"
    log = "".join(f"epoch {e} [{n}/3] loss 1\n" for e in range(2) for n in range(3)).encode()
    assert try_log(log, OutputPatterns([pattern])).backwards == (4, 2, 0)
    named = pattern.replace("step", "iter")
    assert try_log(log, OutputPatterns([named])).backwards is None


def test_bars_and_colours() -> None:
    pattern = r"(?P<step>\d+)/9 loss=(?P<loss>\S+)\]"
    log = b"\r 1/9 loss=3]\r 2/9 loss=\x1b[31m2\x1b[0m]\r\n"
    trial = try_log(log, OutputPatterns([pattern]))
    assert trial.points == {"loss": [(1, 3.0), (2, 2.0)]}
