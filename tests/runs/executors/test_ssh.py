"""Runs on another machine over SSH: a real sshd on loopback, and folders there that nobody shares."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gputui.runs.executors.ssh.ssh_courier import START
from gputui.runs.identity import identify
from tests.conftest import wait_until
from tests.machine import Machine
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
        self.set_target(kind="ssh", host="kepler", config=str(far.config), folder=str(far.runs), poll=1)

    def there(self, run_id: str) -> Path:
        (found,) = self.far.runs.glob(f"*/{run_id}")
        return found

    def lose(self, there: Path) -> None:
        """End at once all that serves the attempts in a run's folder there, as a power cut does."""
        lost = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = [*process.cmdline(), *process.environ().values()]
                if any(word.startswith(str(there)) for word in words):
                    lost.append(process)
        # None of them may see another one's end.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in lost:
                process.send_signal(number)


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
    subprocess.run(["bash", "-c", START, "bash", str(tmp_path)], capture_output=True, timeout=20, check=True)
    assert not (tmp_path / "ended").exists()
    (tmp_path / "pipe").write_text("go on\n")
    wait_until((tmp_path / "ended").exists, what="the end")


def test_a_resume_continues_from_what_a_stop_saved_there(pair: Pair) -> None:
    helper = pair.code / "a folder" / "helper.py"
    helper.parent.mkdir()
    helper.write_text("")
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 5)
    sent = pair.there(run_id) / "code" / "a folder" / "helper.py"
    assert sent.is_file()
    helper.unlink()
    helper.parent.rmdir()
    # A file has the folder's name now.
    helper.parent.write_text("")
    pair.machine.gputui("stop", run_id)
    pair.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    step = pair.steps(run_id)[-1] + 1
    saved = pair.there(run_id) / "checkpoints" / f"step_{step:06d}.pt"
    assert saved.is_file()
    # Nothing is said of checkpoints that cannot be seen from here.
    (stopped,) = pair.machine.rows("SELECT cause FROM transitions WHERE to_state = 'stopped'")
    assert stopped == ("stopped",) and "checkpoints_unmatched" not in pair.events(run_id)
    script = pair.code / "steps.py"
    script.write_text(script.read_text().replace('print("done"', 'print("edited"'))
    pair.machine.gputui("resume", run_id)
    pair.wait_for_step(run_id, step + 5, attempt=2)
    begun_from = wait_until(lambda: pair.shown(run_id)["attempts"][1]["resumed_from"], WAIT_SECONDS, "its beginning")
    assert Path(begun_from).samefile(saved)
    pair.finish(run_id, pair.there(run_id))
    assert "edited" in pair.machine.gputui("logs", run_id), "what a person resumes is the code as it is"
    assert sent.parent.is_file()


@pytest.mark.long
def test_a_resume_that_finds_no_checkpoint_there_says_so(pair: Pair) -> None:
    run_id = pair.launch("steps=3")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    pair.machine.gputui("resume", run_id, "--force")
    wait_until(lambda: "no_checkpoint_there" in pair.events(run_id), WAIT_SECONDS, "the event")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    assert pair.shown(run_id)["attempts"][1]["resumed_from"] is None
    assert "seen by its target alone" in pair.machine.gputui("policy", "try", "--incident", "killed", "--run", run_id)


@pytest.mark.long
def test_a_script_that_fails_there_goes_on_from_its_checkpoint_there(pair: Pair) -> None:
    run_id = pair.launch("steps=60", "fail_at=25", "seconds=0.05")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    first, second = pair.shown(run_id)["attempts"]
    assert first["incident"]["kind"] == "user_exception" and second["state"] == "succeeded"
    assert Path(second["resumed_from"]).name == "step_000020.pt" and "no_checkpoint_there" not in pair.events(run_id)
    assert pair.steps(run_id) == [*range(26), *range(20, 60)]


