"""Homes with a real target each: a Slurm, the same by a login node, another machine over SSH, a Ray head."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gputui.runs.identity import identify
from tests.conftest import wait_until
from tests.machines import Machine
from tests.runs.executors.ray_cluster import RayCluster, program
from tests.runs.executors.slurm_cluster import PATH, SlurmCluster, skip_without_slurm
from tests.runs.executors.ssh_machine import RemoteMachine, remote_machine

_NUMBERS = itertools.count()


class TargetHome:
    """A home whose target is called ``name``; ``profile`` counts steps. A system behind it may remember the names of
    runs of earlier tests, so each profile has its own."""

    name: ClassVar[str] = "lab"
    wait_seconds: ClassVar[float] = 120.0
    copies_code: ClassVar[bool] = False

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.profile = machine.profile(f"steps{next(_NUMBERS)}")
        self.code = machine.folder
        self.options: dict[str, Any] = {}

    def remote_folder(self, run_id: str) -> Path:
        """The run's folder as its job sees it."""
        return self.machine.workspace.run_dir(run_id)

    def keep_code_in_git(self) -> None:
        """Move the profile and its script into a git checkout, which has an ignored file too."""
        self.code = code = self.machine.folder / "code"
        code.mkdir()
        for name in ("steps.py", Path(self.profile).name):
            shutil.move(self.machine.folder / name, code / name)
        self.profile = str(code / Path(self.profile).name)
        (code / "ignored.bin").write_text("x")
        (code / ".gitignore").write_text("*.bin\n")
        subprocess.run(["git", "init", "-q", str(code)], check=True, timeout=20)

    def set_target(self, **options: Any) -> None:
        self.options = options
        self.machine.workspace.targets.write_text(json.dumps({self.name: options}))

    def launch(self, *changes: str) -> str:
        options = [word for change in changes for word in ("--set", change)]
        return str(self.machine.json("run", self.profile, "--on", self.name, *options)["id"])

    def record(self, run_id: str) -> dict[str, Any]:
        record = self.machine.json("show", run_id)
        assert isinstance(record, dict)
        return record

    def placement(self, run_id: str) -> dict[str, Any]:
        return self.record(run_id)["placement"] or {}

    def wait_for_place(self, run_id: str, *states: str) -> dict[str, Any]:
        """The placement, once its state is one of these. It is stored a second or two after what its metrics show."""

        def look() -> dict[str, Any] | None:
            placement = self.placement(run_id)
            return placement if placement.get("state") in states else None

        return wait_until(look, self.wait_seconds, f"{run_id} {states} there")

    def steps(self, run_id: str) -> list[int]:
        return [step for _, step in self.machine.steps(run_id)]

    def wait_for_step(self, run_id: str, step: int, attempt: int = 1) -> None:
        """Until the newest stored step is at least this one, of at least this attempt."""

        def is_there() -> bool:
            newest = self.machine.steps(run_id)[-1:]
            return bool(newest) and newest[0][0] >= attempt and newest[0][1] >= step

        wait_until(is_there, self.wait_seconds, f"{run_id} at step {step}")

    def runner(self, run_id: str, attempt: int = 1) -> int | None:
        """The PID of the living runner."""
        record = self.machine.workspace.run_dir(run_id) / "attempts" / str(attempt) / "started.json"
        try:
            pid = int(json.loads(record.read_text())["shim_pid"])
        except (OSError, ValueError):
            return None
        return pid if identify(pid) is not None else None

    def stop(self, run_id: str) -> int:
        """Stop a run, which saves; the step of that checkpoint."""
        self.machine.gputui("stop", run_id)
        self.machine.wait_for(run_id, "stopped", timeout=self.wait_seconds)
        step = self.steps(run_id)[-1] + 1
        assert (self.remote_folder(run_id) / "checkpoints" / f"step_{step:06d}.pt").is_file()
        assert self.record(run_id)["attempts"][0]["incident"] is None
        return step

    def finish(self, run_id: str) -> None:
        """Let the script end; every step that it wrote is stored once."""
        folder = self.remote_folder(run_id)
        (folder / "enough").touch()
        self.machine.wait_for(run_id, "succeeded", timeout=self.wait_seconds)
        assert self.steps(run_id) == list(range((folder / "metrics.jsonl").read_text().count("\n")))


