"""A real sshd on loopback, for another machine that shares no folder with this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import wait_until
from tests.runs.executors.slurm_cluster import PATH, free_ports

WAIT_SECONDS = 90.0
PROGRAMS = ("sshd", "ssh", "ssh-keygen", "rsync", "git", "flock")


class RemoteMachine:
    """An sshd of the test's own, which greets on stdout, as do its shells by each of their files; runs lie below
    ``runs``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.config = folder / "config"
        (port,) = free_ports(1)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "sshd_config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            f"PidFile {folder}/pid\nPermitRootLogin yes\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            f"SetEnv HOME={folder} BASH_ENV={folder}/bash_env SLURM_CONF={os.environ.get('SLURM_CONF', '')}\n"
            'ForceCommand printf "Welcome\\nNo new mail."; eval "$SSH_ORIGINAL_COMMAND"\n'
        )
        host_key = " ".join((folder / "host.pub").read_text().split()[:2])
        (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}\n")
        self.config.write_text(
            f"Host kepler\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {folder}/user\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking yes\n"
        )
        for name in (".bash_profile", ".bashrc", "bash_env"):
            (folder / name).write_text(f"echo Hello from {name}\ncd /\n")
        self.start()

    def target(self) -> dict[str, Any]:
        return {"host": "kepler", "config": str(self.config), "folder": str(self.runs), "poll": 1}

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        program = shutil.which("sshd", path=PATH)
        assert program is not None
        self.process = subprocess.Popen(
            [program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        wait_until(lambda: self.call("true") == 0, WAIT_SECONDS, "sshd")

    def call(self, *arguments: str) -> int:
        argv = ["ssh", "-F", str(self.config), "-o", "BatchMode=yes", "-o", "ControlPath=none", "kepler", *arguments]
        return subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode

    def stop(self) -> None:
        """The daemon and every connection through it."""
        if self.process.returncode is not None:
            return
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait()


@contextmanager
def remote_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteMachine]:
    """Skips where there is no sshd."""
    gone = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if gone or os.geteuid() != 0:
        pytest.skip(f"no {', '.join(gone)}: apt-get install openssh-server rsync" if gone else "an own sshd needs root")
    runtime = Path(tempfile.mkdtemp(prefix="gputui-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    folder.mkdir()
    machine = RemoteMachine(folder)
    try:
        yield machine
    finally:
        for socket in (runtime / "gputui-ssh").glob("*"):
            subprocess.run(
                ["ssh", "-F", str(machine.config), "-o", f"ControlPath={socket}", "-O", "exit", "kepler"],
                capture_output=True, timeout=20, check=False,
            )  # fmt: skip
        machine.stop()
        shutil.rmtree(runtime)
