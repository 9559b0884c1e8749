"""The agent's end of the sampler: whatever the sampler does, nothing here waits for it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.fakenvml.build import FakeNvml
from gputui.gpu.client import GIVE_UP_SECONDS, SILENT_MIN_SECONDS, UNKILLABLE_SECONDS, SamplerClient, SamplerCommand
from gputui.gpu.model import FastTick, Inventory, Occupant, ProcessTick
from gputui.runs.identity import identify, is_alive
from gputui.store.series import HostSample
from tests.conftest import wait_until
from tests.gpu.conftest import Start
from tests.gpu.watched import Watched
from tests.pace import Waited
from tests.texts import mentions

# Far above what a call takes, far below any time for which a sampler may hang.
AT_ONCE_SECONDS = 0.5


def script(tmp_path: Path, body: str) -> str:
    """An "interpreter" that does something else than the sampler."""
    path = tmp_path / "fake-python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_it_starts_and_is_well(start: Start) -> None:
    watched = start()
    assert watched.client.check(time.monotonic()).state == "starting"
    inventory = watched.next(Inventory)
    watched.next(FastTick)
    watched.next(HostSample)
    health = watched.next_health("ok")
    assert len(inventory.gpus) == 8
    assert (health.reason, health.restarts) == (None, 0)
    assert watched.client.malformed_lines == 0


def test_it_starts_though_the_interpreter_of_the_installation_was_removed(tmp_path: Path) -> None:
    own = tmp_path / "python"
    own.symlink_to(Path(sys.executable).resolve())
    code = f"""
import sys, time
from pathlib import Path
from gputui.gpu.client import SamplerClient, SamplerCommand
Path(sys.executable).unlink()
home = Path({str(tmp_path)!r})
client = SamplerClient(SamplerCommand("simulated", home, gpu_count=2), home / "log")
client.start()
until = time.monotonic() + 30
found = []
while not found and time.monotonic() < until:
    found = client.read()
    client.check(time.monotonic())
    time.sleep(0.05)
