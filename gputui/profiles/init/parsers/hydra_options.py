"""Options of hydra: the keys of its YAML files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from gputui.profiles.init.script_options import Module, Option
from gputui.profiles.init.syntax import keyword, text_of

_DEEPEST = 4
"""How many groups may be within each other."""
_MISSING = "???"


def hydra_options(module: Module) -> Iterator[Option]:
    """The keys of the YAML next to ``config_path`` of ``@hydra.main``, such as ``optim.lr``."""
    if not module.imports("hydra"):
        return
    for call in module.calls_of("main"):
        name = text_of(keyword(call, "config_name"))
        if name:
            folder = module.path.parent / (text_of(keyword(call, "config_path")) or ".")
            yield from _composed(folder, name.removesuffix(".yaml"), "", 0)


def _composed(root: Path, name: str, prefix: str, depth: int) -> Iterator[Option]:
    """The keys of a configuration, behind those of the groups in its list of defaults. ``name`` is a
    path below ``root``, such as model/small, whose keys have the ``prefix`` "model."."""
    text, content = _yaml_file(root / f"{name}.yaml")
    package = re.search(r"^#\s*@package\s+(\S+)", text, re.MULTILINE)
    if package is not None:
        prefix = _prefix(package[1], prefix)
    defaults = content.pop("defaults", None)
    if isinstance(defaults, list) and depth < _DEEPEST:
        choices = [item for entry in defaults if isinstance(entry, dict) for item in entry.items()]
        for key, choice in choices:
            if isinstance(choice, str):
                group, group_prefix = _group(str(key), name)
                yield from _composed(root, f"{group}/{choice.removesuffix('.yaml')}", group_prefix, depth + 1)
    yield from _flattened(content, prefix)


def _group(key: str, name: str) -> tuple[str, str]:
    """The folder and the prefix of a group in the list of defaults of ``name``, such as ``optional /exp``."""
    group, _, package = key.rpartition(" ")[2].partition("@")
    path = group.strip("/")
    folder = name.rpartition("/")[0]
    if folder and not group.startswith("/"):
        path = f"{folder}/{path}"
    return path, _prefix(package, f"{path.replace('/', '.')}.")


def _prefix(package: str, usual: str) -> str:
    """What stands before the keys of a package of hydra."""
    return {"": usual, "_group_": usual, "_global_": ""}.get(package, f"{package}.")


def _flattened(content: Mapping[str, object], prefix: str) -> Iterator[Option]:
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            if path != "hydra":
                yield from _flattened(value, f"{path}.")
        elif value == _MISSING:
            yield Option(path, path, is_known=False, is_required=True)
        elif isinstance(value, str | int | float | bool) and "${" not in str(value):
            yield Option(path, path, value)
        else:
            yield Option(path, path, is_known=value is None)


def _yaml_file(path: Path) -> tuple[str, dict[str, object]]:
    """The text and the mapping of a file; empty if it cannot be read."""
    try:
        text = path.read_text("utf-8", "replace")
        content = yaml.safe_load(text)
    except (OSError, yaml.YAMLError):
        return "", {}
    if not isinstance(content, dict):
        return text, {}
    return text, {str(key): value for key, value in content.items()}
