"""The demo's home: it has a history, an active run and a waiting one, and is removed at the end."""

from __future__ import annotations

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
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import resolve
from gputui.runs.agent_process import AgentUnreachableError, ensure_agent, stop_agent
from gputui.runs.submission import submit_run
from gputui.store import commands
from gputui.store.database import StoreError, open_commander
from gputui.store.runs import read_runs
from gputui.store.studies import read_studies
from gputui.ui.demo import simulated_trainer
from gputui.ui.demo.past import STORIES, DemoPast
from gputui.ui.demo.study import STUDY, STUDY_FILE

STOP_SECONDS = 40.0

# The seed makes the GPUs of each demo its own: leases count across all homes of a user.
SCENARIO = """\
# Simulated GPUs; faults may be added here while the demo runs.
gpus: 8
memory: 80GiB
name: NVIDIA H100 80GB HBM3 (simulated)
seed: {seed}
foreign:
  - {{gpu: 5, memory: 22GiB, user: bob, command: python sweep.py --trials 40, load: 0}}
faults:
  - {{kind: hot, gpu: 2, celsius: 84}}
"""

# What each profile trains: GPUs, steps, batch.
TRAININGS = {
    "gpt2-124m": ("GPT-2 124M on FineWeb", 4, 120_000, 64),
    "resnet50": ("ResNet-50 on ImageNet-1k", 4, 90_000, 256),
    "vit-b16": ("Vision transformer B/16, ImageNet-1k", 2, 90_000, 512),
    "bert-mlm": ("BERT base, masked words", 2, 90_000, 128),
}

PROFILE = """\
name: {name}
description: {description} (simulated)
launcher: python
script: train.py
gpus: {gpus}
min_gpus: 2
params:
  batch_size: {{default: {batch_size}, min: 1, help: samples per step and rank}}
  grad_accum: {{default: 1, min: 1}}
  steps: {steps}
  lr: {{default: 0.0006, min: 0, help: peak learning rate}}
  weight_decay: {{default: 0.1, min: 0}}
args: --out {{run_dir}} --model {name} --steps {{steps}} --batch-size {{batch_size}} --grad-accum {{grad_accum}} \
--lr {{lr}} --weight-decay {{weight_decay}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
"""


@contextmanager
def demo_home() -> Iterator[Workspace]:
    """A home with a history. Raises OSError, StoreError, AgentUnreachableError."""
    folder = Path(tempfile.mkdtemp(prefix="gputui-demo-"))
    workspace = locate(folder, {})
    try:
        workspace.create()
        seed = secrets.randbelow(1 << 31)
        workspace.scenario.write_text(SCENARIO.format(seed=seed), "utf-8")
        workspace.scenario.chmod(PRIVATE_FILE_MODE)
        write_profiles(workspace)
        now = time.time()
        past = DemoPast(workspace, SimulatedSource(workspace.scenario, epoch=now), now)
        past.make()
        past.close()
        _start_runs(workspace)
        yield workspace
    finally:
        _stop_everything(workspace)
        shutil.rmtree(folder, ignore_errors=True)


def write_profiles(workspace: Workspace) -> None:
    """Write the demo's profiles, the script that they start, and the file of a study."""
    folder = workspace.profiles
    shutil.copyfile(simulated_trainer.__file__, folder / "train.py")
    for name, (description, gpus, steps, batch_size) in TRAININGS.items():
        text = PROFILE.format(name=name, description=description, gpus=gpus, steps=steps, batch_size=batch_size)
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    workspace.study_files.mkdir(exist_ok=True)
    (workspace.study_files / f"{STUDY}.yaml").write_text(STUDY_FILE, "utf-8")


def _start_runs(workspace: Workspace) -> None:
    """Resume the run that was stopped last, and queue one that must wait for it."""
    ensure_agent(workspace)
    now = time.time()
    with closing(open_commander(workspace.database)) as connection:
        stopped = next(run for run in read_runs(connection) if run.state == "stopped")
        actor, bell = STORIES[-1].actor, workspace.doorbell
        command_id = commands.submit(connection, "resume", stopped.run_id, {"set": {}}, actor, now=now, doorbell=bell)
        # It must have its GPUs before another run asks for four.
        commands.wait_for_answer(connection, command_id, commands.ANSWER_SECONDS)
        spec = resolve(load(workspace.profiles / "resnet50.yaml"))
        submit_run(workspace, connection, spec, name=None, actor="bob", now=now)


def _stop_everything(workspace: Workspace) -> None:
    """Stop all studies and runs, then the agent: nothing of the demo may outlive it."""
    if not workspace.database.exists():
        return
    try:
        with closing(open_commander(workspace.database)) as connection:
            ask = partial(commands.submit, connection, actor="demo", doorbell=workspace.doorbell)
            active = partial(read_runs, connection, active_only=True)
            # A study would go on launching trials.
            for study in (one for one in read_studies(connection) if not one.state.is_over):
                ask("study_stop", None, {"study": study.study_id}, now=time.time())
            for run in active():
                ask("stop", run.run_id, {"now": True}, now=time.time())
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and (
                active() or any(not one.state.is_over for one in read_studies(connection))
            ):
                time.sleep(0.1)
        stop_agent(workspace)
    except (StoreError, AgentUnreachableError, sqlite3.Error) as error:
        print(f"gputui: {error}", file=sys.stderr)  # noqa: T201
