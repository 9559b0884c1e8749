"""Commands on another machine: one connection per host, shared by all runners, and a deadline per
call."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.runs.executors.commands import CALL_SECONDS, CommandResult, TargetShell, UnreachableError

CONNECT_SECONDS = 10  # a jump host takes seconds
COPY_SECONDS = 600.0  # much code at 1 MB/s

# A login may print text before and after an answer, which is therefore between two marks; the
# second has its code.
MARKED = 'mark=$1; shift; echo "$mark"; echo "$mark" >&2; "$@"; echo "$mark$?"'
# bash reads a pipe byte by byte, so that all that follows the mark is left for cat.
SKIP_BANNER = 'mark=$1; shift; "$@" | { while read -r line && [[ $line != *"$mark" ]]; do :; done; cat; }'

# rsync(1): error in the protocol's data stream, timeout in data transfer, timeout of the connection
# to the daemon; and ssh's own failures.
_RSYNC_CUT_OFF = (12, 30, 35, 255)

# A program by which an interpreter states its version, and its exit codes if remote.pyz cannot run in
# it: too old, and the shell's for a program that may not be executed or does not exist.
PYTHON = "import sys; print(sys.version.split()[0]); sys.exit(sys.version_info < (3, 9))"
UNUSABLE = (1, 126, 127)


class SshShell(TargetShell):
    """Runs commands on the host of a target, and copies files there.

    Attributes:
        remote_shell: what runs a command there, given its script.
    """

    remote_shell: Sequence[str] = ("sh", "-c")

    def __init__(self, target: Mapping[str, Any]) -> None:
        self.target = target

    def call(self, argv: Sequence[str], input_text: str = "", seconds: float = CALL_SECONDS) -> CommandResult:
        """Run a command there. Raises UnreachableError."""
        mark = f"gputui-{secrets.token_hex(8)}:"
        command = shlex.join([*self.remote_shell, MARKED, "sh", mark, *argv])
        done = super().call([*_ssh_words(self.target), str(self.target["host"]), "--", command], input_text, seconds)
        answer = re.search(rf"{mark}\n(?P<output>.*){mark}(?P<code>\d+)\n", done.output, re.S)
        if answer is None:
            # Without what it has of the answer, which is no message.
            raise UnreachableError(CommandResult(done.code, "", done.errors).words)
        _, _, errors = done.errors.partition(f"{mark}\n")
        return CommandResult(int(answer["code"]), answer["output"], errors)

    def send(self, source: Path, files: str | None, destination: str) -> CommandResult:
        """Copy a folder's content into a folder there. Raises UnreachableError.

        Args:
            files: the names to copy, separated by NUL; None copies all of it.
        """
        mark = f"gputui-{secrets.token_hex(8)}:"
        client = shlex.join(["bash", "-o", "pipefail", "-c", SKIP_BANNER, "bash", mark, *_ssh_words(self.target)])
        # --force: a file may take the place of a folder.
        argv = ["rsync", "--archive", "--force", "--no-owner", "--no-group", "-e", client]
        argv.append(f"--rsync-path=echo {mark}; exec rsync")
        if files is not None:
            argv += ["--recursive", "--from0", "--files-from=-"]
        # The shell there never sees the destination. Without this, whether rsync quotes it depends
        # on its version.
        argv += ["--protect-args", f"{source}/", f"{self.target['host']}:{destination}/"]
        done = super().call(argv, files or "", COPY_SECONDS)
        if done.code in _RSYNC_CUT_OFF:
            raise UnreachableError(done.words)
        return done


class LoginShell(SshShell):
    """A login shell on a cluster's login node, which runs the profile that makes its commands
    available."""

    remote_shell = ("bash", "-lc")


def script(text: str, *arguments: str) -> list[str]:
    """The command that runs a script there, with ``arguments`` as its ``$1`` and so on.

    By sh, because bash reads ~/.bashrc for a command of sshd, and $BASH_ENV for any script.
    """
    return ["sh", "-c", text, "sh", *arguments]


def _ssh_words(target: Mapping[str, Any]) -> list[str]:
    """The client with its options, without the host. It never asks for input and refuses a host key
    that changed."""
    argv = ["ssh"]
    if target.get("config"):
        argv += ["-F", str(Path(target["config"]).expanduser())]
    settings = ["BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}", "ServerAliveInterval=5", "ServerAliveCountMax=3"]
    folder = _control_folder()
    if folder is not None:
        settings += ["ControlMaster=auto", f"ControlPath={folder}/%C", "ControlPersist=30"]
    for setting in settings:
        argv += ["-o", setting]
    return argv


def _control_folder() -> Path | None:
    """The folder of the sockets through which connections are shared, created if need be.

    Returns:
        None if it cannot be created or is not private to this user: each call then makes its own connection.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "gputui-ssh" if runtime else Path(f"/tmp/gputui-{os.getuid()}")  # noqa: S108 - checked below
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    if status.st_uid == os.getuid() and status.st_mode & 0o077 == 0:
        return folder
    return None
