"""command: any program with its arguments, such as make, a shell script or an unsupported launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.runs.launchers.base import Invocation, Launcher, Placement

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec


class Command(Launcher):
    """The profile's command, unchanged."""

    name = "command"
    takes_command = True

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        return invocation.words
