"""The systemd unit that keeps the recorder running: its text and its path. Pure.

systemd.unit(5), systemd.service(5), systemd.kill(5), systemd.exec(5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

NAME = "gputui.service"
MARK = "# Written by gputui service install; gputui service uninstall removes it."


def unit_path(environ: Mapping[str, str]) -> Path:
    """The path of the user's unit: systemd.unit(5), "User Unit Search Path"."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "systemd" / "user" / NAME


def unit_text(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The text of the unit. ``environment`` is that of the recorder and of the runs that it starts."""
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
