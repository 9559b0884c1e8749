"""Resource limits of the agent. It is started by some command and serves all runs, so the limits of that command's
shell are not for it; a run gets those of its own shell (`gputui.runs.launch_shell`)."""

from __future__ import annotations

import contextlib
import os
import resource

from gputui.core.yaml_forms.quantities import format_size

_RAISED = (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)


def raise_limits() -> None:
    """Raise the limits that would end this process or its writes: as root to the highest value, else to the hard
    limit."""
    for number in _RAISED:
        _, hard = resource.getrlimit(number)
        # The number of files has no unlimited value: the hard limit is what the system gives.
        highest = resource.RLIM_INFINITY if os.geteuid() == 0 and number != resource.RLIMIT_NOFILE else hard
        for most in (highest, hard):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (most, most))
                break


def why_unwritable() -> str:
    """What may keep this process from writing, as the end of a sentence."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY:
        return "see whether its disk is full"
    return f"see whether its disk is full, or whether it reached the limit of {format_size(soft)} per file (ulimit -f)"