@pytest.mark.long
def test_one_that_was_begun_again_there_never_goes_on_from_what_was_before(pair: Pair) -> None:
    with Path(pair.profile).open("a") as profile:
        profile.write("recovery: {policy: standard, max_attempts: 2, backoff: {base: 0.1}}\n")
    run_id = pair.launch("steps=30")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    script = pair.code / "steps.py"
    script.write_text(script.read_text().replace("if step == options.fail_at", "if step == 5"))
    pair.machine.gputui("restart", run_id)
    pair.machine.wait_for(run_id, "failed", "succeeded", timeout=WAIT_SECONDS)
    attempts = pair.shown(run_id)["attempts"]
    assert len(attempts) == 3 and {attempt["state"] for attempt in attempts[1:]} == {"failed"}
    for number in range(2, len(attempts) + 1):
        plan = json.loads((pair.there(run_id) / f"attempts/{number}/far/attempt.json").read_text())
        assert plan["resume_from"] is None


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
def test_a_removed_run_is_removed_there_too(pair: Pair) -> None:
    run_id = pair.launch("steps=3")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    there = pair.there(run_id)
    assert there.is_dir()
    pair.machine.gputui("rm", run_id)
    wait_until(lambda: not there.exists(), WAIT_SECONDS, "its removal there")


@pytest.mark.long
def test_one_that_is_removed_while_the_line_is_down_is_removed_there_later(pair: Pair) -> None:
    run_id = pair.launch("steps=3")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    there, kept = pair.there(run_id), pair.machine.workspace.state / "removed" / f"{run_id}.1"
    pair.far.stop()
    pair.machine.gputui("rm", run_id)
    wait_until(lambda: kept.exists() and not (kept / "metrics.jsonl").exists(), WAIT_SECONDS, "room here")
    assert there.exists() and list(kept.glob("attempts/1/root.json"))
    pair.far.start()
    pair.machine.kill_agent()
    pair.machine.gputui("agent", "start")
    wait_until(lambda: not there.exists() and not kept.exists(), WAIT_SECONDS, "its removal there")


@pytest.mark.long
def test_metrics_that_are_cut_off_there_are_followed_from_their_new_beginning(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 300)
    pair.cut_off_metrics(run_id, pair.there(run_id))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_line_that_drops_again_and_again_loses_and_doubles_nothing(pair: Pair) -> None:
    run_id = pair.launch("steps=1000000", "seconds=0.01")
    pair.wait_for_step(run_id, 5)
    states = set()
    for _ in range(8):
        pair.far.stop()
        down_until = time.monotonic() + random.uniform(0.5, 6.0)
        wait_until(lambda until=down_until: time.monotonic() > until, what="some seconds without a line")
        states.add(pair.machine.state(run_id))
        pair.far.start()
        known = len(pair.steps(run_id))
        wait_until(lambda known=known: len(pair.steps(run_id)) > known, WAIT_SECONDS, "more steps")
    pair.finish(run_id, pair.there(run_id))
    assert states == {"running"} and len(pair.shown(run_id)["attempts"]) == 1


def test_a_host_key_that_changed_is_refused(pair: Pair) -> None:
    other = pair.far.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    known = pair.far.folder / "known"
    known.write_text(f"{known.read_text().split()[0]} {' '.join(other.with_suffix('.pub').read_text().split()[:2])}\n")
    done = pair.machine.call("targets", "check", "kepler")
    assert done.returncode == 3 and "verification failed" in done.stdout
    run_id = pair.launch()
    wait_until(lambda: pair.placement(run_id).get("problem"), WAIT_SECONDS, "a problem")
    assert not pair.far.runs.exists() and pair.machine.state(run_id) == "starting"
    pair.machine.gputui("stop", run_id, "--now")


@pytest.mark.long
def test_a_machine_that_was_rebooted_ends_the_attempt_and_the_next_one_goes_on(pair: Pair) -> None:
    run_id = pair.launch("steps=100000", "seconds=0.05")
    pair.wait_for_step(run_id, 12)
    there = pair.there(run_id)
    pair.far.stop()
    pair.lose(there)
    pair.far.start()
    wait_until(lambda: len(pair.shown(run_id)["attempts"]) == 2, WAIT_SECONDS, "another attempt")
    assert pair.shown(run_id)["attempts"][0]["incident"]["kind"] == "node_fail"
    before = pair.steps(run_id)[-1]
    wait_until(lambda: pair.machine.steps(run_id)[-1] > (2, before), WAIT_SECONDS, "more steps")
    (there / "enough").touch()
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    made = pair.steps(run_id)
    assert sorted(set(made)) == list(range(max(made) + 1)), "no step lost"


