"""A demo that stands still, for pictures and tests: the same history, in which runs train on, a run waits, and a GPU is
hot. Only the clock, the host and the processes are made up."""

from __future__ import annotations

import json
import os

from msgspec.structs import asdict, replace

from gputui.agent.health.alert_evaluation import AlertEvaluation
from gputui.agent.lifecycle.gpus import gpu_availability
from gputui.core.config import PRIVATE_FILE_MODE, Workspace
from gputui.machine.gpu_model import GpuProcess
from gputui.machine.simulated import SimulatedSource
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import resolve
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.scheduler import Wait, schedule
from gputui.store.rows import insert
from gputui.store.runs import read_runs
from gputui.store.series import HostSample
from gputui.ui.demo.home import SCENARIO, write_profiles
from gputui.ui.demo.past import BUS_ERROR, HOUR, OOM, STORIES, Act, DemoPast, Story

GIB = 2**30
HOST = HostSample(
    0.0, cpu_percent=34.0, cpu_count=64, load_1m=21.5, memory_used_bytes=188 * GIB, memory_total_bytes=512 * GIB,
    swap_used_bytes=0, disk_read_bytes_per_second=1.2e9, disk_write_bytes_per_second=3e7,
    disk_used_bytes=2200 * GIB, disk_total_bytes=3600 * GIB, shm_used_bytes=9 * GIB, shm_total_bytes=256 * GIB,
    network_received_bytes_per_second=2e6, network_sent_bytes_per_second=1e6,
)  # fmt: skip
FIRST_PID = 31_400

# In place of the run that the demo resumes, two that train on.
STILL_STORIES = (
    *STORIES[:-1],
    Story(
        "vit-b16", 7.5 * HOUR, (4, 6),
        (Act(4_150, OOM, 1), Act(13_310, BUS_ERROR.replace("rank3", "rank1"), 1), Act(0, is_live=True)),
        lr=0.00025,
    ),
    Story("gpt2-124m", 5.5 * HOUR, (0, 1, 2, 3), (Act(0, is_live=True),)),
)  # fmt: skip


def make_still_demo(workspace: Workspace, now: float) -> None:
    """Fill an empty home with the demo as it is at ``now`` (UTC unix seconds). Raises OSError, sqlite3.Error."""
    workspace.scenario.write_text(SCENARIO.format(seed=5), "utf-8")
    workspace.scenario.chmod(PRIVATE_FILE_MODE)
    # Its faults begin when it was written.
    os.utime(workspace.scenario, (now - 900.0, now - 900.0))
    write_profiles(workspace)
    source = SimulatedSource(workspace.scenario, epoch=now - 900.0)
    past = DemoPast(workspace, source, now, HOST)
    _write_agent(past)
    # Durations of alerts are those of the history.
    alerts = AlertEvaluation(replace(past.context, monotonic=past.clock.now), lambda: ())
    past.make(STILL_STORIES, alerts.turn)
    past.clock.at = now
    _write_processes(past)
    _queue_run(past)
    past.close()


def _write_agent(past: DemoPast) -> None:
    insert(
        past.connection, "agent", id=1, pid=FIRST_PID - 1, start_ticks=1, boot_id="demo", version="demo",
        started_at=past.until - 86_400, heartbeat_at=past.until, source="simulated", sampler_state="ok",
    )  # fmt: skip


def _write_processes(past: DemoPast) -> None:
    """The processes on each GPU. Those of runs have the names of ranks in place of this process's."""
    past.context.recorder.take([past.source.slow(past.until)])
    past.context.recorder.flush()
    owners = {
        past.gpus[index].uuid: (run_id, rank)
        for _, ended_at, run_id, gpus in past.busy
        if ended_at > past.until
        for rank, index in enumerate(gpus)
    }
    for uuid, processes in past.source.processes(past.until).processes.items():
        rows = [_row(process, *owners.get(uuid, (None, None))) for process in processes or ()]
        past.connection.execute(
            "UPDATE gpus SET processes = ?, processes_at = ? WHERE uuid = ?", (json.dumps(rows), past.until, uuid)
        )


def _row(process: GpuProcess, run_id: str | None, rank: int | None) -> dict[str, object]:
    if process.pid == os.getpid():
        command = f"python train.py --rank {rank} --lr 0.0006"
        pid = FIRST_PID + 10 * int((run_id or "0")[-1]) + (rank or 0)
        process = replace(process, pid=pid, user="ada", command=command, start_ticks=1)
    return {**asdict(process), "run_id": run_id, "rank": rank}


def _queue_run(past: DemoPast) -> None:
    """A run that waits, with the reason that the agent's scheduler gives."""
    past.clock.at = past.until - 95.0
    past.begin_run(replace(resolve(load(past.workspace.profiles / "resnet50.yaml")), shell=None), "bob")
    queued = [run for run in read_runs(past.connection) if run.state == "queued"]
    with transaction(past.connection):
        for outcome in schedule(queued, gpu_availability(past.context)):
            if isinstance(outcome, Wait):
                repository.set_waiting_for(past.connection, outcome.run.run_id, outcome.reason)
