"""What a run's specification says, parsed once, and the run's metrics files."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gputui.alerts.overrides import Overrides, of_profile
from gputui.config import Workspace
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.recovery.policies import POLICIES, NoticeTarget, Policy, PolicyError, policy_from
from gputui.redaction import Redactor, secrets_in
from gputui.runs.command import in_run
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import RunSpec, SpecError, spec_of
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.runs import Run

log = logging.getLogger(__name__)


def open_metrics(ingest: MetricsIngest, run_id: str, spec: RunSpec, run_dir: Path) -> None:
    """Tell the ingest where this run's metrics will be. Runs inside the caller's transaction."""
    for source in spec.metrics:
        path = in_run(source.path, spec, run_dir) if source.path else run_dir
        ingest.open_source(run_id, str(path), source.kind, Reading(source.patterns, source.step, source.units))


def metrics_bytes(spec: RunSpec, run_dir: Path) -> dict[str, int]:
    """The length of each of the run's metrics files; kept with each attempt, to separate its lines from those
    of the attempts before it even when the database is lost."""
    paths = [in_run(source.path, spec, run_dir) for source in spec.metrics if source.path is not None]
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[str(path)] = path.stat().st_size
    return found


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """What the agent needs of a run's specification, parsed when its attempt is launched or adopted. ``spec`` is the
    stored one, without secrets; ``notice`` (notification settings or None) and ``redactor`` (of its secrets) are from
    the run's own file."""

    spec: RunSpec
    policy: Policy
    notice: NoticeTarget | None
    redactor: Redactor


def resolved_run(workspace: Workspace, run: Run) -> ResolvedRun:
    """Raises SpecError if the run's row cannot be understood."""
    return ResolvedRun(
        spec_of(run), policy_of(run), notice_of(workspace, run.run_id), redactor_of(workspace, run.run_id)
    )


def policy_of(run: Run) -> Policy:
    """The run's policy; the standard one where its specification holds none that this gputui understands. Raises
    SpecError."""
    try:
        return policy_from(spec_of(run).recovery)
    except PolicyError as error:
        log.warning("%s: %s; the standard policy is used", run.run_id, error)
        return POLICIES["standard"]


def alerts_of(run: Run) -> Overrides:
    """What the run's profile changes of the alert rules; nothing if its specification holds none that this gputui
    understands."""
    try:
        return of_profile(spec_of(run).alerts)
    except ValueError as error:
        log.warning("%s: %s; the machine's alert rules are used", run.run_id, error)
        return Overrides()


def notice_of(workspace: Workspace, run_id: str) -> NoticeTarget | None:
    """A run's notification settings: from its own file, because the database holds no secrets."""
    try:
        return policy_from(read_spec(workspace.run_dir(run_id) / SPEC_FILE).recovery).notify
    except (SpecError, PolicyError):
        return None


def redactor_of(workspace: Workspace, run_id: str) -> Redactor:
    """Knows the secrets of one run: its script may print them wherever it likes. Of a run whose specification cannot be
    read, those of the environment are known."""
    known = secrets_in(os.environ, {})
    with contextlib.suppress(SpecError):
        known |= secrets_of(read_spec(workspace.run_dir(run_id) / SPEC_FILE))
    return Redactor(known)