@pytest.mark.long
def test_code_that_was_sent_in_half_is_sent_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line drops while the first copy is made."""
    real, folder = shutil.which("rsync"), pair.machine.folder / "bin"
    folder.mkdir()
    broken = folder / "rsync"
    broken.write_text(
        f'#!/bin/sh\nif [ ! -e {folder}/once ]; then touch {folder}/once; mkdir -p "{pair.far.runs}"; exit 12; fi\n'
        f'exec {real} "$@"\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    run_id = pair.launch("steps=3")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    assert (folder / "once").exists() and len(pair.shown(run_id)["attempts"]) == 1


def test_a_check_of_a_machine_that_is_not_reached_says_so(pair: Pair) -> None:
    pair.far.stop()
    done = pair.machine.call("targets", "check", "kepler", "--json")
    (only,) = json.loads(done.stdout)
    assert done.returncode == 3 and (only["name"], only["status"]) == ("connection", "fail")


def test_a_check_warns_of_a_clock_that_is_hours_off(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "date").write_text("#!/bin/sh\necho $(($(/bin/date +%s) - 10800))\n")
    (folder / "date").chmod(0o755)
    with far_machine(tmp_path / "far", monkeypatch, PATH=f"{folder}:{os.environ['PATH']}") as far:
        results = {one["name"]: one for one in Pair(machine, far).machine.json("targets", "check", "kepler")}
    assert results["clock"]["status"] == "warn" and results["clock"]["detail"].startswith("108")


def test_a_check_tells_what_is_there(pair: Pair) -> None:
    target = json.loads(pair.machine.workspace.targets.read_text())
    target["kepler"]["python"] = sys.executable
    pair.machine.workspace.targets.write_text(json.dumps(target))
    results = {one["name"]: one["status"] for one in pair.machine.json("targets", "check", "kepler")}
    assert results.keys() == {"connection", "clock", "programs", "python", "torch"}
    assert {results[name] for name in ("connection", "clock", "programs", "python")} == {"pass"}


@pytest.fixture
def small_disk(pair: Pair) -> Iterator[Path]:
    """The folder of runs there is a disk of its own, of 4 MiB."""
    pair.far.runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(pair.far.runs)]
    if subprocess.run(mount, capture_output=True, timeout=20, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield pair.far.runs
    pair.lose(pair.far.runs)
    subprocess.run(["umount", "--lazy", str(pair.far.runs)], check=True, timeout=20)


def fill(disk: Path) -> None:
    """Leave no byte of room."""
    subprocess.run(["dd", "if=/dev/zero", f"of={disk}/ballast", "bs=4k"], capture_output=True, timeout=20, check=False)


@pytest.mark.long
def test_where_there_is_no_room_for_the_code_the_run_fails_and_says_where(pair: Pair, small_disk: Path) -> None:
    fill(small_disk)
    run_id = pair.launch("steps=3")
    pair.machine.wait_for(run_id, "failed", timeout=WAIT_SECONDS)
    (attempt,) = pair.shown(run_id)["attempts"]
    assert attempt["incident"]["kind"] == "launch_failed"
    assert mentions(attempt["incident"]["summary"], "kepler", "No space left on device")


@pytest.mark.long
def test_where_there_is_no_room_for_a_record_the_run_fails_and_says_where(pair: Pair, small_disk: Path) -> None:
    targets = json.loads(pair.machine.workspace.targets.read_text())
    targets["kepler"]["setup"] = [f"dd if=/dev/zero of={small_disk}/ballast bs=4k"]
    pair.machine.workspace.targets.write_text(json.dumps(targets))
    run_id = pair.launch("steps=3")
    pair.machine.wait_for(run_id, "failed", timeout=WAIT_SECONDS)
    (attempt,) = pair.shown(run_id)["attempts"]
    assert attempt["incident"]["kind"] == "launch_failed"
    assert mentions(attempt["incident"]["summary"], "kepler", "No space left on device")


@pytest.mark.long
def test_a_run_that_fills_its_disk_there_says_where_and_loses_no_line(pair: Pair, small_disk: Path) -> None:
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 12)
    fill(small_disk)
    first = wait_until(lambda: pair.shown(run_id)["attempts"][0]["incident"], WAIT_SECONDS, "its end")
    assert first["kind"] == "disk_full" and mentions(first["summary"], "kepler")
    lines = (pair.there(run_id) / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert pair.steps(run_id) == list(range(sum(line.endswith("\n") for line in lines)))
    (small_disk / "ballast").unlink()
    pair.machine.gputui("stop", run_id, "--now")
    pair.machine.gputui("resume", run_id)
    pair.wait_for_step(run_id, len(lines) + 5, attempt=2)
    wait_until(lambda: pair.shown(run_id)["attempts"][1]["resumed_from"], WAIT_SECONDS, "its beginning")
