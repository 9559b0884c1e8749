"""Runs on another machine over SSH: a real sshd on loopback, and folders there that nobody shares."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gputui.runs.identity import identify
from tests.conftest import wait_until
from tests.machine import Machine
from tests.runs.executors.slurm_cluster import PATH, free_ports

WAIT_SECONDS = 90.0
NUMBERS = itertools.count()
PROGRAMS = ("sshd", "ssh", "ssh-keygen", "rsync", "git", "flock")


class Far:
    """An sshd of the test's own; runs lie below ``runs``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs, self.config = folder, folder / "runs", folder / "config"
        (port,) = free_ports(1)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "sshd_config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            f"PidFile {folder}/pid\nPermitRootLogin yes\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        )
        host_key = " ".join((folder / "host.pub").read_text().split()[:2])
        (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}\n")
        self.config.write_text(
            f"Host kepler\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {folder}/user\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking yes\n"
        )
        self.start()

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        program = shutil.which("sshd", path=PATH)
        assert program is not None
        self.process = subprocess.Popen(
            [program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        wait_until(lambda: self.call("true") == 0, WAIT_SECONDS, "sshd")

    def call(self, *words: str) -> int:
        argv = ["ssh", "-F", str(self.config), "-o", "BatchMode=yes", "-o", "ControlPath=none", "kepler", *words]
        return subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode

    def stop(self) -> None:
        """The daemon and every connection through it."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            process.kill()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    gone = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if gone or os.geteuid() != 0:
        pytest.skip(f"no {', '.join(gone)}: apt-get install openssh-server rsync" if gone else "an own sshd needs root")
    runtime = Path(tempfile.mkdtemp(prefix="gputui-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    folder = tmp_path / "far"
    folder.mkdir()
    made = Far(folder)
    yield made
    for socket in (runtime / "gputui-ssh").glob("*"):
        subprocess.run(
            ["ssh", "-F", str(made.config), "-o", f"ControlPath={socket}", "-O", "exit", "kepler"],
            capture_output=True, timeout=20, check=False,
        )  # fmt: skip
    made.stop()
    shutil.rmtree(runtime)


class Pair:
    """A home here with the other machine as its target."""

    def __init__(self, machine: Machine, far: Far) -> None:
        self.machine, self.far = machine, far
        self.code = machine.folder / "code"
        self.code.mkdir()
        self.profile = machine.profile(f"far{next(NUMBERS)}")
        for name in ("steps.py", Path(self.profile).name):
            shutil.move(machine.folder / name, self.code / name)
        self.profile = str(self.code / Path(self.profile).name)
        (self.code / "ignored.bin").write_text("x")
        (self.code / ".gitignore").write_text("*.bin\n")
        subprocess.run(["git", "init", "-q", str(self.code)], check=True, timeout=20)
        target = {"kind": "ssh", "host": "kepler", "config": str(far.config), "folder": str(far.runs), "poll": 1}
        machine.workspace.targets.write_text(json.dumps({"kepler": target}))

    def launch(self, *changes: str) -> str:
        words = [word for change in changes for word in ("--set", change)]
        return str(self.machine.json("run", self.profile, "--on", "kepler", *words)["id"])

    def there(self, run_id: str) -> Path:
        (found,) = self.far.runs.glob(f"*/{run_id}")
        return found

    def steps(self, run_id: str) -> list[int]:
        return [step for _, step in self.machine.steps(run_id)]

    def wait_for_step(self, run_id: str, step: int) -> None:
        wait_until(lambda: (self.steps(run_id) or [-1])[-1] >= step, WAIT_SECONDS, f"step {step}")

    def finish(self, run_id: str) -> None:
        (self.there(run_id) / "enough").touch()
        self.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
        written = (self.there(run_id) / "metrics.jsonl").read_text().count("\n")
        assert self.steps(run_id) == list(range(written))

    def show(self, run_id: str) -> dict[str, Any]:
        found = self.machine.json("show", run_id)
        assert isinstance(found, dict)
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


def test_a_run_goes_there_with_its_code_and_comes_back_line_by_line(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 10)
    there = pair.there(run_id)
    assert (there / "code" / "steps.py").is_file() and not (there / "code" / "ignored.bin").exists()
    assert (there / "attempts" / "1" / "far" / "attempt.json").stat().st_mode & 0o077 == 0
    pair.finish(run_id)
    shown = pair.show(run_id)
    assert shown["placement"]["state"] == "ended" and shown["target"] == "kepler"
    assert "done" in pair.machine.gputui("logs", run_id)


def test_a_stop_saves_there(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 5)
    pair.machine.gputui("stop", run_id)
    pair.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    last = pair.steps(run_id)[-1]
    assert (pair.there(run_id) / "checkpoints" / f"step_{last + 1:06d}.pt").is_file()


def test_a_script_that_fails_there_goes_on_from_its_checkpoint_there(pair: Pair) -> None:
    run_id = pair.launch("steps=60", "fail_at=25", "seconds=0.05")
    pair.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    first, second = pair.show(run_id)["attempts"]
    assert first["incident"]["kind"] == "user_exception" and second["state"] == "succeeded"
    assert pair.steps(run_id) == [*range(26), *range(20, 60)]


def test_a_line_that_drops_loses_nothing_and_fails_nothing(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    pair.wait_for_step(run_id, 5)
    pair.far.stop()
    wait_until(lambda: pair.show(run_id)["placement"]["problem"], WAIT_SECONDS, "a problem")
    assert pair.machine.state(run_id) == "running"
    known = len(pair.steps(run_id))
    pair.far.start()
    wait_until(lambda: pair.show(run_id)["placement"]["problem"] is None, WAIT_SECONDS, "an answer")
    pair.wait_for_step(run_id, known + 5)
    pair.finish(run_id)


def test_couriers_killed_one_after_another_leave_one_start_and_every_line_once(pair: Pair) -> None:
    run_id = pair.launch("steps=100000")
    record = pair.machine.workspace.run_dir(run_id) / "attempts" / "1" / "started.json"

    def courier() -> int | None:
        try:
            pid = int(json.loads(record.read_text())["shim_pid"])
        except (OSError, ValueError):
            return None
        return pid if identify(pid) is not None else None

    for _ in range(4):
        pid = wait_until(courier, WAIT_SECONDS, "a courier")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: courier() not in (pid, None), WAIT_SECONDS, "another courier")
    pair.wait_for_step(run_id, 10)
    pair.finish(run_id)
    assert len(pair.show(run_id)["attempts"]) == 1


def test_a_host_key_that_changed_is_refused(pair: Pair) -> None:
    other = pair.far.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    known = pair.far.folder / "known"
    known.write_text(f"{known.read_text().split()[0]} {' '.join(other.with_suffix('.pub').read_text().split()[:2])}\n")
    done = pair.machine.call("targets", "check", "kepler")
    assert done.returncode == 3 and "verification failed" in done.stdout
    run_id = pair.launch()
    wait_until(lambda: (pair.show(run_id)["placement"] or {}).get("problem"), WAIT_SECONDS, "a problem")
    assert not pair.far.runs.exists() and pair.machine.state(run_id) == "starting"
    pair.machine.gputui("stop", run_id, "--now")


def test_a_check_tells_what_is_there(pair: Pair) -> None:
    target = json.loads(pair.machine.workspace.targets.read_text())
    target["kepler"]["python"] = sys.executable
    pair.machine.workspace.targets.write_text(json.dumps(target))
    results = {one["name"]: one["status"] for one in pair.machine.json("targets", "check", "kepler")}
    assert results.keys() == {"connection", "clock", "programs", "python", "torch"}
    assert {results[name] for name in ("connection", "clock", "programs", "python")} == {"pass"}