client.close()
print(bool(found))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([own, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n", done.stderr + (tmp_path / "log").read_text()


def test_occupants_and_interval_reach_the_sampler(start: Start) -> None:
    watched = start(interval_seconds=60.0)
    uuid = watched.next(Inventory).gpus[2].uuid
    watched.client.send_occupants([Occupant(uuid, os.getpid(), "r", memory_bytes=2**30)])
    watched.client.set_interval(0.1)
    watched.next_sample(2, lambda sample: bool(sample.memory_used_bytes))
    listed = watched.next(ProcessTick, lambda tick: bool(tick.processes[uuid]))
    assert [process.pid for process in listed.processes[uuid] or ()] == [os.getpid()]


def test_a_hang_makes_it_silent_and_nothing_waits(start: Start, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("{gpus: 2}")
    watched = start(scenario=scenario)
    watched.next(FastTick)
    scenario.write_text("{gpus: 2, faults: [{kind: hang, for: 6}]}")
    silent = watched.next_health("silent")
    assert silent.for_seconds > SILENT_MIN_SECONDS
    assert mentions(silent.reason, "driver")
    assert watched.longest_wait_seconds < AT_ONCE_SECONDS
    assert watched.next(HostSample).cpu_count, "the host goes on"
    back = watched.next_health("ok")
    assert (back.reason, back.restarts) == (None, 0)


def test_a_hang_inside_the_real_binding(start: Start, fake_nvml: FakeNvml) -> None:
    fake_nvml.configure(["gpus 8"])
    watched = start("nvml")
    watched.next(FastTick)
    fake_nvml.configure(["gpus 8", "hang nvmlDeviceGetUtilizationRates 600"])
    watched.next_health("silent")
    watched.next(HostSample)
    assert watched.longest_wait_seconds < AT_ONCE_SECONDS
    fake_nvml.configure(["gpus 8"])
    watched.next(FastTick)
    assert watched.next_health("ok").restarts == 0


def test_it_can_be_closed_while_the_driver_hangs(start: Start, fake_nvml: FakeNvml) -> None:
    fake_nvml.configure(["gpus 1", "hang * 600"])
    watched = start("nvml")
    watched.next(HostSample)
    pid = watched.client.check(time.monotonic()).pid
    assert pid is not None
    sampler = identify(pid)
    assert sampler is not None
    watched.client.close()
    wait_until(lambda: not is_alive(sampler), what="the sampler's end")


def test_a_killed_sampler_is_started_again(start: Start) -> None:
    watched = start()
    fd = watched.client.fileno()
    first = watched.next(Inventory)
    watched.client.send_occupants([Occupant(first.gpus[0].uuid, os.getpid(), "r", memory_bytes=2**30)])
    pid = watched.next_health("ok").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    restarting = watched.next_health("restarting")
    assert mentions(restarting.reason, "SIGKILL")
    second = watched.next(Inventory)
    assert second.gpus == first.gpus
    back = watched.next_health("ok")
    assert back.restarts == 1
    assert back.pid != pid
    assert watched.client.fileno() == fd, "a selector need not be told"
    watched.next_sample(0, lambda sample: bool(sample.memory_used_bytes))
    assert watched.client.malformed_lines == 0, "a line cut off by the kill does not spoil the next one"


def test_the_wait_before_a_restart_grows(tmp_path: Path) -> None:
    client = SamplerClient(SamplerCommand("simulated", tmp_path, python=script(tmp_path, "exit 3")), tmp_path / "log")
    client.start(now=0.0)
    now, restarts = 0.0, 0
    starts: list[float] = []
    deadline = time.monotonic() + 20
    while len(starts) < 4 and time.monotonic() < deadline:
        health = client.check(now)
        if health.restarts > restarts:
            restarts = health.restarts
            starts.append(now)
        if health.state == "restarting":
            now += 0.25
        else:
            time.sleep(0.005)  # the script still runs
    client.close()
    assert mentions(health.reason, "status 3")
    gaps = [later - earlier for earlier, later in zip([0.0, *starts], starts, strict=False)]
    assert gaps == pytest.approx([1, 2, 4, 8], abs=0.5)


def test_a_sampler_that_cannot_start_is_reported(tmp_path: Path) -> None:
    client = SamplerClient(SamplerCommand("simulated", tmp_path, python=str(tmp_path / "none")), tmp_path / "log")
    client.start()
    health = client.check(time.monotonic())
    assert health.state == "restarting"
    assert health.reason is not None
    assert "cannot be started" in health.reason
    assert str(tmp_path / "none") in health.reason
    client.close()


def test_a_broken_scenario_is_the_reason(start: Start, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("faults: [{kind: explode}]")
    watched = start(scenario=scenario)
    reason = watched.next_health("restarting").reason
    assert reason is not None
    assert "scenario.yaml:1: faults.0.kind: " in reason


def test_silence_for_a_minute_ends_in_a_kill_and_a_successor(tmp_path: Path) -> None:
    client = SamplerClient(
        SamplerCommand("simulated", tmp_path, python=script(tmp_path, "exec sleep 100")), tmp_path / "log"
    )
    client.start(now=0.0)
    pid = client.check(1.0).pid
    assert client.check(1.0).state == "starting"
    assert client.check(11.0).state == "silent"
    assert client.check(GIVE_UP_SECONDS - 1).pid == pid
    assert Path(f"/proc/{pid}").exists()
    assert client.check(GIVE_UP_SECONDS + 1).state == "silent"
    restarting = wait_until(
        lambda: health if (health := client.check(GIVE_UP_SECONDS + 1.1)).state == "restarting" else None
    )
    assert mentions(restarting.reason, "SIGKILL")
    assert client.check(GIVE_UP_SECONDS + 3).pid not in (pid, None)
    client.close()


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


class Undying:
    """A child in uninterruptible sleep: neither signals nor time end it."""

    pid = 4_194_000
    returncode: int | None = None

    def __init__(self) -> None:
        self.kills = 0

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.kills += 1

    terminate = kill


def test_a_sampler_that_does_not_die_gets_no_successor(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = start()
    client = watched.client
    watched.next(FastTick)
    real, undying = client._child, Undying()
    assert real is not None
    real.kill()
    real.wait()
    client.read()
    monkeypatch.setattr(client, "_child", undying)
    now = time.monotonic() + GIVE_UP_SECONDS + 1
    assert client.check(now).state == "silent"
    assert undying.kills == 1
    dead = client.check(now + UNKILLABLE_SECONDS + 1)
    assert dead.state == "dead"
    assert dead.reason is not None
    assert "does not end" in dead.reason
    for later in range(1, 600, 60):
        assert client.check(now + UNKILLABLE_SECONDS + later).restarts == 0
    assert undying.kills == 1
    undying.returncode = -9
    assert client.check(now + 700).state == "restarting"
    assert client.check(now + 702).restarts == 1


def test_a_sampler_inside_the_driver_is_not_killed_in_vain(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal would not end the call, but it would end the readings of the host."""
    watched = start()
    watched.next(FastTick)
    monkeypatch.setattr("gputui.gpu.client._is_in_kernel", lambda pid: True)
    health = watched.client.check(time.monotonic() + GIVE_UP_SECONDS + 10)
    assert health.state == "silent"
    assert health.reason is not None
    assert "waits inside" in health.reason
    watched.next(HostSample)
    assert watched.next_health("ok").restarts == 0


def test_sending_to_a_sampler_that_does_not_read_does_not_wait(tmp_path: Path) -> None:
    command = SamplerCommand("simulated", tmp_path, python=script(tmp_path, "exec sleep 100"))
    client = SamplerClient(command, tmp_path / "log")
    client.start()
    many = [Occupant("GPU-" + "x" * 40, pid, "run") for pid in range(1000)]
    with Waited() as waited:
        for number in range(100):
            client.send_occupants(many[: number + 1])
            client.set_interval(1.0 + number)
    assert waited.seconds < AT_ONCE_SECONDS
    assert len(client._outbox) <= 2, "only the newest of each kind is kept"
    client.close()


def test_closing_one_that_ignores_sigterm_kills_it(tmp_path: Path) -> None:
    body = 'trap "" TERM\necho ready >&2\nwhile :; do sleep 100; done'
    client = SamplerClient(SamplerCommand("simulated", tmp_path, python=script(tmp_path, body)), tmp_path / "log")
    client.start()
    wait_until(lambda: "ready" in (tmp_path / "log").read_text())
    pid = client.check(time.monotonic()).pid
    assert pid is not None
    sampler = identify(pid)
    assert sampler is not None
    client.close()
    wait_until(lambda: not is_alive(sampler), what="the sampler's end")
    assert client.check(time.monotonic()).state == "dead"
    client.close()


def test_closing_takes_a_second_at_most_whatever_the_sampler_does(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that only sleeping moves on: how long the machine takes over the rest says nothing of the code."""
    watched = start()
    real, undying = watched.client._child, Undying()
    assert real is not None
    real.kill()
    real.wait()
    monkeypatch.setattr(watched.client, "_child", undying)
    clock = Clock()
    monkeypatch.setattr("gputui.gpu.client.time", clock)
    watched.client.close()
    assert 0.5 < clock.monotonic() <= 1.0
    assert undying.kills == 2, "SIGTERM first, SIGKILL then"
    watched.client.close()
    assert undying.kills == 2


def test_partial_lines_are_put_together_and_broken_ones_counted(tmp_path: Path) -> None:
    body = r"""
printf '{"kind": "fast", "at'
printf '": 1, "gpus": []}\nnonsense\n{"kind": "fast", "at": 2, "gpus": []}\n'
exec sleep 100
"""
    client = SamplerClient(SamplerCommand("simulated", tmp_path, python=script(tmp_path, body)), tmp_path / "log")
    client.start()
    watched = Watched(client)
    watched.until(lambda: len(watched.messages) >= 2)
    client.close()
    assert watched.messages == [FastTick(1.0, ()), FastTick(2.0, ())]
    assert client.malformed_lines == 1
    assert "line not understood" in (tmp_path / "log").read_text()


def test_the_log_is_private_and_appended_to(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "sampler.log"
    log.write_text("before\n")
    log.chmod(0o600)
    start()
    assert log.read_text().startswith("before\n")
    other = SamplerClient(SamplerCommand("simulated", tmp_path), tmp_path / "new.log")
    other.start()
    other.close()
    assert stat.S_IMODE((tmp_path / "new.log").stat().st_mode) == 0o600
