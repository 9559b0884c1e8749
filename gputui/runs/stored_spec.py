"""Reading the specifications of runs from the store and from files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gputui.runs.executors.kinds import EXECUTORS
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.spec import RunSpec, SpecError
from gputui.store.rows import UNREADABLE
from gputui.store.runs import Run


def read_shape(data: Mapping[str, Any]) -> RunSpec:
    """Read a specification from its JSON. Raises SpecError, also for a launcher or target that this version lacks."""
    spec = RunSpec.from_json(data)
    launcher = LAUNCHERS.get(spec.launcher)
    target = spec.target
    has_program = bool(spec.program) and launcher is not None and (launcher.takes_command or bool(spec.python))
    if not has_program:
        raise SpecError(f"not a run specification: launcher {spec.launcher!r}, program {spec.program!r}")
    if target is not None and (target.get("kind") not in EXECUTORS or "name" not in target):
        raise SpecError(f"not a run specification: target {target!r}")
    return spec


# A specification never changes, and those of all waiting runs are needed twice a second.
@lru_cache(maxsize=4096)
def parse_spec(text: str) -> RunSpec:
    """Parse a stored specification. Raises SpecError."""
    try:
        return read_shape(json.loads(text))
    except SpecError:
        raise
    except (ValueError, RecursionError) as error:
        raise SpecError(f"not a run specification: {error}") from error


def spec_of(run: Run) -> RunSpec:
    """The specification of a run. Raises SpecError, also for damaged parameters."""
    if run.params is UNREADABLE:
        raise SpecError("its parameters are damaged")
    return parse_spec(run.spec_json)


def known_spec(run: Run) -> RunSpec | None:
    """The specification of a run, None if it is invalid."""
    try:
        return spec_of(run)
    except SpecError:
        return None
