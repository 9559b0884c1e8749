"""Waits and notifications of a recovering run, through the real agent: a GPU that cools, old
checkpoints that go, room on the disk that never comes, a webhook, a command that ends the agent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.faults.jobs import SCRIPTS, meets, write_scenario
from tests.machines import Machine

# --- a GPU that is hot ------------------------------------------------------------------------------------------------


def test_a_run_waits_until_its_gpu_has_cooled_down(machine: Machine) -> None:
    write_scenario(machine, 1, "{kind: hot, gpu: 0, celsius: 150}")
    machine.gputui("agent", "start")
    wait_until(lambda: any(gpu["temperature_celsius"] > 75 for gpu in machine.json("gpus")), what="a hot GPU")
    profile = meets(machine, "policy: standard, ladders: {user_exception: [{wait_cool: 600}]}", gpus=1)
    machine.gputui("run", profile, "--set", "meet=user_exception")
    (waits,) = wait_until(
        lambda: machine.rows("SELECT waiting_for FROM runs WHERE waiting_for LIKE 'waits for GPU 0 to cool%'"),
        what="the wait",
    )
    assert "to cool to 72 °C (now " in waits[0] and machine.state("job-1") == "recovering"
    # Whoever waits keeps waiting under the next agent.
    machine.kill_agent()
    machine.gputui("agent", "start")
    assert machine.state("job-1") == "recovering"
    write_scenario(machine, 1, "{kind: hot, gpu: 0, celsius: 0}")
    machine.wait_for("job-1", "succeeded")
    first, second = machine.json("show", "job-1")["attempts"]
    assert first["incident"]["kind"] == "user_exception"
    assert [action["action"] for action in first["decision"]["actions"] if action["applied"]] == ["wait_cool"]
    assert second["gpus"] == first["gpus"] and second["params"] == first["params"]
    assert second["resumed_from"].endswith("step_000010.pt")
    assert ("wait_timed_out",) not in machine.rows("SELECT kind FROM events")


# --- a disk that is full ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(machine: Machine) -> Iterator[Callable[..., None]]:
    """Puts the checkpoints of the run saves-1, which waits for that, on a file system of 6 MiB of their own, of
    which so many bytes are taken by a file `ballast`."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    folder = machine.workspace.run_dir("saves-1")

    def mount(ballast_bytes: int = 0) -> None:
        wait_until((folder / "checkpoints").is_dir, what="the folder")
        words = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder / "checkpoints")]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        (folder / "checkpoints" / "ballast").write_bytes(bytes(ballast_bytes))
        (folder / "go").touch()

    yield mount
    machine.close()
    subprocess.run(["umount", "-l", str(folder / "checkpoints")], check=False, capture_output=True)


def saves(machine: Machine, recovery: str) -> str:
    """The profile of a job that saves a megabyte every ten steps, and removes nothing."""
    shutil.copy(SCRIPTS / "saves.py", machine.folder)
    return machine.profile(
        "saves",
        f"""
        name: saves
        launcher: python
        script: saves.py
        python: {sys.executable}
        gpus: 0
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
        recovery: {recovery}
        """,
    )


def test_a_run_on_a_full_disk_goes_on_without_old_checkpoints(machine: Machine, small_disk: Callable[[], None]) -> None:
    ladders = "{disk_full: [{prune_checkpoints: 2}, {prune_checkpoints: 2}]}"
    machine.gputui("run", saves(machine, f"{{policy: standard, ladders: {ladders}}}"))
    small_disk()
    machine.wait_for("saves-1", "succeeded", "failed")
    first, *_ = attempts = machine.json("show", "saves-1")["attempts"]
    assert [attempt["state"] for attempt in attempts] == ["failed"] * (len(attempts) - 1) + ["succeeded"], attempts
    assert len(attempts) > 1
    assert first["incident"]["kind"] == "disk_full"
    assert "No space left on device" in " ".join([first["incident"]["summary"], *first["incident"]["evidence"]])
    assert [action["action"] for action in first["decision"]["actions"] if action["applied"]] == ["prune_checkpoints"]
    newest = int(Path(attempts[1]["resumed_from"]).stem.split("_")[1])
    (removed,) = machine.rows("SELECT message FROM events WHERE kind = 'checkpoints_pruned' LIMIT 1")
    assert removed == (f"removed {newest // 10 - 2} old checkpoints",)
    assert {step for _, step in machine.steps("saves-1")} == set(range(80))


# --- telling somebody -------------------------------------------------------------------------------------------------

RECEIVED: list[dict[str, Any]] = []


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        RECEIVED.append({**json.loads(text), "content": self.headers["Content-Type"], "path": self.path})
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def listener() -> Iterator[HTTPServer]:
    """An HTTP server on the loopback; what it gets is in RECEIVED."""
    RECEIVED.clear()
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_webhook_gets_what_a_run_met_and_no_address_is_stored(machine: Machine, listener: HTTPServer) -> None:
    address = f"http://127.0.0.1:{listener.server_port}/hook/t0ken-of-mine"
    notify = f"notify: {{webhook: '{address}'}}"
    profile = meets(machine, f"policy: standard, {notify}, ladders: {{user_exception: [[restart, notify]]}}")
    machine.gputui("run", profile, "--set", "meet=user_exception")
    machine.gputui("run", profile, "--set", "meet=import_error")
    machine.wait_for("job-1", "succeeded")
    machine.wait_for("job-2", "failed")
    wait_until(lambda: len(RECEIVED) == 2, what="two messages")
    told = {message["run_id"]: message for message in RECEIVED}
    assert (told["job-1"]["kind"], told["job-1"]["verdict"]) == ("user_exception", "retry")
    assert told["job-1"]["text"].startswith("job-1 continues: ") and told["job-1"]["attempt"] == 1
    assert (told["job-2"]["kind"], told["job-2"]["verdict"]) == ("import_error", "stop")
    assert told["job-2"]["content"] == "application/json" and told["job-2"]["path"] == "/hook/t0ken-of-mine"
    machine.gputui("agent", "stop")
    kept = b"".join(path.read_bytes() for path in machine.workspace.state.glob("gputui.db*"))
    assert b"t0ken-of-mine" not in kept and b"continues" in kept


@pytest.mark.long
def test_what_an_agent_did_not_live_to_tell_is_told_by_the_next(machine: Machine) -> None:
    told, broken = machine.folder / "told", machine.folder / "broken"
    script = (
        "import os, pathlib, signal, sys\n"
        f"if not os.path.exists({str(broken)!r}):\n"
        f"    pathlib.Path({str(broken)!r}).touch()\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "    sys.exit(1)\n"
        f"pathlib.Path({str(told)!r}).write_text(sys.argv[-1])\n"
    )
    command = json.dumps([sys.executable, "-c", script])
    machine.gputui(
        "run", meets(machine, f"policy: standard, notify: {{command: {command}}}"), "--set", "meet=import_error"
    )
    wait_until(broken.exists, what="the first try")
    wait_until(lambda: machine.agent() is None, what="the agent's death")
    assert not told.exists() and machine.state("job-1") == "failed"
    machine.gputui("agent", "start")
    text = wait_until(lambda: told.exists() and told.read_text(), what="the message")
    assert text.startswith("job-1 stopped: ") and "no_such_module_here" in text
    (row,) = wait_until(lambda: machine.rows("SELECT tries FROM notices WHERE sent_at IS NOT NULL"), what="the row")
    assert row == (2,)
