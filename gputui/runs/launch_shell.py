"""The environment of the shell that launches a run, in the private specification only: environment,
resource limits, nice value, CPU affinity, umask."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from gputui.runs.executors.commands import client_environment

# The kernel's own limit is smaller with the usual stack size (execve(2)).
MAX_ENVIRONMENT_BYTES = 2 << 20

# Variables of one terminal, session or service, which are stale or wrong an hour later.
_OF_A_SESSION = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|TERM|TERM_.*|TERMCAP|TERMINFO|COLORTERM|VTE_VERSION|WINDOWID|WT_.*|KITTY_.*"
    r"|ALACRITTY_.*|KONSOLE_.*|ITERM_.*|GNOME_TERMINAL_.*|TMUX.*|STY|WINDOW|SSH_.*|GPG_TTY|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY"
    r"|DBUS_.*|XDG_SESSION.*|XDG_SEAT|XDG_VTNR|INVOCATION_ID|JOURNAL_STREAM|NOTIFY_SOCKET|WATCHDOG_.*|LISTEN_.*|MANAGERPID"
    r"|SYSTEMD_EXEC_PID"
)
# gputui's own variables, and those of the torchrun rank that a run may be launched from.
_OF_ANOTHER_RUN = re.compile(
    r"GPUTUI_.*|RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|ROLE_NAME|(?:LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    r"|TORCHELASTIC_.*"
)
# OFILE is another name of NOFILE.
_LIMITS = {
    name.removeprefix("RLIMIT_"): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}


class LaunchShell(Struct, frozen=True):
    """The environment of a launching shell. None is unknown: the command inherits the agent's.

    Attributes:
        environment: the variables that a run inherits.
        limits: soft and hard ones by the names of getrlimit(2) without RLIMIT_; -1 is unlimited.
        affinity: CPUs.
        clients: the variables of the commands of a target.
    """

    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    limits: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    nice: int | None = None
    affinity: tuple[int, ...] | None = None
    clients: Mapping[str, str] | None = None
    umask: int | None = None


def capture(environ: Mapping[str, str] | None = None) -> LaunchShell:
    """Capture the environment and limits of this process. Raises OSError (E2BIG) for too much."""
    environ = os.environ if environ is None else environ
    environment = passed_on(environ)
    size = sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in environment.items())
    if size > MAX_ENVIRONMENT_BYTES:
        raise OSError(
            errno.E2BIG,
            f"the environment of this shell takes {size >> 10} KiB, more than the {MAX_ENVIRONMENT_BYTES >> 10} KiB "
            "that a run can be given; unset what it does not need",
        )
    # os.umask can only read the umask by setting it for all threads.
    status = Path("/proc/self/status").read_text("utf-8", "replace")
    return LaunchShell(
        environment=environment,
        limits={name: resource.getrlimit(number) for name, number in _LIMITS.items()},
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        clients=client_environment(environ),
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        umask=next(int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask:")),
    )


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a shell that a run inherits."""
    return {
        name: value
        for name, value in environ.items()
        if not _OF_A_SESSION.fullmatch(name) and not _OF_ANOTHER_RUN.fullmatch(name)
    }
