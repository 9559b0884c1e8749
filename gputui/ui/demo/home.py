"""The demo's home: it has a history, an active run and a waiting one, and is removed at the end."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from gputui.core.config import PRIVATE_FILE_MODE, Workspace, locate
from gputui.machine.simulated import SimulatedSource
from gputui.runs.agent_process import AgentUnreachableError, ensure_agent, stop_agent
from gputui.store import commands
from gputui.store.database import StoreError, open_commander, open_reader
from gputui.store.hardware import read_gpus
from gputui.store.runs import read_runs
from gputui.store.series import HostSample
from gputui.store.studies import read_studies
from gputui.ui.demo.past import DemoPast
from gputui.ui.demo.study import play_study

STOP_SECONDS = 40.0  # longer than the runs' time to save a checkpoint

START_SECONDS = 10.0
"""The longest wait for the processes of the live runs; without them the screen opens all the same."""

FAULTY_SECONDS = 900.0
"""The age of the faults at the demo's start."""

# The seed makes the GPUs of each demo its own: leases count across all homes of a user.
SCENARIO = """\
# Simulated GPUs; faults may be added here while the demo runs.
gpus: 8
memory: 80GiB
load: training
name: NVIDIA H100 80GB HBM3 (simulated)
seed: {seed}
foreign:
  - {{gpu: 5, memory: 22GiB, user: bob, command: python sweep.py --trials 40, load: 55}}
faults:
  - {{kind: hot, gpu: 2, celsius: 86}}
"""


@contextmanager
def demo_home() -> Iterator[Workspace]:
    """A home with a history. Raises OSError, StoreError, AgentUnreachableError."""
    folder = Path(tempfile.mkdtemp(prefix="gputui-demo-"))
    workspace = locate(folder, {})
    # What the agent's code logs about the past is not for this terminal.
    logging.getLogger("gputui").addHandler(logging.NullHandler())
    try:
        workspace.create()
        fill_home(workspace, time.time(), secrets.randbelow(1 << 31)).close()
        _go_on(workspace)
        yield workspace
    finally:
        _stop_everything(workspace)
        shutil.rmtree(folder, ignore_errors=True)


def fill_home(workspace: Workspace, now: float, seed: int, host: HostSample | None = None) -> DemoPast:
    """Fill an empty home with the demo as it is at ``now`` (UTC unix seconds). Raises OSError, sqlite3.Error."""
    workspace.scenario.write_text(SCENARIO.format(seed=seed), "utf-8")
    workspace.scenario.chmod(PRIVATE_FILE_MODE)
    # Its faults begin when it was written.
    os.utime(workspace.scenario, (now - FAULTY_SECONDS, now - FAULTY_SECONDS))
    past = DemoPast(workspace, SimulatedSource(workspace.scenario, epoch=now - FAULTY_SECONDS), now, host)
    past.make(play_study)
    return past


def _go_on(workspace: Workspace) -> None:
    """Start the agent, which starts the processes that live attempts of the past lack, and wait until they compute."""
    begin = time.time()
    ensure_agent(workspace)
    with closing(open_reader(workspace.database)) as connection:
        while time.time() < begin + START_SECONDS:
            gpus = [gpu for gpu in read_gpus(connection, time.time()) if gpu.run_id is not None]
            if all((gpu.at or 0.0) > begin and gpu.utilization_percent for gpu in gpus):
                return
            time.sleep(0.1)


def _stop_everything(workspace: Workspace) -> None:
    """Stop all studies and runs, then the agent: nothing of the demo may outlive it."""
    if not workspace.database.exists():
        return
    try:
        with closing(open_commander(workspace.database)) as connection:
            ask = partial(commands.submit, connection, actor="demo")
            stopping: set[str] = set()
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline:
                studies = {study.study_id for study in read_studies(connection) if not study.state.is_over}
                runs = {run.run_id for run in read_runs(connection, active_only=True)}
                if not studies and not runs:
                    break
                for study_id in studies - stopping:
                    ask("study_stop", run_id=None, args={"study": study_id}, now=time.time())
                # Some may be new: from a study, or from a command that was not answered before.
                for run_id in runs - stopping:
                    ask("stop", run_id, {"now": True}, now=time.time())
                if not (studies | runs) <= stopping:
                    commands.ring(workspace.doorbell)
                stopping |= studies | runs
                time.sleep(0.1)
        stop_agent(workspace)
    except (StoreError, AgentUnreachableError, sqlite3.Error) as error:
        print(f"gputui: {error}", file=sys.stderr)  # noqa: T201
