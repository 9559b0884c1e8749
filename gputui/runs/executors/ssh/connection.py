"""Commands on another machine: one connection for each host, which all couriers share, and a deadline for each call."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.runs.executors.courier import CALL_SECONDS, Called, TargetShell, UnreachableError

CONNECT_SECONDS = 10
# ssh's own end, whatever the command there did.
LOST = 255
# A socket's name has 107 bytes (unix(7)); ssh puts 40 of its own there, and 17 more while it makes it.
MOST_FOLDER_BYTES = 107 - 58


def ssh_words(target: Mapping[str, Any]) -> list[str]:
    """The client with its options, without the host. It never asks anything; a host key that changed is refused."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/gputui-{os.getuid()}")  # noqa: S108 - made private below
    folder = runtime / "gputui-ssh" if "XDG_RUNTIME_DIR" in os.environ else runtime
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    words = ["ssh", *(("-F", str(target["config"])) if target.get("config") else ())]
    is_private = folder.stat().st_uid == os.getuid() and folder.stat().st_mode & 0o077 == 0
    if is_private and len(os.fsencode(folder)) <= MOST_FOLDER_BYTES:
        words += ["-o", "ControlMaster=auto", "-o", f"ControlPath={folder}/%C", "-o", "ControlPersist=30"]
    settings = ("BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}", "ServerAliveInterval=5", "ServerAliveCountMax=3")
    for setting in settings:
        words += ["-o", setting]
    return words


class SshShell(TargetShell):
    """Runs commands on a target's host."""

    def __init__(self, target: Mapping[str, Any]) -> None:
        super().__init__("SSH_AUTH_SOCK")
        self.target = target

    def call(self, argv: Sequence[str], given: str = "", seconds: float = CALL_SECONDS) -> Called:
        """Run a command there. Raises UnreachableError."""
        words = [*ssh_words(self.target), str(self.target["host"]), "--", shlex.join(argv)]
        done = super().call(words, given, seconds)
        if done.code == LOST:
            raise UnreachableError(done.words)
        return done

    def send(self, source: Path, files: str | None, destination: str) -> Called:
        """Copy a folder's content, or the ``files`` of it (names with NUL between them), into a folder there. Raises
        UnreachableError."""
        words = ["rsync", "--archive", "--no-owner", "--no-group", "-e", shlex.join(ssh_words(self.target))]
        if files is not None:
            words += ["--recursive", "--from0", "--files-from=-"]
        words += [f"{source}/", f"{self.target['host']}:{shlex.quote(destination)}/"]
        done = super().call(words, files or "", seconds=600.0)
        if done.code in (12, 30, 35, LOST):
            raise UnreachableError(done.words)
        return done
