"""Obstacles on each GPU, and the release of GPUs that a stuck process holds."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.gpus import LOOK_SECONDS, GpuHolds, UsedGpus, gpu_availability
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuFacts, GpuProcess, Inventory, ProcessTick
from gputui.profiles.situation import read_situation
from gputui.runs import repository
from gputui.runs.identity import identify
from gputui.runs.repository import transaction
from gputui.runs.scheduler import GpuAvailability
from gputui.store.events import read_events
from gputui.store.hardware import excluded, quarantine_failed
from gputui.store.run_states import RunState
from gputui.store.series import GpuSample
from tests.homes import NOW, add_run
from tests.texts import mentions


def ten_gpus(connection: sqlite3.Connection, workspace: Workspace, locked: set[str]) -> dict[int, GpuAvailability]:
    """Ten GPUs: well, in quarantine, lost, held, split, a stranger's, one not read, one full and one busy for
    no visible process, and one that is full for the run that leases it."""
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW)
    recorder = context.recorder
    assert gpu_availability(context, locked) is None
    facts = [GpuFacts(f"GPU-{i}", i, "H200", memory_total_bytes=80 << 30, mig_mode=i == 4) for i in range(10)]
    used = {7: 70 << 30, 9: 70 << 30}
    samples = [
        GpuSample(
            f"GPU-{i}",
            state="lost" if i == 2 else "ok",
            memory_used_bytes=used.get(i, 600 << 20),
            utilization_percent=99.0 if i == 8 else 2.0,
        )
        for i in (0, 1, 2, 3, 4, 5, 7, 8, 9)
    ]
    add_run(connection, "b-1", RunState.STARTING, workspace=workspace)
    with transaction(connection):
        repository.take_leases(connection, "b-1", ("GPU-9",), NOW)
    stranger = GpuProcess(pid=1, kind="C", user="bob", memory_bytes=2 << 30)
    recorder.take([Inventory(NOW, "nvml", "580.95", tuple(facts)), FastTick(NOW, tuple(samples))])
    desktop = [GpuProcess(pid, size << 20, "G", "root", "/usr/lib/Xorg") for pid, size in ((2, 780), (3, 1300))]
    recorder.take([ProcessTick(NOW, {"GPU-5": (stranger,), "GPU-0": (desktop[0],), "GPU-9": tuple(desktop)})])
    available = gpu_availability(context, locked)
    assert available is not None
    # The screen and the scheduler must agree on which GPUs are available.
    connection.execute(
        "INSERT INTO agent (id, pid, start_ticks, boot_id, version, started_at, heartbeat_at) "
        "VALUES (1, 1, 1, 'boot', '0', ?, ?)",
        (NOW, NOW),
    )
    recorder.flush()
    situation = read_situation(connection, NOW)
    assert situation is not None
    for gpu, condition in zip(available, situation.conditions, strict=True):
        if gpu.index not in (3, 6):
            assert replace(condition.availability(), total_bytes=gpu.total_bytes) == gpu
    return {gpu.index: gpu for gpu in available}


def test_only_what_passes_by_itself_is_waited_for(workspace: Workspace, connection: sqlite3.Connection) -> None:
    quarantine_failed(connection, ["GPU-1"], "a-1", 1, reason="GPU memory error", now=NOW)
    gpus = ten_gpus(connection, workspace, {"GPU-3"})
    assert [index for index, gpu in gpus.items() if gpu.is_settling] == [6]
    reasons = (
        None, "is in quarantine", "is lost", "is held by a process", "is in MIG mode", "is used by process 1 of bob",
        "not been", "70 GiB", "computing", None,
    )  # fmt: skip
    for index, reason in enumerate(reasons):
        blocked_by = gpus[index].blocked_by
        if reason is None:
            assert blocked_by is None, index
        else:
            assert blocked_by is not None, index
            assert reason in blocked_by, index
    assert [index for index, gpu in gpus.items() if gpu.out_of_service] == [1, 2, 4]
    assert gpus[0].free_bytes == (80 << 30) - (600 << 20)
    assert gpus[6].free_bytes is None


def test_the_gpus_of_this_home_are_chosen_by_its_file_and_a_mistake_changes_nothing(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW)
    facts = [GpuFacts(f"GPU-{i}", i, "H200") for i in range(3)]
    context.recorder.take([Inventory(NOW, "nvml", "580.95", tuple(facts))])
    context.recorder.flush()
    used = UsedGpus(context)

    def unused(text: str | None) -> set[str]:
        workspace.gpus.unlink(missing_ok=True)
        if text is not None:
            workspace.gpus.write_text(text)
        used.poll()
        return excluded(connection)

    assert unused(None) == set()
    assert unused("use: [0, GPU-1]") == {"GPU-2"}
    assert [gpu.out_of_service for gpu in gpu_availability(context) or ()] == [False, False, True]
    for mistake in ("use: 2", "use: [0, 0]", "use: []", "used: [1]"):
        assert unused(mistake) == {"GPU-2"}
    assert [event.kind for event in read_events(connection)] == ["used_gpus_unusable"] * 4
    assert unused("use: [0, 1, 9]") == {"GPU-2"}
    assert mentions(read_events(connection)[-1].message, "gpus.yaml", "9")
    # A GPU that appears later is unused as well, also under the next agent.
    used = UsedGpus(context)
    assert unused("use: [2]") == {"GPU-0", "GPU-1"}
    context.recorder.take([Inventory(NOW, "nvml", "580.95", (*facts, GpuFacts("GPU-3", 3, "H200")))])
    context.recorder.flush()
    used.poll()
    assert excluded(connection) == {"GPU-0", "GPU-1", "GPU-3"}
    assert unused(None) == set()


def test_a_process_that_cannot_be_killed_holds_its_gpus_until_it_is_gone(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
    """Known by the list of its shim alone: it may be another user's, or have wiped its environment."""
    add_run(connection, "a-1", RunState.FAILED)
    with transaction(connection):
        repository.take_leases(connection, "a-1", ("GPU-1", "GPU-2"), NOW)
    clock = [0.0]
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: clock[0])
    holds = GpuHolds(context)
    folder = workspace.run_dir("a-1") / "attempts" / "1"
    folder.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = identify(process.pid)
        assert identity is not None
        entry = {"pid": identity.pid, "start_ticks": identity.start_ticks, "rank": None, "local_world_size": None}
        (folder / "processes.json").write_text(json.dumps({"boot_id": identity.boot_id, "processes": [entry]}))
        holds.begin("a-1", 1, ["GPU-1"])
        for _ in range(3):
            clock[0] += LOOK_SECONDS + 1
            assert not holds.poll()
        assert holds.uuids() == {"GPU-1"}
        assert holds.next_due() == clock[0] + LOOK_SECONDS
        # The next attempt had another GPU, and ends too.
        holds.begin("a-1", 2, ["GPU-2"])
        assert holds.uuids() == {"GPU-1", "GPU-2"}
        clock[0] += LOOK_SECONDS + 1
        assert holds.poll()
        assert holds.uuids() == {"GPU-1"}
        assert repository.leases(connection) == {"GPU-1": (("a-1",), None, {})}
        process.kill()
    clock[0] += LOOK_SECONDS + 1
    assert holds.poll()
    assert holds.next_due() == math.inf
    assert repository.leases(connection) == {}
    ((kind, message),) = connection.execute("SELECT kind, message FROM events WHERE run_id = 'a-1'").fetchall()
    assert kind == "gpus_released"
    assert mentions(message, "attempt 1", "GPU-1")
