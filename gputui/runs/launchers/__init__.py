"""Launchers: how an attempt's argument vector is made from a specification, and how what it left is read.

In comes a `RunSpec` with a `Placement`; out go an argument vector, environment variables, globs of logs, reports and
checks. Each launcher is one file and is known only here; no other code asks which one a run has.
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
"""What is meant where a profile or a typed line names no launcher: a script of several ranks, of one process, or a
whole command."""

LAUNCHERS: dict[str, Launcher] = {
    one.name: one for one in (FOR_RANKS, Accelerate(), Deepspeed(), FOR_SCRIPT, FOR_COMMAND)
}
"""By the name that profiles use."""
