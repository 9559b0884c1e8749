"""Checks of a profile's ``sinks:``: their values, and whether this machine can write to them."""

from __future__ import annotations

import os
from pathlib import Path

from gputui.reports.export.formats import FORMATS, is_format, missing_package
from gputui.runs.checks import CheckResult
from gputui.runs.command import sink_target
from gputui.runs.spec import RunSpec

RUN_ID = "run_id"
"""A placeholder of sinks only."""


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
            mistake = "cannot be written" if folder.is_dir() else "is not a folder"
            return CheckResult("sinks", "fail", f"{name}: {folder} {mistake}", "choose another place in sinks")
    return CheckResult("sinks", "pass", ", ".join(spec.sinks))


def shown_sinks(spec: RunSpec, *, run_id: str, run_dir: str) -> list[str]:
    """Each sink and its target, for a person."""
    return [
        f"{name} → {sink_target(template, spec.params, run_id=run_id, run_dir=run_dir)}"
        for name, template in spec.sinks.items()
    ]
