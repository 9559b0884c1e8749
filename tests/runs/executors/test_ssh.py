"""Runs on another machine over SSH: a real sshd on loopback, and folders there that nobody shares."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.runs.checks import CheckResult
from gputui.runs.executors.ssh.connection import survey
from gputui.runs.executors.ssh.ssh_courier import START
from gputui.runs.identity import identify
from tests.conftest import wait_until
from tests.machines import Machine
from tests.runs.executors.ssh_machine import Far, far_machine
from tests.runs.executors.target_home import TargetHome
from tests.texts import mentions

WAIT_SECONDS = 90.0


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    with far_machine(tmp_path / "far", monkeypatch) as made:
        yield made


class Pair(TargetHome):
    """A home here with the other machine as its target."""

    name = "kepler"
    wait_seconds = WAIT_SECONDS

    def __init__(self, machine: Machine, far: Far) -> None:
        super().__init__(machine)
        self.far = far
        self.code = self.keep_code_in_git()
        self.set_target(kind="ssh", **far.target())

    def there(self, run_id: str) -> Path:
        (found,) = self.far.runs.glob(f"*/{run_id}")
        return found


@pytest.fixture
def pair(far: Far, machine: Machine) -> Iterator[Pair]:
    made = Pair(machine, far)
    yield made
    for record in far.runs.glob("*/*/attempts/*/far/started.json"):
        # Whatever happened, nothing of the far side stays.
        pid = int(json.loads(record.read_text())["shim_pid"])
        if identify(pid) is not None:
            os.kill(pid, signal.SIGUSR2)
            wait_until(lambda pid=pid: identify(pid) is None, WAIT_SECONDS, "the end of the far side")


@pytest.mark.long
def test_a_run_goes_there_with_its_code_and_comes_back_line_by_line(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 10)
    there = pair.there(run_id)
    assert (there / "code" / "steps.py").is_file() and not (there / "code" / "ignored.bin").exists()
    assert (there / "attempts" / "1" / "far" / "attempt.json").stat().st_mode & 0o077 == 0
    pair.finish(run_id, pair.there(run_id))
    shown = pair.shown(run_id)
    assert shown["placement"]["state"] == "ended" and shown["target"] == "kepler"
    assert "done" in pair.machine.gputui("logs", run_id)


def test_the_connection_that_starts_a_run_does_not_wait_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("read line < pipe; touch ended")
    os.mkfifo(tmp_path / "pipe")
    # Who reads the output to its end, as sshd does, waits for all that hold it open.
    subprocess.run(["bash", "-c", START, "bash", str(tmp_path)], capture_output=True, timeout=60, check=True)
    assert not (tmp_path / "ended").exists()
    (tmp_path / "pipe").write_text("go on\n")
    wait_until((tmp_path / "ended").exists, what="the end")


@pytest.mark.long
def test_a_resume_continues_from_what_a_stop_saved_there(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 5)
    step = pair.stop(run_id, pair.there(run_id))
    saved = pair.there(run_id) / "checkpoints" / f"step_{step:06d}.pt"
    script = pair.code / "steps.py"
    script.write_text(script.read_text().replace('print("done"', 'print("edited"'))
    pair.machine.gputui("resume", run_id)
    pair.wait_for_step(run_id, step + 5, attempt=2)
    begun_from = wait_until(lambda: pair.shown(run_id)["attempts"][1]["resumed_from"], WAIT_SECONDS, "its beginning")
    assert Path(begun_from).samefile(saved)
    pair.finish(run_id, pair.there(run_id))
    assert "edited" in pair.machine.gputui("logs", run_id), "what a person resumes is the code as it is"


@pytest.mark.long
def test_a_script_that_fails_there_goes_on_from_its_checkpoint_there(pair: Pair) -> None:
    run_id = pair.launch("steps=60", "fail_at=25", "seconds=0.05")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    first, second = pair.shown(run_id)["attempts"]
    assert first["incident"]["kind"] == "user_exception" and second["state"] == "succeeded"
    assert Path(second["resumed_from"]).name == "step_000020.pt"
    assert pair.steps(run_id) == [*range(26), *range(20, 60)]


@pytest.mark.long
def test_a_run_without_an_interpreter_there_fails_with_its_reason_and_can_be_removed(pair: Pair) -> None:
    pair.set_target(kind="ssh", python="/nope/python", **pair.far.target())
    run_id = pair.launch()
    pair.machine.wait_for(run_id, "failed", timeout=WAIT_SECONDS)
    reason = str(pair.shown(run_id)["reason"])
    assert "/nope/python" in reason and len(reason.splitlines()) == 1
    assert "failed" in pair.machine.gputui("stop", "--now", run_id, code=3)
    pair.machine.gputui("rm", run_id)
    wait_until(lambda: not list(pair.far.runs.glob(f"*/{run_id}")), WAIT_SECONDS, "nothing left there")


@pytest.mark.long
def test_a_line_that_drops_loses_nothing_and_fails_nothing(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 5)
    pair.far.stop()
    wait_until(lambda: pair.placement(run_id).get("problem"), WAIT_SECONDS, "a problem")
    assert pair.machine.state(run_id) == "running"
    known = len(pair.steps(run_id))
    pair.far.start()
    wait_until(lambda: pair.placement(run_id).get("problem") is None, WAIT_SECONDS, "an answer")
    pair.wait_for_step(run_id, known + 5)
    pair.finish(run_id, pair.there(run_id))


@pytest.mark.long
def test_couriers_killed_one_after_another_leave_one_start_and_every_line_once(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    for _ in range(4):
        pid = wait_until(lambda: pair.courier(run_id), WAIT_SECONDS, "a courier")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: pair.courier(run_id) not in (pid, None), WAIT_SECONDS, "another courier")
    pair.wait_for_step(run_id, 10)
    pair.finish(run_id, pair.there(run_id))
    assert len(pair.shown(run_id)["attempts"]) == 1


@pytest.mark.long
def test_the_gputui_there_tells_which_gpus_are_free(far: Far, tmp_path: Path) -> None:
    target = {"name": "kepler", "kind": "ssh", **far.target()}

    def gpus() -> CheckResult:
        (found,) = [result for result in survey(target) if result.name == "gpus"]
        return found

    assert gpus().status == "skip"
    home = tmp_path / "home there"
    (home / "state").mkdir(parents=True)
    (home / "state" / "simulated.yaml").write_text(
        "gpus: 3\nforeign: [{gpu: 1, memory: 9GiB, user: ann, command: x}]\n"
    )
    program = far.folder / "bin" / "gputui"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gputui --home "{home}" "$@"\n')
    program.chmod(0o755)
    with (far.folder / ".bash_profile").open("a") as profile:
        profile.write(f"PATH={program.parent}:$PATH\n")
    try:
        found = gpus()
        assert found.status == "pass" and mentions(found.detail, "2 of 3"), found
    finally:
        subprocess.run([program, "agent", "stop"], check=True, capture_output=True)
