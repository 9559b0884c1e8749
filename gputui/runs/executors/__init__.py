"""Executors: where an attempt runs. Each is a program that keeps the attempt contract (docs/attempts.md).

In comes an attempt's folder with its attempt.json; out come the files of the contract, until exit.json says how it
ended. The agent starts the program, signals it and, where it may, replaces it; it knows nothing else of it.
Read first: base.py, then process.py. The registry below is the one place that names the kinds.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputui.runs.executors.base import Executor
    from gputui.runs.spec import RunSpec

LOCAL = "local"
EXECUTORS = {
    LOCAL: "gputui.runs.executors.local:LocalExecutor",
    "ray": "gputui.runs.executors.ray:RayExecutor",
    "slurm": "gputui.runs.executors.slurm:SlurmExecutor",
    "ssh": "gputui.runs.executors.ssh:SshExecutor",
}
"""Kind of target → module and class, which is imported once a run needs it."""
REMOTE_KINDS = tuple(kind for kind in EXECUTORS if kind != LOCAL)


class Executors:
    """The executors of one process, each made once; ``made`` are those that are there already, by kind."""

    def __init__(self, made: Mapping[str, Executor] | None = None) -> None:
        self._made = dict(made or {})

    def of(self, target: Mapping[str, Any] | None) -> Executor:
        """That of a specification's target; None is this machine. Raises KeyError for a kind that is not known."""
        kind = LOCAL if target is None else str(target["kind"])
        if kind not in self._made:
            module, _, name = EXECUTORS[kind].partition(":")
            self._made[kind] = getattr(importlib.import_module(module), name)()
        return self._made[kind]


def chooses_start(spec: RunSpec | None) -> bool:
    """Whether the run's target alone sees its checkpoints, and so chooses the one that an attempt continues from. False
    where the specification is not understood."""
    if spec is None or spec.target is None or spec.checkpoints is None:
        return False
    return not Executors().of(spec.target).sees_checkpoints(spec.target)
