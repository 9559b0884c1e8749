"""Commands on another machine: one connection per host, shared by all couriers, and a deadline per call."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.runs.executors.courier import CALL_SECONDS, CommandResult, TargetShell, UnreachableError

CONNECT_SECONDS = 10
COPY_SECONDS = 600.0

# ssh's exit code for its own failures, which rsync returns too.
_SSH_FAILED = 255
# rsync(1): error in the protocol's data stream, timeout in data transfer, timeout of the connection to the daemon.
_RSYNC_CUT_OFF = (12, 30, 35)

# A socket's path has at most 107 bytes (unix(7)). ssh appends a slash, the 40 digits of %C and, while it binds the
# socket, a suffix of 17 bytes.
_MOST_FOLDER_BYTES = 107 - 1 - 40 - 17


class SshShell(TargetShell):
    """Runs commands on the host of a target, and copies files there."""

    def __init__(self, target: Mapping[str, Any]) -> None:
        super().__init__("SSH_AUTH_SOCK")
        self.target = target

    def call(self, argv: Sequence[str], given: str = "", seconds: float = CALL_SECONDS) -> CommandResult:
        """Run a command there. Raises UnreachableError."""
        words = [*_ssh_words(self.target), str(self.target["host"]), "--", shlex.join(argv)]
        done = super().call(words, given, seconds)
        if done.code == _SSH_FAILED:
            raise UnreachableError(done.words)
        return done

    def send(self, source: Path, files: str | None, destination: str) -> CommandResult:
        """Copy a folder's content into a folder there. ``files`` are the names to copy, separated by NUL; None copies
        all of it. Raises UnreachableError."""
        words = ["rsync", "--archive", "--no-owner", "--no-group", "-e", shlex.join(_ssh_words(self.target))]
        if files is not None:
            words += ["--recursive", "--from0", "--files-from=-"]
        # The shell there never sees the destination. Without this, whether rsync quotes it depends on its version.
        words += ["--protect-args", f"{source}/", f"{self.target['host']}:{destination}/"]
        done = super().call(words, files or "", COPY_SECONDS)
        if done.code == _SSH_FAILED or done.code in _RSYNC_CUT_OFF:
            raise UnreachableError(done.words)
        return done


def _ssh_words(target: Mapping[str, Any]) -> list[str]:
    """The client with its options, without the host. It never asks for input and refuses a host key that changed."""
    words = ["ssh", *(("-F", str(Path(target["config"]).expanduser())) if target.get("config") else ())]
    settings = ["BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}", "ServerAliveInterval=5", "ServerAliveCountMax=3"]
    folder = _control_folder()
    if folder is not None:
        settings += ["ControlMaster=auto", f"ControlPath={folder}/%C", "ControlPersist=30"]
    for setting in settings:
        words += ["-o", setting]
    return words


def _control_folder() -> Path | None:
    """The folder of the sockets through which connections are shared, created if need be. None if it cannot be created,
    is not private to this user, or has too long a path: each call then makes its own connection."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "gputui-ssh" if runtime else Path(f"/tmp/gputui-{os.getuid()}")  # noqa: S108 - checked below
    if len(os.fsencode(folder)) > _MOST_FOLDER_BYTES:
        return None
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_private = status.st_uid == os.getuid() and status.st_mode & 0o077 == 0
    return folder if is_private else None
