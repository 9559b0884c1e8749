"""The systemd unit that keeps the recorder running: its text, and where it belongs. Pure.

systemd.unit(5), systemd.service(5), systemd.kill(5), systemd.exec(5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

NAME = "gputui.service"
MARK = "# Written by gputui service install; gputui service uninstall removes it."


def unit_path(environ: Mapping[str, str]) -> Path:
    """Where a user's own units are: systemd.unit(5), "User Unit Search Path"."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "systemd" / "user" / NAME


def unit_text(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The unit's text. ``environment`` is what the recorder, and the runs that it starts, find set."""
    lines = [f"Environment={quoted(f'{name}={value}')}" for name, value in sorted(environment.items())]
    return "\n".join(
        [
            MARK,
            "[Unit]",
            "Description=gputui: records the GPUs, the host and the runs",
            "",
            "[Service]",
            "Type=exec",
            # A dollar sign is literal in Environment=, and a variable here.
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
    """A word as systemd reads it back: a percent sign is no specifier, quotes stay quotes."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{text}"'
