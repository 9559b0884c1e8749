"""Where a run's files lie, once the profile's placeholders are filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gputui.runs.command import substitute, values_for
from gputui.runs.spec import RunSpec, Scalar


def checkpoint_directory(spec: RunSpec, run_dir: Path) -> Path | None:
    """Where the run's checkpoints appear, or None when its profile names no place."""
    return None if spec.checkpoints is None else in_run(spec.checkpoints.directory, spec, run_dir)


def in_run(text: str, spec: RunSpec, run_dir: Path) -> Path:
    """A path of the profile: placeholders filled in, relative ones from the working directory."""
    path = Path(substitute(text, values_for(spec.params, str(run_dir), None)))
    return path if path.is_absolute() else Path(spec.workdir) / path


def sink_target(template: str, params: Mapping[str, Scalar], *, run_id: str, run_dir: str) -> str:
    """Where a profile's sink writes for one run."""
    return substitute(template, {**values_for(params, run_dir, None), "run_id": run_id})


def sinks_of(spec_json: str, run_id: str, run_dir: Path) -> dict[str, str]:
    """The sinks of a stored run and where each writes, secrets left out as everywhere in the store."""
    try:
        spec = json.loads(spec_json)
        templates, params = spec.get("sinks") or {}, spec.get("params") or {}
        return {
            name: sink_target(template, params, run_id=run_id, run_dir=str(run_dir))
            for name, template in templates.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}
