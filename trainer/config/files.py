"""Settings in YAML, with the line of every key, so that a wrong one can be found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainer.errors import SettingsError

_ENDLESS = "a value contains itself, or is nested too deeply"

# The keys and indices that lead to a value.
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class SettingsFile:
    """What a YAML file says; `lines` has the line of every value by its place, counted from 1."""

    path: Path
    values: dict[str, Any]
    lines: dict[KeyPath, int]

    def where(self, *place: str | int) -> str:
        """``run.yaml:3`` for the value at this place, or for the nearest one around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.path}:{self.lines.get(place, 1)}"


def read(path: Path) -> SettingsFile:
    """Read a YAML or JSON file of settings.

    Raises SettingsError, naming file and line, where it cannot be read or is not made of ``name: value``.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"--config {path}: this is not a text file") from None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return SettingsFile(path, {}, {})
        lines = dict(_lines(node, (), path))
        values = loader.construct_document(node)
    except yaml.YAMLError as error:
        line, problem = _yaml_problem(error)
        raise SettingsError(f"{path}:{line}: this is not YAML: {problem}") from None
    except RecursionError:
        raise SettingsError(f"{path}:1: this is not YAML: {_ENDLESS}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path}:1: expected settings as name: value, one per line")
    return SettingsFile(path, {str(name): value for name, value in values.items()}, lines)


def from_text(text: str) -> Any:
    """A value of any type from a flag or the environment, as JSON or YAML. Raises ValueError if it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        value = yaml.safe_load(text)
        json.dumps(value, default=str, skipkeys=True)  # refuses a value that contains itself
    except yaml.YAMLError as error:
        raise ValueError(f"this is not YAML: {_yaml_problem(error)[1]}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"this is not YAML: {_ENDLESS}") from None
    return value


def _lines(node: yaml.Node, place: KeyPath, path: Path) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                raise SettingsError(f"{path}:{line}: {name} is there twice")
            seen.add(name)
            yield (*place, name), line
            yield from _lines(value, (*place, name), path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*place, index), value.start_mark.line + 1
            yield from _lines(value, (*place, index), path)


def _yaml_problem(error: yaml.YAMLError) -> tuple[int, str]:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return (mark.line + 1 if mark else 1), problem
