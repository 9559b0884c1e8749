"""Where a run's files lie, once the profile's placeholders are filled in."""

from __future__ import annotations

from pathlib import Path

from gputui.runs.command import substitute, values_for
from gputui.runs.spec import RunSpec


def checkpoint_directory(spec: RunSpec, run_dir: Path) -> Path | None:
    """Where the run's checkpoints appear, or None when its profile names no place."""
    return None if spec.checkpoints is None else in_run(spec.checkpoints.directory, spec, run_dir)


def in_run(text: str, spec: RunSpec, run_dir: Path) -> Path:
    """A path of the profile: placeholders filled in, relative ones from the working directory."""
    path = Path(substitute(text, values_for(spec.params, str(run_dir), None)))
    return path if path.is_absolute() else Path(spec.workdir) / path
