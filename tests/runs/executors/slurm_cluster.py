"""A real SLURM on loopback, in a folder of its own: munged, slurmctld, a slurmd for each node. Ends what it starts."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

CONF = """
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmctldPort={control_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=90
OverTimeLimit=0
SlurmdTimeout=10
SchedulerParameters=batch_sched_delay=0,sched_interval=1,defer_batch=0,requeue_delay=1
SchedulerTimeSlice=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=OFF
PartitionName=cancelled Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=15
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
# Several nodes on one machine need a slurmd built with --enable-multiple-slurmd, as Debian's is.
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000 Gres=gpu:2 "
    "State=UNKNOWN"
)


class SlurmCluster:
    """``env`` is what makes the commands speak to it."""

    def __init__(self, nodes: Sequence[str] = ("localhost",)) -> None:
        self.names = nodes
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="gputui-slurm-"))
        self.started: list[subprocess.Popen[bytes]] = []
        self.env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        control_port, *ports = free_ports(1 + len(self.names))
        self.ports = dict(zip(self.names, ports, strict=True))
        for name in ("state", *(f"spool.{name}" for name in self.names)):
            (self.folder / name).mkdir()
        for number in range(2):
            subprocess.run(["mknod", str(self.folder / f"nvidia{number}"), "c", "1", "3"], check=True, timeout=10)
        cpus = os.cpu_count() or 1
        nodes = "\n".join(NODE.format(name=name, port=port, cpus=cpus) for name, port in self.ports.items())
        conf = CONF.format(folder=self.folder, host="localhost", control_port=control_port, nodes=nodes)
        (self.folder / "slurm.conf").write_text(conf.lstrip())
        (self.folder / "gres.conf").write_text(
            "".join(f"Name=gpu File={self.folder}/nvidia{number}\n" for number in range(2))
        )
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        munge = {name: str(self.folder / f"munge.{name}") for name in ("sock", "log", "pid", "seed")}
        self.spawn(
            "munged", "--foreground", "--force", f"--socket={munge['sock']}", f"--key-file={key}",
            f"--log-file={munge['log']}", f"--pid-file={munge['pid']}", f"--seed-file={munge['seed']}",
        )  # fmt: skip
        wait_until(lambda: Path(munge["sock"]).exists(), what="munged")
        self.control = self.spawn("slurmctld", "-D")
        for name in self.names:
            self.start_node(name)

    def start_node(self, name: str) -> None:
        self.nodes[name] = self.spawn("slurmd", "-D", "-N", name)
        wait_until(
            lambda: (
                self.run("sinfo", "-h", "-N", f"--nodes={name}", "-p", "main", "-o", "%T").strip()
                in ("idle", "mixed", "allocated")
            ),
            timeout_seconds=60,
            what=f"{name} in use",
        )

    def spawn(self, *argv: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{argv[0]}.out").open("ab") as output:
            process = subprocess.Popen(
                argv, env=self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.started.append(process)
        return process

    def run(self, *argv: str, timeout: float = 20.0) -> str:
        """A command's standard output, or what it said instead; never waits longer than ``timeout``."""
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=timeout, check=False)
        return done.stdout if done.returncode == 0 else done.stderr

    def jobs(self) -> list[str]:
        """Every job that is known, in order of its number."""
        return sorted(self.run("squeue", "-h", "-t", "all", "-o", "%i").split(), key=int)

    def stop(self) -> None:
        for job in self.jobs() if self.control_lives() else ():
            self.run("scancel", "--signal=KILL", "--full", job)
            self.run("scancel", job)
        if self.control_lives():
            deadline = time.monotonic() + 20.0
            while self.run("squeue", "-h", "-o", "%i").split() and time.monotonic() < deadline:
                time.sleep(0.2)
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def control_lives(self) -> bool:
        return len(self.started) > 1 and self.started[1].poll() is None


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for port in sockets:
            port.bind(("127.0.0.1", 0))
        return [int(port.getsockname()[1]) for port in sockets]
    finally:
        for port in sockets:
            port.close()


def missing() -> str | None:
    """The reason why no cluster can be made here, or None."""
    gone = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if gone:
        return f"no {', '.join(gone)}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "a SLURM of one's own needs root"


def skip_without_slurm() -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
