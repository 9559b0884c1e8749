"""The contract of runs on a target, whatever the kind: real clusters and machines, which the tests
make and end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.runs.executors.conftest import TargetHome

pytestmark = pytest.mark.long


@pytest.fixture(params=["slurm", "login", "ssh", "ray"])
def home(request: pytest.FixtureRequest) -> TargetHome:
    home = request.getfixturevalue(request.param)
    assert isinstance(home, TargetHome)
    return home


def test_a_run_goes_there_with_its_code_and_comes_back_line_by_line(home: TargetHome) -> None:
    run_id = home.launch("steps=100000")
    home.wait_for_place(run_id, "running")
    home.wait_for_step(run_id, 10)
    sent = home.remote_folder(run_id) / "attempts" / "1" / "remote" / "attempt.json"
    assert sent.stat().st_mode & 0o077 == 0
    if home.copies_code:
        code = Path(json.loads(sent.read_text())["cwd"])
        assert (code / "steps.py").is_file()
        assert not (code / "ignored.bin").exists()
    home.finish(run_id)
    record = home.record(run_id)
    assert record["target"] == home.name
    assert record["placement"]["state"] == "ended"
    assert len(record["placement"]["nodes"]) == 1
    assert record["placement"]["job"]
    assert "done" in home.machine.gputui("logs", run_id)
    assert home.name in home.machine.gputui("show", run_id)


def test_a_resume_continues_from_what_a_stop_saved_with_the_code_as_it_is(home: TargetHome) -> None:
    run_id = home.launch("steps=100000")
    home.wait_for_step(run_id, 5)
    step = home.stop(run_id)
    saved = home.remote_folder(run_id) / "checkpoints" / f"step_{step:06d}.pt"
    script = home.code / "steps.py"
    script.write_text(script.read_text().replace('print("done"', 'print("edited"'))
    home.machine.gputui("resume", run_id)
    home.wait_for_step(run_id, step + 5, attempt=2)
    begun_from = wait_until(
        lambda: home.record(run_id)["attempts"][1]["resumed_from"], home.wait_seconds, "its beginning"
    )
    assert Path(begun_from).samefile(saved)
    home.finish(run_id)
    assert "edited" in home.machine.gputui("logs", run_id)


def test_a_script_that_fails_goes_on_from_its_checkpoint_with_the_same_code(home: TargetHome) -> None:
    run_id = home.launch("steps=60", "fail_at=25", "seconds=0.05")
    wait_until(lambda: home.placement(run_id).get("job"), home.wait_seconds, "a job")
    if home.copies_code:
        (home.code / "steps.py").write_text("raise SystemExit('edited after the launch')")
    home.machine.wait_for(run_id, "succeeded", timeout=home.wait_seconds)
    first, second = home.record(run_id)["attempts"]
    assert first["incident"]["kind"] == "user_exception"
    assert second["state"] == "succeeded"
    assert home.steps(run_id) == [*range(26), *range(20, 60)]


def test_a_run_without_an_interpreter_there_fails_with_its_reason_and_can_be_removed(home: TargetHome) -> None:
    home.set_target(**{**home.options, "python": "/nope/python"})
    run_id = home.launch()
    home.machine.wait_for(run_id, "failed", timeout=home.wait_seconds)
    record = home.record(run_id)
    assert "/nope/python" in record["reason"]
    assert len(record["reason"].splitlines()) == 1
    assert record["attempts"][0]["incident"]["kind"] == "launch_failed"
    assert len(record["attempts"]) == 1
    assert "failed" in home.machine.gputui("stop", "--now", run_id, code=3)
    home.machine.gputui("rm", run_id)
    wait_until(lambda: not home.remote_folder(run_id).exists(), home.wait_seconds, "nothing left there")


def test_runners_killed_one_after_another_leave_one_start_and_every_line_once(home: TargetHome) -> None:
    run_id = home.launch("steps=100000")
    for _ in range(3):
        pid = wait_until(lambda: home.runner(run_id), home.wait_seconds, "a runner")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: home.runner(run_id) not in (pid, None), home.wait_seconds, "another runner")
    home.wait_for_step(run_id, 10)
    home.finish(run_id)
    assert len(home.record(run_id)["attempts"]) == 1
