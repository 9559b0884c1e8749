"""python: a script or module as one process, which may start its ranks itself, as Lightning does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.runs.launchers.base import Invocation, Launcher, Placement

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec


class Python(Launcher):
    """Starts the script or module by the interpreter."""

    name = "python"

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        return (str(spec.python), *invocation.words)
