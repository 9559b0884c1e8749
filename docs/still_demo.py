"""The demo as it is at its start, but standing still, for pictures and tests. Only the clock, the host and the
processes are made up."""

from __future__ import annotations

import json
import os

from msgspec.structs import asdict, replace

from gputui.agent.lifecycle.gpus import gpu_availability
from gputui.core.config import Workspace
from gputui.machine.gpu_model import GpuProcess
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.scheduler import Wait, WaitingRuns, schedule
from gputui.store.rows import insert
from gputui.store.runs import read_runs
from gputui.store.series import HostSample
from gputui.ui.demo.home import fill_home
from gputui.ui.demo.past import DemoPast

GIB = 2**30
HOST = HostSample(
    0.0, cpu_percent=34.0, cpu_count=64, load_1m=21.5, memory_used_bytes=188 * GIB, memory_total_bytes=512 * GIB,
    swap_used_bytes=0, disk_read_bytes_per_second=1.2e9, disk_write_bytes_per_second=3e7,
    disk_used_bytes=2200 * GIB, disk_total_bytes=3600 * GIB, shm_used_bytes=9 * GIB, shm_total_bytes=256 * GIB,
    network_received_bytes_per_second=2e6, network_sent_bytes_per_second=1e6,
)  # fmt: skip
FIRST_PID = 31_400


def make_still_demo(workspace: Workspace, now: float) -> None:
    """Fill an empty home with the demo as it is at ``now`` (UTC unix seconds). Raises OSError, sqlite3.Error."""
    past = fill_home(workspace, now, 5, HOST)
    past.at = now
    _write_agent(past)
    _write_processes(past)
    _write_waits(past)
    past.close()


def _write_agent(past: DemoPast) -> None:
    insert(
        past.connection, "agent", id=1, pid=FIRST_PID - 1, start_ticks=1, boot_id="demo", version="demo",
        started_at=past.now - 86_400, heartbeat_at=past.now, source="simulated", sampler_state="ok",
    )  # fmt: skip


def _write_processes(past: DemoPast) -> None:
    """The processes on each GPU. Those of runs have the names of ranks in place of this process's."""
    sample = past.source.processes(past.now)
    others = {
        uuid: [process for process in processes or () if process.pid != os.getpid()]
        for uuid, processes in sample.processes.items()
    }
    past.context.recorder.take([past.source.slow(past.now), replace(sample, processes=others)])
    past.context.recorder.flush()
    owners = {
        past.gpus[index].uuid: (occupation.run_id, rank)
        for occupation in past.busy
        if occupation.ended_at > past.now
        for rank, index in enumerate(occupation.gpus)
    }
    for uuid, processes in sample.processes.items():
        rows = [_row(process, *owners.get(uuid, (None, None))) for process in processes or ()]
        past.connection.execute(
            "UPDATE gpus SET processes = ?, processes_at = ? WHERE uuid = ?", (json.dumps(rows), past.now, uuid)
        )


def _row(process: GpuProcess, run_id: str | None, rank: int | None) -> dict[str, object]:
    if process.pid == os.getpid():
        command = f"python train.py --rank {rank} --lr 0.0006"
        pid = FIRST_PID + 10 * int((run_id or "0")[-1]) + (rank or 0)
        process = replace(process, pid=pid, user="ada", command=command, start_ticks=1)
    return {**asdict(process), "run_id": run_id, "rank": rank}


def _write_waits(past: DemoPast) -> None:
    """The reasons for which queued runs wait, as the agent's scheduler gives them."""
    queued = [run for run in read_runs(past.connection) if run.state == "queued"]
    with transaction(past.connection):
        for outcome in schedule(WaitingRuns(tuple(queued)), gpu_availability(past.context)):
            if isinstance(outcome, Wait):
                repository.set_waiting_for(past.connection, outcome.run.run_id, outcome.reason)