class SlurmHome(TargetHome):
    """``machine`` is the login node."""

    def __init__(self, machine: Machine, cluster: SlurmCluster) -> None:
        super().__init__(machine)
        self.cluster = cluster
        self.set_target(kind="slurm", partition="main", time="10m", poll=1)

    def submitted(self, run_id: str, states: str = "all") -> list[str]:
        """The jobs of a run: that were ever handed over, or of these states."""
        names = self.cluster.run("squeue", "-h", "-t", states, "-o", "%i %j").splitlines()
        return [line.split()[0] for line in names if line.split()[1].startswith(f"{run_id}.")]


class CopiedHome(TargetHome):
    """The code is in a git checkout, and runs lie below ``runs`` there."""

    copies_code = True

    def __init__(self, machine: Machine, runs: Path, **options: Any) -> None:
        super().__init__(machine)
        self.runs = runs
        self.keep_code_in_git()
        self.set_target(**options)

    def remote_folder(self, run_id: str) -> Path:
        return next(self.runs.glob(f"*/{run_id}"), self.runs / "none")


def running_slurm(*nodes: str) -> Iterator[SlurmCluster]:
    skip_without_slurm()
    cluster = SlurmCluster(nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def slurm_cluster() -> Iterator[SlurmCluster]:
    yield from running_slurm("localhost")


@pytest.fixture
def empty_slurm(slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster of this process's commands, whose sbatch greets; its queue is empty before and after a test."""
    monkeypatch.setenv("SLURM_CONF", slurm_cluster.env["SLURM_CONF"])
    greeting = slurm_cluster.folder / "greeting" / "sbatch"
    greeting.parent.mkdir(exist_ok=True)
    greeting.write_text(f'#!/bin/sh\necho Welcome\n{shutil.which("sbatch", path=PATH)} "$@" && echo Bye\n')
    greeting.chmod(0o755)
    monkeypatch.setenv("PATH", f"{greeting.parent}:{PATH}")
    yield slurm_cluster
    for job in slurm_cluster.jobs():
        slurm_cluster.run("scancel", "--quiet", job)
    wait_until(lambda: not slurm_cluster.run("squeue", "-h", "-o", "%i").split(), what="an empty queue")


@pytest.fixture
def slurm(machine: Machine, empty_slurm: SlurmCluster) -> SlurmHome:
    return SlurmHome(machine, empty_slurm)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteMachine]:
    with remote_machine(tmp_path / "remote", monkeypatch) as machine:
        yield machine


@pytest.fixture
def login(machine: Machine, empty_slurm: SlurmCluster, remote: RemoteMachine) -> CopiedHome:
    return CopiedHome(machine, remote.runs, **remote.target(), kind="slurm", partition="main", time="10m")


@pytest.fixture
def ssh(machine: Machine, remote: RemoteMachine) -> Iterator[CopiedHome]:
    yield CopiedHome(machine, remote.runs, **remote.target(), kind="ssh")
    for record in remote.runs.glob("*/*/attempts/*/remote/started.json"):
        # Also after a failed test, the remote side must end.
        pid = int(json.loads(record.read_text())["shim_pid"])
        if identify(pid) is not None:
            os.kill(pid, signal.SIGUSR2)
            wait_until(lambda pid=pid: identify(pid) is None, 90.0, "the end of the remote side")


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    cluster = RayCluster(program())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def ray(machine: Machine, ray_cluster: RayCluster, tmp_path: Path) -> Iterator[CopiedHome]:
    runs = tmp_path / "there"
    yield CopiedHome(machine, runs, **ray_cluster.target(python=sys.executable, folder=str(runs)))
    for name in ray_cluster.names():
        record = ray_cluster.api().job(name)
        if record is not None and record["status"] in ("PENDING", "RUNNING"):
            ray_cluster.api().stop(name)
