"""The kinds of executors: that of this machine, and those of targets."""

from __future__ import annotations

LOCAL = "local"
EXECUTORS = {
    LOCAL: "gputui.runs.executors.base:LocalExecutor",
    "ray": "gputui.runs.executors.ray:RayExecutor",
    "slurm": "gputui.runs.executors.slurm:SlurmExecutor",
    "ssh": "gputui.runs.executors.ssh:SshExecutor",
}
"""Module and class by kind of target; imported when a run needs it."""
REMOTE_KINDS = tuple(kind for kind in EXECUTORS if kind != LOCAL)
