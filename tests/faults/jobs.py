"""Jobs for drills: cheap scripts without PyTorch (below scripts/) with their profiles, and simulated GPUs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import wait_until
from tests.machines import Machine

SCRIPTS = Path(__file__).parent / "scripts"


def meets(machine: Machine, recovery: str = "policy: standard", more: str = "", gpus: int = 0) -> str:
    """The profile of a job of one process that meets a failure in its first attempt, at step 15."""
    shutil.copy(SCRIPTS / "meets.py", machine.folder)
    return machine.profile(
        "job",
        f"""
        name: job
        launcher: python
        script: meets.py
        python: {sys.executable}
        gpus: {gpus}
        params: {{meet: none, num_workers: 4, batch_size: 16, grad_accum: 3}}
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
        recovery: {{{recovery}}}
        {more}
        """,
    )


def ranks(
    machine: Machine,
    *,
    fault: str = "none",
    steps: int = 40,
    seconds: float = 0.0,
    hang_after: int = 1,
    backoff: str = "base: 0",
) -> str:
    """The profile of a job of two ranks under torchrun."""
    for name in ("ranks.py", "title.py"):
        shutil.copy(SCRIPTS / name, machine.folder)
    return machine.profile(
        "ranks",
        f"""
        name: ranks
        launcher: torchrun
        script: ranks.py
        python: {sys.executable}
        gpus: 0
        nproc: 2
        grace: 5
        args: "{steps} '{fault}' {seconds}"
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "{{checkpoint}}"}}
        recovery: {{policy: standard, hang_after: {hang_after}, backoff: {{{backoff}}}}}
        """,
    )


def leaks(
    machine: Machine, name: str, keep: str, recovery: str = "standard", resume: str = "--resume {checkpoint}"
) -> str:
    """The profile of a job that keeps something of each step: ``all``, ``the page cache``, ``a cache for a while``."""
    resumes = f', resume: "{resume}"' if resume else ""
    shutil.copy(SCRIPTS / "leaks.py", machine.folder)
    return machine.profile(
        name,
        f"""
        name: {name}
        launcher: python
        script: leaks.py
        python: {sys.executable}
        gpus: 0
        params: {{keep: {keep}, num_workers: 4}}
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{pattern: "step_*.pt"{resumes}}}
        recovery: {recovery}
        """,
    )


def steps_by_attempt(machine: Machine, run_id: str) -> dict[int, list[int]]:
    """Attempt → the steps that are stored for it, in the order of their lines."""
    steps: dict[int, list[int]] = {}
    for attempt, step in machine.steps(run_id):
        steps.setdefault(attempt, []).append(step)
    return steps


def impatient_agent(machine: Machine) -> subprocess.Popen[bytes]:
    """An agent for which a leak lasts a second and a half, on a host with little memory left. The machine ends it.

    It is the agent when this returns: a command that came before it would have started an ordinary one."""
    arguments = ["--profiles", str(machine.workspace.profiles), "--state", str(machine.workspace.state)]
    agent = subprocess.Popen([sys.executable, str(SCRIPTS / "impatient_agent.py"), *arguments])
    wait_until(lambda: (running := machine.agent()) is not None and running.pid == agent.pid, 60, "the impatient agent")
    return agent


def write_scenario(machine: Machine, gpus: int, *faults: str) -> None:
    """Simulate so many GPUs, with these faults from now on."""
    lines = "".join(f"  - {fault}\n" for fault in faults)
    path = machine.workspace.scenario
    temporary = path.with_suffix(".new")
    temporary.write_text(f"gpus: {gpus}\n" + (f"faults:\n{lines}" if lines else ""))
    temporary.rename(path)
