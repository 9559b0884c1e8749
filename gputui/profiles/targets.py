"""``targets.yaml``: where else runs may run. Targets in a profile override these."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputui.config import Workspace
from gputui.profiles.target_forms import target_findings, validated
from gputui.yaml_forms.file import given_twice, parse_file, problem_at, read_text
from gputui.yaml_forms.nearest import nearest
from gputui.yaml_forms.problems import ProfileError


class TargetNotFoundError(LookupError):
    """No target goes by this name. One line: what there is, or how to make one."""


def load_targets(path: Path) -> dict[str, dict[str, Any]]:
    """The targets of a file by name, each as it is stored with a run; none where it is not there. Raises ProfileError
    with every problem and its line."""
    if not path.exists():
        return {}
    document = parse_file(read_text(path, "file of targets"), path)
    given = {} if document.data is None else document.data
    problems = given_twice(path, document)
    problems += [problem_at(path, document, place, **what) for place, what in target_findings(given)]
    if problems:
        raise ProfileError(problems)
    return {name: {"name": name, **validated(one)} for name, one in given.items()}


def find_target(name: str, own: Mapping[str, Mapping[str, Any]], workspace: Workspace) -> dict[str, Any]:
    """The target that ``--on`` names; ``own`` are those of the profile, which win. Raises TargetNotFoundError and
    ProfileError."""
    known = load_targets(workspace.targets)
    known |= {name: {"name": name, **validated(one)} for name, one in own.items()}
    if name in known:
        return known[name]
    meant = nearest(name, list(known))
    if meant is not None:
        raise TargetNotFoundError(f"no target {name!r}; did you mean {meant}?")
    there = f"there are {', '.join(known)}" if known else f"{workspace.targets} names none; docs/targets.md shows how"
    raise TargetNotFoundError(f"no target {name!r}; {there}")
