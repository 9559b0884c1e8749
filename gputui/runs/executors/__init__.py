"""Executors: programs that run an attempt on a target, by the attempt contract (docs/architecture.md).

The agent starts the program, signals it and, where possible, replaces it; it knows nothing else
of it. Read first: base.py, then process.py. ``kinds`` names them all.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gputui.runs.executors.kinds import EXECUTORS, LOCAL

if TYPE_CHECKING:
    from gputui.runs.executors.base import Executor
    from gputui.runs.spec import RunSpec


class Executors:
    """The executors of one process, each made once; ``ready`` has some, by kind."""

    def __init__(self, ready: Mapping[str, Executor] | None = None) -> None:
        self._made = dict(ready or {})

    def of(self, target: Mapping[str, Any] | None) -> Executor:
        """The executor of a target; None is this machine. Raises KeyError for an unknown kind."""
        kind = LOCAL if target is None else str(target["kind"])
        if kind not in self._made:
            module, _, name = EXECUTORS[kind].partition(":")
            self._made[kind] = getattr(importlib.import_module(module), name)()
        return self._made[kind]


def hides_checkpoints(spec: RunSpec) -> bool:
    """Return whether only the run's target sees its checkpoints."""
    return spec.target is not None and not Executors().of(spec.target).sees_checkpoints(spec.target)


def chooses_start(spec: RunSpec | None) -> bool:
    """Return whether only the run's target sees its checkpoints, and so chooses the one to resume from."""
    return spec is not None and spec.checkpoints is not None and hides_checkpoints(spec)
