"""The metrics file of a run, and what only a run's folder says."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gputui.config import Workspace
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.recovery.policies import NoticeTarget
from gputui.recovery.policy import PolicyError, parse_policy
from gputui.runs.command import in_run
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.submission import SPEC_FILE, read_spec


def open_metrics(ingest: MetricsIngest, run_id: str, spec: RunSpec, run_dir: Path) -> None:
    """Tell the ingest where this run's metrics will be. Runs inside the caller's transaction."""
    for source in spec.metrics:
        path = in_run(source.path, spec, run_dir) if source.path else run_dir
        ingest.open_source(run_id, str(path), source.kind, Reading(source.patterns, source.step, source.units))


def metrics_bytes(spec: RunSpec, run_dir: Path) -> dict[str, int]:
    """How long each of the run's metrics files is now; kept with each attempt, so that its lines can be told from those
    of the attempts before it even when the database is lost."""
    paths = [in_run(source.path, spec, run_dir) for source in spec.metrics if source.path is not None]
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[str(path)] = path.stat().st_size
    return found


def notice_of(workspace: Workspace, run_id: str) -> NoticeTarget | None:
    """How a run's policy has somebody told: from its own file, for the database does not hold what may be secret."""
    try:
        return parse_policy(read_spec(workspace.run_dir(run_id) / SPEC_FILE).recovery).notify
    except (SpecError, PolicyError):
        return None
