"""Launchers: build an attempt's command from a specification, and read the reports that it leaves.

In: a `RunSpec` with a `Placement`. Out: an argument vector, environment variables, globs of logs, reports and checks.
Each launcher is one file and is named only here; no other code depends on which one a run has.
Read first: base.py.
"""

from __future__ import annotations

from gputui.runs.launchers.accelerate import Accelerate
from gputui.runs.launchers.base import Launcher
from gputui.runs.launchers.command import Command
from gputui.runs.launchers.deepspeed import Deepspeed
from gputui.runs.launchers.python import Python
from gputui.runs.launchers.torchrun import Torchrun

FOR_RANKS, FOR_SCRIPT, FOR_COMMAND = Torchrun(), Python(), Command()
"""The defaults for a profile or command line without a launcher: a script with several ranks, one with a single
process, and a whole command."""

LAUNCHERS: dict[str, Launcher] = {
    one.name: one for one in (FOR_RANKS, Accelerate(), Deepspeed(), FOR_SCRIPT, FOR_COMMAND)
}
"""Launchers by their name in profiles."""
