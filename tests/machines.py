"""A machine to break things on: a private home, the real command line, the real agent and real training processes.

What needs no process is tested on a `tests.homes.Home`, a hundred times as fast.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gputui.core.config import Workspace, locate
from gputui.runs.agent_process import read_identity
from gputui.runs.identity import ProcessIdentity, identify, is_alive
from gputui.runs.processes import processes_of
from gputui.runs.shim_processes import all_pids
from tests import forkserver
from tests.conftest import wait_until

# A study that is waited for takes minutes on a crowded machine; each test has a limit of its own (pyproject.toml).
COMMAND_SECONDS = 170.0
# A training script that needs no torch: a step every so often, a checkpoint now and then, one line a step.
STEPS_SCRIPT = '''
"""Counts steps; writes a metrics line for each; saves the step every ten; resumes from it."""
import argparse, hashlib, json, os, pathlib, signal, sys, time, zipfile

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=50)
options.add_argument("--seconds", type=float, default=0.02)
options.add_argument("--batch-size", type=int, default=16)
options.add_argument("--grad-accum", type=int, default=3)
options.add_argument("--fail-at", type=int, default=-1)
options.add_argument("--resume", default="")
options = options.parse_args()
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
(run_dir / "checkpoints").mkdir(exist_ok=True)
begin = int(pathlib.Path(options.resume).stem.split("_")[1]) if options.resume else 0
stopping = False

def ask(*_):
    global stopping
    stopping = True

def save(step):
    path = run_dir / "checkpoints" / f"step_{step:06d}.pt"
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("step", str(step))
    digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
    path.with_suffix(".pt.sha256").write_text(f"{digest}  {path.name}\\n")
    temporary.rename(path)

signal.signal(signal.SIGTERM, ask)
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(begin, options.steps):
    if (run_dir / "enough").exists():
        break
    time.sleep(options.seconds)
    os.write(out, (json.dumps({"step": step, "time": time.time(), "loss": 1 / (step + 1)}) + "\\n").encode())
    if step == options.fail_at and not options.resume:
        raise RuntimeError("the dog ate the gradients")
    if (step + 1) % 10 == 0 or stopping:
        save(step + 1)
    if stopping:
        sys.exit(0)
print("done", flush=True)
'''


class Machine:
    """One home, and what a person would type in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace: Workspace = locate(folder / "home", {})
        self.workspace.create()

    # --- the command line -----------------------------------------------------------------------------------------

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command that goes on until it is told to end."""
        return subprocess.Popen(
            [sys.executable, "-m", "gputui", "--home", str(self.folder / "home"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            **options,
        )

    def call(self, *arguments: str, timeout: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        if "--record" in arguments:
            # The agent is recognised by its command line, which a forked process lacks.
            with self.start(*arguments) as process:
                output, errors = process.communicate(timeout=timeout)
            return subprocess.CompletedProcess(arguments, process.returncode, output, errors)
        return forkserver.run(
            ["gputui", "--home", str(self.folder / "home"), *arguments], cwd=self.folder, timeout=timeout
        )

    def gputui(self, *arguments: str, code: int | None = 0, timeout: float = COMMAND_SECONDS) -> str:
        """Run a command; its standard output. ``code`` is the exit code that it must have."""
        done = self.call(*arguments, timeout=timeout)
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.gputui(*arguments, "--json"))

    # --- profiles -------------------------------------------------------------------------------------------------

    def profile(self, name: str = "steps", text: str | None = None) -> str:
        """Write a profile (a torch-free one that counts steps unless given) and return its path."""
        script = self.folder / "steps.py"
        script.write_text(STEPS_SCRIPT)
        path = self.folder / f"{name}.yaml"
        path.write_text(
            textwrap.dedent(text)
            if text
            else textwrap.dedent(f"""
            name: {name}
            launcher: python
            script: steps.py
            python: {sys.executable}
            gpus: 0
            params: {{steps: 50, seconds: 0.02, batch_size: 16, grad_accum: 3, fail_at: -1}}
            metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
            checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
            """)
        )
        return str(path)

    # --- what the store says --------------------------------------------------------------------------------------

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"{self.workspace.database.as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(sql, values).fetchall()

    def state(self, run_id: str) -> str | None:
        try:
            rows = self.rows("SELECT state FROM runs WHERE run_id = ?", run_id)
        except sqlite3.OperationalError:
            return None
        return rows[0][0] if rows else None

    def wait_for(self, run_id: str, *states: str, timeout: float = 120.0) -> str:
        return wait_until(
            lambda: state if (state := self.state(run_id)) in states else None, timeout, f"{run_id} {states}"
        )

    def finish(self, run_id: str, attempt: int = 1, timeout: float = 60.0) -> int:
        """Let a run of the profile that counts steps succeed, once this attempt has made one; how many it took."""
        wait_until(lambda: self.steps(run_id)[-1:] >= [(attempt, 0)], timeout, f"a step of attempt {attempt}")
        (self.workspace.run_dir(run_id) / "enough").touch()
        self.wait_for(run_id, "succeeded", timeout=timeout)
        return self.steps(run_id)[-1][1] + 1

    def steps(self, run_id: str) -> list[tuple[int, int]]:
        """(attempt, step) of every stored rank-0 step line, in the order of the file."""
        return [(attempt, step) for attempt, step, _ in self.timed_steps(run_id)]

    def timed_steps(self, run_id: str) -> list[tuple[int, int, float]]:
        """As `steps`, with the time of each line in UTC unix seconds."""
        return self.rows(
            "SELECT m.attempt, m.step, m.at FROM metrics m JOIN metric_sources s USING (source_id) WHERE s.run_id = ? "
            "AND m.data LIKE '%\"loss\"%' AND m.data NOT LIKE '%val/loss%' AND coalesce(m.rank, 0) = 0 "
            "ORDER BY m.generation, m.byte_offset",
            run_id,
        )

    # --- processes ------------------------------------------------------------------------------------------------

    def agent(self) -> ProcessIdentity | None:
        identity = read_identity(self.workspace)
        return identity.process if identity else None

    def kill_agent(self, *, is_followed: bool = False) -> None:
        """``is_followed``: by another, as ever. Else there is none before a command starts one, so that what lies in
        the home can be changed."""
        agent = wait_until(self.agent, what="an agent")
        if not is_followed:
            self.workspace.agent_stopped.touch()
        os.kill(agent.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(agent), what="the agent's death")

    def shim(self, run_id: str) -> ProcessIdentity:
        def look() -> ProcessIdentity | None:
            rows = self.rows(
                "SELECT shim_pid FROM attempts WHERE run_id = ? AND shim_pid IS NOT NULL ORDER BY number DESC", run_id
            )
            return identify(rows[0][0]) if rows else None

        return wait_until(look, what="the shim")

    def ranks(self, run_id: str) -> dict[int, int]:
        """Rank → PID of the living ranks of a run."""
        pids: dict[int, int] = {}
        for process in processes_of(self.workspace.run_dir(run_id)):
            if process.rank is not None:
                pids.setdefault(process.rank, process.pid)
        return pids

    def marked(self, run_id: str) -> list[ProcessIdentity]:
        """Every living process of a run."""
        return [process.identity for process in processes_of(self.workspace.run_dir(run_id))]

    def processes(self) -> list[int]:
        """Everything alive that belongs to this home: agents, samplers, shims, training."""
        needle = str(self.folder).encode()
        pids = []
        for pid in all_pids():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            ours = needle in command or (b"GPUTUI_RUN_DIR=" + needle) in environment
            if ours and pid != os.getpid() and identify(pid) is not None:
                pids.append(pid)
        return pids

    def close(self) -> None:
        """End everything that the test started."""
        if self.workspace.state.is_dir():
            # A shim whose command is killed before itself would start an agent.
            self.workspace.agent_stopped.touch()
        agent = self.agent()
        if agent is not None:
            os.kill(agent.pid, signal.SIGKILL)
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@contextmanager
def on_small_disk(folder: Path, size: str) -> Iterator[Machine]:
    """A machine whose home lies on a file system of its own."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    machine = Machine(folder)
    yield machine
    machine.close()
    subprocess.run(["umount", "-l", str(folder)], check=False)
