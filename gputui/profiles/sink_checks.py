"""Checks of a profile's ``sinks:``: their values, and whether this machine can write to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.core.yaml_forms.problems import not_one_of
from gputui.reports.export.formats import FORMATS, is_format, missing_package
from gputui.runs.checks import CheckResult
from gputui.runs.command import sink_target
from gputui.runs.spec import RunSpec

if TYPE_CHECKING:
    from gputui.core.yaml_forms.document import KeyPath

RUN_ID = "run_id"
"""A placeholder of sinks only."""

_UNIQUE = (f"{{{RUN_ID}}}", "{run_dir}")


def sink_problems(sinks: object) -> Iterator[tuple[KeyPath, str, str | None]]:
    """The place, message and nearest name of every problem. Messages never show a target: it may hold a password."""
    for place, name, target in _entries(sinks):
        if not is_format(name):
            yield place, *not_one_of("sink", name, FORMATS)
        elif target is None:
            if FORMATS[name].place is None:
                yield place, f"needs its address: {name}: sqlite:////path/{name}.db, or a server's http://…", None
        elif not isinstance(target, str) or not target or "\0" in target:
            yield place, f"expected {'an address' if FORMATS[name].is_address else 'a path'} as text", None
        elif FORMATS[name].is_address:
            if "://" not in target:
                yield place, f"expected an address such as sqlite:////path/{name}.db or http://127.0.0.1:5000", None
            elif target.startswith("sqlite:///") and not target.startswith("sqlite:////"):
                yield place, "the path of the database is relative; sqlite: takes four slashes before a full path", None
        elif not any(mark in target for mark in _UNIQUE):
            yield place, f"every run would write to the same place; add {_UNIQUE[0]} to it", None


def _entries(sinks: object) -> Iterator[tuple[KeyPath, str, object]]:
    if isinstance(sinks, str):
        yield ("sinks",), sinks, None
    elif isinstance(sinks, list):
        for index, name in enumerate(sinks):
            if isinstance(name, str):
                yield ("sinks", index), name, None
    elif isinstance(sinks, Mapping):
        for name, target in sinks.items():
            yield ("sinks", name), name, target


def check_sinks(spec: RunSpec, state: Path) -> CheckResult:
    """Check that the sinks' packages are installed and their places writable. ``state`` is the
    folder of the database and the runs."""
    if not spec.sinks:
        return CheckResult("sinks", "skip", "the profile has none")
    for name, template in spec.sinks.items():
        missing = missing_package(name, template)
        if missing is not None:
            return CheckResult("sinks", "fail", f"{name}: {missing}", f"install it, or take {name} out of sinks")
        if is_format(name) and FORMATS[name].is_address:
            continue
        # The run's own folder is made with the run.
        target = Path(sink_target(template, spec.params, run_id="RUN", run_dir=str(state)))
        folder = target.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            words = "cannot be written" if folder.is_dir() else "is not a folder"
            return CheckResult("sinks", "fail", f"{name}: {folder} {words}", "choose another place in sinks")
    return CheckResult("sinks", "pass", ", ".join(spec.sinks))


def shown_sinks(spec: RunSpec, *, run_id: str, run_dir: str) -> list[str]:
    """Each sink and its target, for a person."""
    return [
        f"{name} → {sink_target(template, spec.params, run_id=run_id, run_dir=run_dir)}"
        for name, template in spec.sinks.items()
    ]
