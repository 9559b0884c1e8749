"""Drills on the spine: real agents, real shims, real processes; what is killed is killed with SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gputui.runs.agent_process import read_identity
from gputui.runs.identity import identify, is_alive
from tests.conftest import wait_until
from tests.faults.jobs import steps_by_attempt
from tests.machines import Machine


def assert_each_step_once(machine: Machine, run_id: str, steps: int) -> None:
    """No line is lost or doubled: within an attempt each step once and without gaps, the last one to the end."""
    by_attempt = steps_by_attempt(machine, run_id)
    for attempt, stored in by_attempt.items():
        assert stored == list(range(stored[0], stored[-1] + 1)), f"attempt {attempt}: {stored}"
    assert by_attempt[max(by_attempt)][-1] == steps - 1
    on_disk = [
        json.loads(line)["step"]
        for line in (machine.workspace.run_dir(run_id) / "metrics.jsonl").read_text().splitlines()
        if line.endswith("}")
    ]
    assert [step for _, step in machine.steps(run_id)] == on_disk


def assert_nothing_left(machine: Machine, run_id: str) -> None:
    wait_until(lambda: not machine.marked(run_id), what="the end of every process")
    assert machine.rows("SELECT * FROM leases") == []


def end_at_once(machine: Machine, records: Mapping[str, bytes]) -> None:
    """The agent, and the first attempt of each run with its shim, are killed; an exit record is left behind."""
    shims = {name: machine.shim(f"{name}-1") for name in records}
    machine.kill_agent()
    for name, record in records.items():
        for process in [shims[name], *machine.marked(f"{name}-1")]:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        (machine.workspace.run_dir(f"{name}-1") / "attempts/1/exit.json").write_bytes(record)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# --- runs and their ends ----------------------------------------------------------------------------------------------


def test_a_run_succeeds_and_every_step_is_there_once(machine: Machine) -> None:
    output = machine.gputui("run", machine.profile(), "--wait", "--json")
    assert json.loads(output) == {"id": "steps-1", "state": "succeeded"}
    assert_each_step_once(machine, "steps-1", 50)
    record = machine.json("show", "steps-1")
    assert [(a["number"], a["state"], a["exit"], a["last_step"]) for a in record["attempts"]] == [
        (1, "succeeded", {"code": 0, "signal": None}, 49)
    ]
    moves = [row[0] for row in machine.rows("SELECT to_state FROM transitions ORDER BY transition_id")]
    assert moves == ["queued", "starting", "running", "succeeded"]
    assert_nothing_left(machine, "steps-1")


def test_a_crash_is_recovered_from_the_newest_checkpoint(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "fail_at=25", "--wait")
    record = machine.json("show", "steps-1")
    first, second = record["attempts"]
    assert first["incident"]["kind"] == "user_exception"
    assert "dog ate" in " ".join([first["incident"]["summary"], *first["incident"]["evidence"]])
    assert first["decision"]["reason"]
    assert Path(second["resumed_from"]).name == "step_000020.pt"
    assert (first["state"], second["state"]) == ("failed", "succeeded")
    assert machine.steps("steps-1")[26] == (2, 20)
    assert_each_step_once(machine, "steps-1", 50)
    story = " ".join(machine.gputui("explain", "steps-1").split())
    assert "step_000020.pt" in story
    assert "dog ate" in story


def test_a_new_agent_adopts_what_the_killed_one_left(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    wait_until(lambda: len(machine.steps("steps-1")) > 5, what="some steps")
    shim = machine.shim("steps-1")
    machine.kill_agent()
    assert is_alive(shim)
    machine.gputui("agent", "start")
    assert is_alive(shim)
    steps = machine.finish("steps-1")
    assert len(machine.json("show", "steps-1")["attempts"]) == 1
    assert_each_step_once(machine, "steps-1", steps)
    assert_nothing_left(machine, "steps-1")


def test_an_end_that_nobody_saw_is_read_from_its_record(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    shim = machine.shim("steps-1")
    wait_until(lambda: machine.steps("steps-1"), what="a step")
    machine.kill_agent()
    (machine.workspace.run_dir("steps-1") / "enough").touch()
    wait_until(lambda: not is_alive(shim), what="the end of the run")
    assert machine.state("steps-1") in ("starting", "running")
    machine.gputui("agent", "start")
    assert_each_step_once(machine, "steps-1", machine.finish("steps-1"))


def test_a_killed_shim_leaves_nothing_behind_and_the_run_goes_on(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    wait_until(lambda: len(machine.steps("steps-1")) > 15, what="some steps")
    os.kill(machine.shim("steps-1").pid, signal.SIGKILL)
    steps = machine.finish("steps-1", attempt=2)
    kinds = machine.rows("SELECT kind FROM incidents")
    assert kinds == [("shim_lost",)]
    assert_each_step_once(machine, "steps-1", steps)
    assert_nothing_left(machine, "steps-1")


# --- stops ------------------------------------------------------------------------------------------------------------


def test_stop_saves_and_leaves_nothing(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    wait_until(lambda: len(machine.steps("steps-1")) > 5, what="some steps")
    assert machine.json("stop", "steps-1") == [{"id": "steps-1", "state": "stopping"}]
    machine.wait_for("steps-1", "stopped")
    assert machine.rows("SELECT count(*) FROM incidents") == [(0,)]
    assert_nothing_left(machine, "steps-1")
    last = machine.steps("steps-1")[-1][1]
    machine.gputui("resume", "steps-1", "--set", f"steps={last + 30}")
    machine.wait_for("steps-1", "succeeded")
    attempts = machine.json("show", "steps-1")["attempts"]
    assert Path(attempts[1]["resumed_from"]).name == f"step_{last + 1:06d}.pt"
    assert_each_step_once(machine, "steps-1", last + 30)


def test_stop_now_does_not_wait_for_the_grace(machine: Machine) -> None:
    script = machine.folder / "deaf.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    )
    profile = machine.profile(
        "deaf", f"name: deaf\nlauncher: python\nscript: deaf.py\ngpus: 0\ngrace: 600\npython: {sys.executable}\n"
    )
    machine.gputui("run", profile)
    wait_until(lambda: "deaf" in machine.gputui("logs", "deaf-1", code=None), what="the script's word")
    machine.gputui("stop", "deaf-1", "--now")
    machine.wait_for("deaf-1", "stopped")
    assert_nothing_left(machine, "deaf-1")


# --- agents and recorders ---------------------------------------------------------------------------------------------


def test_a_run_survives_the_hangup_of_the_terminal_it_was_launched_from(machine: Machine) -> None:
    """The launching process leads a session of its own that is then hung up, as when an SSH line drops."""
    with machine.start("run", machine.profile(), "--set", "steps=100000", start_new_session=True) as process:
        process.communicate(timeout=60)
    shim = machine.shim("steps-1")
    agent = wait_until(machine.agent)
    for identity in (shim, agent):
        os.kill(identity.pid, signal.SIGHUP)
    wait_until(lambda: machine.rows("SELECT 1 FROM attempts WHERE first_step IS NOT NULL"), what="a step")
    assert is_alive(agent)
    machine.finish("steps-1")


def test_a_second_agent_leaves_at_once_and_record_takes_over(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    first = wait_until(machine.agent)
    arguments = ["--profiles", str(machine.workspace.profiles), "--state", str(machine.workspace.state)]
    second = subprocess.run([sys.executable, "-m", "gputui.agent", *arguments], timeout=60, check=False)
    assert second.returncode == 0
    assert machine.agent() == first
    output = machine.gputui("--record", "--duration", "2", "--json")
    assert not is_alive(first)
    line = json.loads(output.splitlines()[0])
    assert line["active_runs"] == 1
    # The recorder has left; an agent in the background watches over the run that is still alive.
    successor = wait_until(machine.agent, what="the successor")
    assert successor != first
    identity = read_identity(machine.workspace)
    assert identity is not None
    assert not identity.recording
    assert_each_step_once(machine, "steps-1", machine.finish("steps-1"))


def test_record_ends_cleanly_on_a_signal(machine: Machine) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with machine.start("--record", "--interval", "0.2") as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors
    assert machine.rows("SELECT at FROM host_samples")
    wait_until(lambda: not machine.processes(), what="the end of every process")


def test_a_damaged_database_is_set_aside_and_the_live_run_is_kept(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    wait_until(lambda: len(machine.steps("steps-1")) > 5, what="some steps")
    shim = machine.shim("steps-1")
    machine.kill_agent()
    for suffix in ("-wal", "-shm"):
        Path(f"{machine.workspace.database}{suffix}").unlink(missing_ok=True)
    machine.workspace.database.write_bytes(b"this is not a database" * 1000)
    machine.gputui("agent", "start")
    assert is_alive(shim)
    aside = list(machine.workspace.state.glob("gputui.db.corrupt-*"))
    assert len(aside) == 1
    events = machine.rows("SELECT message FROM events WHERE kind = 'database_replaced'")
    assert any(aside[0].name in message for (message,) in events)
    assert_each_step_once(machine, "steps-1", machine.finish("steps-1"))
    assert len(machine.json("show", "steps-1")["attempts"]) == 1


def test_the_agent_leaves_when_nobody_needs_it(machine: Machine) -> None:
    arguments = [
        "--profiles",
        str(machine.workspace.profiles),
        "--state",
        str(machine.workspace.state),
        "--linger",
        "0.5",
    ]
    process = subprocess.Popen([sys.executable, "-m", "gputui.agent", *arguments], stderr=subprocess.PIPE)
    assert process.wait(60) == 0
    wait_until(lambda: not machine.processes(), what="the end of every process")


@pytest.mark.long
def test_a_damaged_exit_record_is_an_end_all_the_same(machine: Machine) -> None:
    spoiled = {"empty": b"", "open": b"{", "cut": b'{"code": 1', "zeros": b"\x00" * 20}
    for name in spoiled:
        machine.gputui("run", machine.profile(name), "--set", "seconds=0.05", "--set", "steps=100000")
    for name in spoiled:
        wait_until(lambda name=name: len(machine.steps(f"{name}-1")) > 2, what=f"some steps of {name}")
    end_at_once(machine, spoiled)
    machine.gputui("agent", "start")
    for name in spoiled:
        assert_each_step_once(machine, f"{name}-1", machine.finish(f"{name}-1", attempt=2))
        assert len(machine.json("show", f"{name}-1")["attempts"]) == 2


def test_a_secret_that_the_script_prints_in_its_last_words_is_not_stored(machine: Machine) -> None:
    script = machine.folder / "leaky.py"
    script.write_text("import os\nraise RuntimeError('refused: ' + os.environ['MY_API_KEY'] + os.environ['OTHER'])\n")
    profile = machine.profile(
        "leaky",
        "name: leaky\nlauncher: python\nscript: leaky.py\ngpus: 0\nrecovery: off\n"
        f"python: {sys.executable}\nenv: {{MY_API_KEY: planted-123, OTHER: harmless}}\n",
    )
    machine.gputui("run", profile, "--wait", code=1)
    story = machine.gputui("explain", "leaky-1")
    assert "refused" in story
    assert "harmless" in story
    machine.gputui("agent", "stop")
    files = [path for path in machine.workspace.state.glob("*") if path.is_file()]
    assert any(path.name == "gputui.db" for path in files)
    assert [path.name for path in files if b"planted-123" in path.read_bytes()] == []


@pytest.mark.parametrize("removed", [pytest.param("gputui.db*", marks=pytest.mark.long), "agent.lock"])
def test_an_agent_whose_database_or_lock_was_removed_makes_room_for_its_successor(
    machine: Machine, removed: str
) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    wait_until(lambda: len(machine.steps("steps-1")) > 2, what="some steps")
    first = wait_until(machine.agent)
    shim = machine.shim("steps-1")
    for path in machine.workspace.state.glob(removed):
        path.unlink()
    machine.gputui("agent", "start")
    wait_until(lambda: not is_alive(first), what="the end of the agent that wrote to nowhere")
    wait_until(machine.agent, what="its successor")
    assert is_alive(shim)
    assert_each_step_once(machine, "steps-1", machine.finish("steps-1"))


def test_a_run_that_fails_while_no_agent_lives_is_recovered_with_nobody_there(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "fail_at=25", "--set", "seconds=0.1")
    wait_until(lambda: machine.steps("steps-1"), what="a step")
    machine.kill_agent(is_followed=True)
    machine.wait_for("steps-1", "succeeded")
    assert [attempt["state"] for attempt in machine.json("show", "steps-1")["attempts"]] == ["failed", "succeeded"]


def test_an_agent_that_is_killed_after_it_was_ended_on_purpose_is_followed_by_none(machine: Machine) -> None:
    machine.gputui("agent", "start")
    agent = wait_until(machine.agent)
    (sampler,) = [pid for pid in machine.processes() if b"gputui.machine.sampler" in command_of(pid)]
    identity = identify(sampler)
    assert identity is not None
    machine.workspace.agent_stopped.touch()
    os.kill(agent.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(identity) and not machine.processes(), what="the end of all")
    assert machine.agent() is None
