"""Launchers: build an attempt's command from a specification, and read the reports that it leaves.

No other code depends on which one a run has. Read first: base.py.
"""

from __future__ import annotations

from gputui.runs.launchers.base import Launcher
from gputui.runs.launchers.kinds import Accelerate, Command, Deepspeed, Python, Torchrun

FOR_RANKS = Torchrun()
FOR_SCRIPT = Python()
FOR_COMMAND = Command()
"""The defaults for a profile or command line without a launcher: a script with several ranks, one
with a single process, and a whole command."""

LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher for launcher in (FOR_RANKS, Accelerate(), Deepspeed(), FOR_SCRIPT, FOR_COMMAND)
}
"""Launchers by their name in profiles."""
