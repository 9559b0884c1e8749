"""The effect of a logout on this process: a pure rule over the settings of systemd, and reading
these.

logind.conf(5), "KillUserProcesses": if it is set, processes in the scope of a session end with the
session. user@.service(5): processes below a user's manager end with the user's last session, unless
the user lingers.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_FOLDERS = ("/usr/lib/systemd", "/usr/local/lib/systemd", "/run/systemd", "/etc/systemd")
_LINGER = Path("/var/lib/systemd/linger")
_TRUE = frozenset({"yes", "true", "on", "1"})

NAME = "gputui.service"
MARK = "# Written by gputui agent service install; gputui agent service uninstall removes it."


class LogoutEnd(NamedTuple):
    """The reason why a logout would end a process, and the remedy."""

    problem: str
    remedy: str


def would_end(cgroup: str, settings: Sequence[str], *, lingers: bool) -> LogoutEnd | None:
    """The effect of the user's logout on a process; None if it does not end it. ``cgroup`` is the
    text of its /proc/PID/cgroup, ``settings`` the texts of logind's configuration files, of which
    later ones override earlier ones."""
    if re.search(r"/session-[^/]+\.scope\b", cgroup):
        kills = re.findall(r"^\s*KillUserProcesses\s*=\s*(\S+)", "\n".join(settings), re.MULTILINE)
        if kills and kills[-1].lower() in _TRUE:
            return LogoutEnd(
                "a logout ends the agent and its runs (KillUserProcesses=yes in logind.conf)",
                "run loginctl enable-linger, then gputui agent stop and systemd-run --user --scope gputui agent start",
            )
        return None
    if re.search(r"/user@\d+\.service\b", cgroup) and not lingers:
        return LogoutEnd(
            "the last logout ends the agent and its runs, because this user does not linger",
            "run loginctl enable-linger",
        )
    return None


def logout_end() -> LogoutEnd | None:
    """`would_end` for this process; None without systemd or if unknown."""
    try:
        user = getpass.getuser()
        cgroup = Path("/proc/self/cgroup").read_text("utf-8", "replace")
        return would_end(cgroup, _settings(), lingers=(_LINGER / user).exists())
    except (OSError, KeyError):
        return None


def _settings() -> list[str]:
    """The main file with the highest precedence, then all drop-ins in the order of their names."""
    main = [path for folder in _FOLDERS if (path := Path(folder) / "logind.conf").is_file()]
    dropped: dict[str, Path] = {}
    for folder in _FOLDERS:
        dropped |= {path.name: path for path in (Path(folder) / "logind.conf.d").glob("*.conf")}
    files = [*main[-1:], *(dropped[name] for name in sorted(dropped))]
    return [path.read_text("utf-8", "replace") for path in files]


def unit_path(environ: Mapping[str, str]) -> Path:
    """The path of the user's unit: systemd.unit(5), "User Unit Search Path"."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "systemd" / "user" / NAME


def unit_text(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The text of the unit. ``environment`` is that of the recorder and of the runs that it
    starts."""
    lines = [f"Environment={quoted(f'{name}={value}')}" for name, value in sorted(environment.items())]
    return "\n".join(
        [
            MARK,
            "[Unit]",
            "Description=gputui: records the GPUs, the host and the runs",
            "",
            "[Service]",
            "Type=exec",
            # Unlike in Environment=, a dollar sign begins a variable here.
            f"ExecStart={' '.join(quoted(word).replace('$', '$$') for word in command)}",
            *lines,
            "Restart=on-failure",
            "RestartSec=10",
            "# The runs go on when the recorder ends, is started again, or loses a process to the OOM killer.",
            "KillMode=process",
            "OOMPolicy=continue",
            "TasksMax=infinity",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def quoted(word: str) -> str:
    """Quote a word for systemd, which expands percent signs."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{text}"'
