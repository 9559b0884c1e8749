"""The agent's end of the sampler: whatever the sampler does, nothing here waits for it."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

from benchmarks.fakenvml.build import FakeNvml
from gputui.machine.gpu_model import FastTick, Inventory, Occupant, ProcessTick
from gputui.machine.sampler_client import GIVE_UP_SECONDS, SamplerClient, SamplerCommand
from gputui.store.series import HostSample
from tests.conftest import wait_until
from tests.machine.conftest import Start
from tests.texts import mentions


def script(tmp_path: Path, body: str) -> str:
    """An "interpreter" that does something else than the sampler."""
    path = tmp_path / "fake-python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_occupants_and_interval_reach_the_sampler(start: Start) -> None:
    watched = start(interval_seconds=60.0)
    uuid = watched.next(Inventory).gpus[2].uuid
    watched.client.send_occupants([Occupant(uuid, os.getpid(), "r", memory_bytes=2**30)])
    watched.client.set_interval(0.1)
    watched.next_sample(2, lambda sample: bool(sample.memory_used_bytes))
    listed = watched.next(ProcessTick, lambda tick: bool(tick.processes[uuid]))
    assert [process.pid for process in listed.processes[uuid] or ()] == [os.getpid()]


def test_a_hang_inside_the_real_binding(start: Start, fake_nvml: FakeNvml) -> None:
    fake_nvml.configure(["gpus 8"])
    watched = start("nvml")
    watched.next(FastTick)
    fake_nvml.configure(["gpus 8", "hang nvmlDeviceGetUtilizationRates 600"])
    watched.next_health("silent")
    watched.next(HostSample)
    fake_nvml.configure(["gpus 8"])
    watched.next(FastTick)
    assert watched.next_health("ok").restarts == 0


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


def test_a_sampler_that_keeps_ending_is_a_problem(tmp_path: Path) -> None:
    client = SamplerClient(SamplerCommand("simulated", tmp_path, python=script(tmp_path, "exit 3")), tmp_path / "log")
    client.start(now=0.0)
    clock = itertools.count()
    problem = wait_until(lambda: client.check(next(clock)) and client.problem)
    assert mentions(problem, "2 times", "status 3", str(tmp_path / "log"))
    script(tmp_path, "exec sleep 100")
    assert wait_until(lambda: client.check(next(clock)).pid)
    assert client.problem is None
    assert client.check(next(clock) + 20).state == "silent"
    assert client.problem is None
    client.close()


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
