"""The start of an agent by a shim at its end, if none is alive.

Standard library only, for any Python from 3.9 on: the shim imports it on targets too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gputui.runs.shim_processes import boot_id, stat_of
from gputui.runs.shim_signals import restore_signals


def start_agent(agent: dict[str, Any] | None) -> None:
    """Start an agent if none lives and no person ended it on purpose; ``agent`` is that entry of attempt.json.

    One that was killed together with its sampler has no other successor.
    """
    if agent is None or Path(agent["stopped"]).exists() or is_agent_alive(Path(agent["lock"])):
        return
    environment = {name: value for name, value in os.environ.items() if name not in agent["unset"]}
    try:
        with open(agent["log"], "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
            process = subprocess.Popen(
                agent["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
                cwd="/",
                # Other threads only wait for the ends of ranks, and hold no lock at the fork.
                preexec_fn=restore_signals,
            )
    except OSError as error:
        print(f"no agent could be started: {error}", file=sys.stderr)  # noqa: T201 - for shim.log
        return
    # It outlives this process, which does not wait for it.
    process.returncode = 0


def is_agent_alive(lock: Path) -> bool:
    """Return whether the process in an agent's lock file is alive.

    The lock is not tried, because an agent that just starts would find it taken.
    """
    try:
        holder = json.loads(lock.read_text("utf-8"))
        process = stat_of(int(holder["pid"]))
        if process is None or process.is_dead:
            return False
        return bool(process.start_ticks == holder["start_ticks"] and boot_id() == holder["boot_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
