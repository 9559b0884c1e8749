"""Targets of ``targets.yaml`` and of profiles: other machines and clusters for runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gputui.core.config import Workspace
from gputui.core.errors import ExplainedError
from gputui.core.yaml_forms.document import KeyPath
from gputui.core.yaml_forms.file import given_twice, parse_file, problem_at, read_text
from gputui.core.yaml_forms.forms import findings
from gputui.core.yaml_forms.problems import NAME_PATTERN, ProfileError, did_you_mean, nearest
from gputui.runs.executors.kinds import LOCAL, REMOTE_KINDS
from gputui.runs.executors.options import OPTIONS


class TargetNotFoundError(ExplainedError, LookupError):
    """No target has this name. One line: the existing names, or how to add a target."""


class TargetOptionError(ExplainedError, ValueError):
    """An option that a run cannot have on its target. One line."""


def load_targets(path: Path) -> dict[str, dict[str, Any]]:
    """The targets of a file by name, in their stored form; none if the file does not exist. Raises
    ProfileError with every problem and its line."""
    if not path.exists():
        return {}
    document = parse_file(read_text(path, "file of targets"), path)
    targets = {} if document.data is None else document.data
    problems = given_twice(path, document)
    problems += [problem_at(path, document, place, **what) for place, what in target_findings(targets)]
    if problems:
        raise ProfileError(problems)
    return {name: {"name": name, **stored_target(target)} for name, target in targets.items()}


def find_target(name: str, of_profile: Mapping[str, Mapping[str, Any]], workspace: Workspace) -> dict[str, Any]:
    """The target that ``--on`` names.

    Args:
        of_profile: Its targets override those of the workspace.

    Raises:
        TargetNotFoundError: There is none.
        ProfileError: The file of targets cannot be used.
    """
    targets = load_targets(workspace.targets)
    targets |= {name: {"name": name, **stored_target(target)} for name, target in of_profile.items()}
    if name in targets:
        return targets[name]
    if targets:
        others = f"there are {', '.join(targets)}"
    else:
        others = f"{workspace.targets} names none; gputui help targets says how"
    raise TargetNotFoundError(f"no target {name!r}; {did_you_mean(name, targets) or others}")


def with_job_options(target: Mapping[str, Any], changes: Mapping[str, str]) -> dict[str, Any]:
    """The target with other options for one run. Raises TargetOptionError."""
    model = OPTIONS[str(target["kind"])]
    for key in changes:
        if key not in model.model_fields:
            raise TargetOptionError(f"--{key}: {target['name']} is of kind {target['kind']}, which has no {key}")
    options = {key: value for key, value in target.items() if key != "name"}
    try:
        return {"name": target["name"], **stored_target({**options, **changes})}
    except ValidationError as error:
        place, what = next(findings(error, model))
        problem = what.get("problem") or f"expected {what['expected']}, found {what['actual']}"
        raise TargetOptionError(f"--{place[0]}: {problem}") from error


def target_findings(targets: object, place: KeyPath = ()) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Check targets at ``place``. Yields the place of each problem and the fields of a Problem."""
    if not isinstance(targets, Mapping):
        yield place, {"problem": "targets are a mapping (name: {kind: …})"}
        return
    for name, target in targets.items():
        at = (*place, name)
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or name == LOCAL:
            yield at, {"problem": "a target's name has letters, digits, '_', '.' and '-', and is not local"}
        elif not isinstance(target, Mapping) or "kind" not in target:
            yield at, {"problem": f"a target has a kind: {', '.join(REMOTE_KINDS)}"}
        elif target["kind"] not in REMOTE_KINDS:
            kind = str(target["kind"])
            meant = nearest(kind, list(REMOTE_KINDS))
            yield (*at, "kind"), {"expected": f"one of {', '.join(REMOTE_KINDS)}", "actual": kind, "nearest": meant}
        else:
            try:
                stored_target(target)
            except ValidationError as error:
                for key, what in findings(error, OPTIONS[str(target["kind"])]):
                    yield (*at, *key), what


def stored_target(target: Mapping[str, Any]) -> dict[str, Any]:
    """A target as it is stored with a run, without its name. Raises ValidationError."""
    return OPTIONS[str(target["kind"])].model_validate(dict(target)).to_json()
