"""What stands in the way on each GPU, and whether waiting helps."""

from __future__ import annotations

import sqlite3

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.gpus import gpu_availability
from gputui.agent.lifecycle.scheduler import GpuAvailability
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuFacts, GpuProcess, Inventory, ProcessTick
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.store.hardware import quarantine
from gputui.store.run_states import RunState
from gputui.store.series import GpuSample
from tests.agent.conftest import NOW, add_run


def look(connection: sqlite3.Connection, workspace: Workspace, draining: set[str]) -> dict[int, GpuAvailability]:
    """Ten GPUs: well, in quarantine, lost, drained, split, a stranger's, one not read, one full and one busy for
    no visible process, and one that is full for the run that leases it."""
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW)
    recorder = context.recorder
    assert gpu_availability(context, draining) is None
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
    recorder.take([ProcessTick(NOW, {"GPU-5": (stranger,)})])
    found = gpu_availability(context, draining)
    assert found is not None
    return {gpu.index: gpu for gpu in found}


def test_only_what_passes_by_itself_is_waited_for(workspace: Workspace, connection: sqlite3.Connection) -> None:
    quarantine(connection, ["GPU-1"], run_id="a-1", attempt=1, reason="GPU memory error", now=NOW)
    found = look(connection, workspace, {"GPU-3"})
    assert [index for index, gpu in found.items() if gpu.is_settling] == [3, 6]
    words = [None, "is in quarantine", "is lost", "still holds memory", "is split by MIG", "is used by bob", "not been"]
    words += ["70 GiB", "computing", None]
    for index, word in enumerate(words):
        blocked_by = found[index].blocked_by
        assert blocked_by is None if word is None else word in (blocked_by or ""), index
    assert [index for index, gpu in found.items() if gpu.out_of_service] == [1, 2, 4]
    assert found[0].free_bytes == (80 << 30) - (600 << 20) and found[6].free_bytes is None
