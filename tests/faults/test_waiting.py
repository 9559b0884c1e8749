"""Waits of a recovering run, through the real agent: a GPU that cools, old checkpoints that go, room
on the disk that never comes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.faults.jobs import SCRIPTS, meets, write_scenario
from tests.machines import Machine


@pytest.fixture
def small_disk(machine: Machine) -> Iterator[Callable[..., None]]:
    """Puts the checkpoints of the run saves-1, which waits for that, on a file system of 6 MiB of their own, of
    which so many bytes are taken by a file `ballast`."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    folder = machine.workspace.run_dir("saves-1")

    def mount(ballast_bytes: int = 0) -> None:
        wait_until((folder / "checkpoints").is_dir, what="the folder")
        command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder / "checkpoints")]
        if subprocess.run(command, capture_output=True).returncode:
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
    assert "to cool to 72 °C (now " in waits[0]
    assert machine.state("job-1") == "recovering"
    # The run keeps waiting under the next agent.
    machine.kill_agent()
    machine.gputui("agent", "start")
    assert machine.state("job-1") == "recovering"
    write_scenario(machine, 1, "{kind: hot, gpu: 0, celsius: 0}")
    machine.wait_for("job-1", "succeeded")
    first, second = machine.json("show", "job-1")["attempts"]
    assert first["incident"]["kind"] == "user_exception"
    assert [action["action"] for action in first["decision"]["actions"] if action["applied"]] == ["wait_cool"]
    assert second["gpus"] == first["gpus"]
    assert second["params"] == first["params"]
    assert second["resumed_from"].endswith("step_000010.pt")
    assert ("wait_timed_out",) not in machine.rows("SELECT kind FROM events")


# --- a disk that is full ----------------------------------------------------------------------------------------------


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
    ((message,),) = machine.rows("SELECT message FROM events WHERE kind = 'checkpoints_pruned' LIMIT 1")
    assert f" {newest // 10 - 2} " in message
    assert {step for _, step in machine.steps("saves-1")} == set(range(80))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_run_waits_for_room_on_its_disk(machine: Machine) -> None:
    small = machine.folder / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        (small / "step_000010.pt").write_bytes(b"x" * 300_000)
        (small / "step_000010.pt.sha256").write_text(
            f"{sha256((small / 'step_000010.pt').read_bytes()).hexdigest()}  step_000010.pt\n"
        )
        ballast = small / "ballast"
        ballast.write_bytes(bytes(500_000))
        script = machine.folder / "full.py"
        script.write_text(
            "import os, pathlib\n"
            "if os.environ['GPUTUI_ATTEMPT'] == '1':\n"
            f"    (pathlib.Path({str(small)!r}) / 'step_000020.pt.tmp').write_bytes(bytes(5_000_000))\n"
        )
        profile = machine.profile(
            "full",
            f"""
            name: full
            launcher: python
            script: full.py
            python: {sys.executable}
            gpus: 0
            checkpoints: {{dir: {small}, pattern: "step_*.pt"}}
            """,
        )
        machine.gputui("run", profile)
        # Before that it waits a moment for the disk.
        wait_until(
            lambda: machine.rows("SELECT 1 FROM runs WHERE waiting_for LIKE 'waits for%on the disk of%'"),
            what="the wait for room",
        )
        assert machine.state("full-1") == "recovering"
        assert machine.rows("SELECT kind FROM incidents") == [("disk_full",)]
        machine.kill_agent()
        machine.gputui("agent", "start")
        assert machine.state("full-1") == "recovering"
        ballast.unlink()
        (small / "step_000020.pt.tmp").unlink()
        machine.wait_for("full-1", "succeeded")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
