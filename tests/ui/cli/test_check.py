"""`gputui check` and its trial of a log, and `gputui doctor`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.metrics.log_trial import try_log
from gputui.metrics.printed import OutputPatterns
from tests.machines import Machine
from tests.texts import mentions
from tests.ui.cli.program import error_of, json_of, output_of

NANOGPT = r"iter (?P<iter>\d+): loss (?P<loss>\S+), time (?P<step_time>\S+),"


@pytest.fixture(autouse=True)
def in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def profile(folder: Path, metrics: str) -> str:
    (folder / "a.yaml").write_text(f"script: a.py\nmetrics: {metrics}\n")
    return "./a.yaml"


def test_the_verdict_is_the_last_line_and_fits_the_exit_code(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "a.yaml").write_text(f"script: a.py\nlauncher: python\npython: {sys.executable}\ngpus: 0\n")
    output = output_of(workspace, "check", "./a.yaml", "--gpus", "0")
    assert mentions(output.splitlines()[-1], "gputui run ./a.yaml", "--gpus 0")
    (tmp_path / "a.py").unlink()
    assert output_of(workspace, "check", "./a.yaml", code=2).splitlines()[-1].startswith("✗")


def test_all_mistakes_are_named_at_once(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "ddp.py").write_text("print(1)\n")
    (tmp_path / "a.yaml").write_text(
        "launcher: torchrunn\nscript: ddpp.py\ngpu: 2\nparams: {lr: 0.1, bs: {default: 8, min: 9}}\n"
        "args: --lr {lrr} --batch {bs\nmetrics: {source: output, patterns: ['step (?P<step>\\d+ loss']}\n"
    )
    launcher, params, pattern, key, program, placeholders = error_of(
        workspace, "check", "./a.yaml", code=2
    ).splitlines()
    assert mentions(launcher, "torchrun?")
    assert mentions(params, "gpus?")
    assert mentions(pattern, "params.bs", "at least 9")
    assert mentions(key, "not a regular expression", "names no metric")
    assert mentions(program, "ddpp.py", "ddp.py?")
    assert mentions(placeholders, "placeholders", "{lrr} in args", "{bs in args", "{lr} and {bs}?")
    # Problems that follow from a wrong key are not reported.
    (tmp_path / "a.yaml").write_text("script: 3\nparams: [lr]\nargs: --lr {lr}\n")
    assert len(error_of(workspace, "check", "./a.yaml", code=2).splitlines()) == 2
    (tmp_path / "a.yaml").write_text("script: ddp.py\nparams: {lr: 1")
    assert len(error_of(workspace, "check", "./a.yaml", code=2).splitlines()) == 1


def test_what_would_be_drawn(workspace: Workspace, tmp_path: Path) -> None:
    log = "".join(f"iter {n}: loss {4 / (n + 1):.4f}, time {n + 10}.00ms, mfu -1%\n" for n in range(50))
    (tmp_path / "train.log").write_text("loading\n" + log + "step 25: train loss 0.5\n")
    arguments = (
        "check",
        profile(tmp_path, json.dumps({"source": "output", "patterns": [NANOGPT]})),
        "--log",
        "train.log",
    )
    assert "50 of 52 lines" in output_of(workspace, *arguments)
    trial = json_of(workspace, *arguments)
    assert trial["metrics"] == [
        {"name": "loss", "count": 50, "first": 4.0, "last": 0.08},
        {"name": "step_time", "count": 50, "first": 0.01, "last": pytest.approx(0.059)},
    ]
    assert (trial["first_step"], trial["last_step"], trial["steps_go_back_at_line"]) == (0, 49, None)


def test_a_file_of_its_own_and_a_total(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    trial = json_of(workspace, "check", profile(tmp_path, "{source: csv, path: log.csv}"), "--log", "log.csv")
    assert trial["metrics"] == [{"name": "loss", "count": 2, "first": 0.5, "last": 0.25}]
    (tmp_path / "a.log").write_text("step 3/100 loss 0.5\n")
    metrics = {"source": "output", "patterns": [r"step (?P<step>\d+)/(?P<total_steps>\d+) loss (?P<loss>\S+)"]}
    assert "step 3 of 100" in output_of(workspace, "check", profile(tmp_path, json.dumps(metrics)), "--log", "a.log")


def test_which_lines_nearly_matched() -> None:
    pattern = r"iter (?P<iter>\d+): loss (?P<loss>[\d.]+) time"
    log = b"hello\niter 10: loss 0.5, time 3ms\niter 11: loss 0.4, time 3ms\nepoch 3\n"
    trial = try_log(log, OutputPatterns([pattern]), [pattern])
    assert not trial.points
    (near,) = trial.near
    assert (near.number, near.actual) == (2, ", time 3ms")
    assert pattern == near.fits + near.expected
    assert near.fits.endswith(r"(?P<loss>[\d.]+)")


def test_this_machine_is_examined(machine: Machine) -> None:
    """A disk that is nearly full or a limit that is low may fail here; that every check answers may not."""
    machine.workspace.scenario.write_text("gpus: 2\nmemory: 80GiB\nseed: 3\n")
    machine.gputui("agent", "start")
    results = json.loads(machine.gputui("doctor", "digits-ddp", "--json", code=None))
    checks = {result["name"]: result for result in results}
    assert set(checks) >= {"driver", "gpus", "interpreter", "disk speed", "database", "agent", "open files", "clock"}
    assert checks["gpus"]["status"] == "pass"
    assert checks["gpus"]["detail"].startswith("2 × ")
    assert checks["database"]["status"] == "pass"
    assert checks["agent"]["status"] == "pass"
    assert all(result["remedy"] for result in checks.values() if result["status"] in ("warn", "fail"))
    assert "profile" in machine.gputui("doctor", "no-such-profile", code=2)
