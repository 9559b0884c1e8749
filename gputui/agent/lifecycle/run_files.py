"""A run's specification resolved once, and its metrics files."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.redaction import Redactor, secrets_in
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.metrics.trackers import TRACKERS
from gputui.metrics.walk import has_wildcards
from gputui.recovery.policies import POLICIES, NoticeTarget, Policy, PolicyError, policy_from
from gputui.recovery.watch.overrides import Overrides, of_profile
from gputui.runs.command import in_run
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import RunSpec, SpecError, spec_of
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.runs import Run

log = logging.getLogger(__name__)


def open_metrics(ingest: MetricsIngest, run_id: str, spec: RunSpec, run_dir: Path) -> None:
    """Register the run's sources of metrics. Works inside the caller's transaction."""
    for source in spec.metrics:
        path = in_run(source.path, spec, run_dir) if source.path else run_dir
        if source.path and (source.kind == "hf" or source.kind in TRACKERS or has_wildcards(str(path))):
            # Only the profile's own characters are wildcards, not those in the names of folders.
            folders = replace(spec, workdir=glob.escape(spec.workdir))
            path = in_run(source.path, folders, Path(glob.escape(str(run_dir))))
        ingest.open_source(run_id, str(path), source.kind, Reading(source.patterns, source.step, source.units))


class ResolvedRun(Struct, frozen=True):
    """A run's specification, parsed when its attempt is launched or adopted. ``spec`` is the stored, redacted one;
    ``notice`` (notification settings or None) and ``redactor`` (of its secrets) come from the run's private file."""

    spec: RunSpec
    policy: Policy
    notice: NoticeTarget | None
    redactor: Redactor


def resolved_run(workspace: Workspace, run: Run) -> ResolvedRun:
    """Resolve a run's specification. Raises SpecError if its row cannot be read."""
    return ResolvedRun(
        spec_of(run), policy_of(run), notice_of(workspace, run.run_id), redactor_of(workspace, run.run_id)
    )


def policy_of(run: Run) -> Policy:
    """The run's policy; the standard one if this version cannot read it. Raises SpecError."""
    try:
        return policy_from(spec_of(run).recovery)
    except PolicyError as error:
        log.warning("%s: %s; the standard policy is used", run.run_id, error)
        return POLICIES["standard"]


def alerts_of(run: Run) -> Overrides:
    """The profile's changes of the alert rules; none if this version cannot read them."""
    try:
        return of_profile(spec_of(run).alerts)
    except ValueError as error:
        log.warning("%s: %s; the machine's alert rules are used", run.run_id, error)
        return Overrides()


def notice_of(workspace: Workspace, run_id: str) -> NoticeTarget | None:
    """A run's notification settings, from its private file because the database contains no secrets."""
    try:
        return policy_from(read_spec(workspace.run_dir(run_id) / SPEC_FILE).recovery).notify
    except (SpecError, PolicyError):
        return None


def redactor_of(workspace: Workspace, run_id: str) -> Redactor:
    """A redactor of the secrets in the agent's environment and, if it can be read, in the run's specification."""
    secrets = secrets_in(os.environ, {})
    with contextlib.suppress(SpecError):
        secrets |= secrets_of(read_spec(workspace.run_dir(run_id) / SPEC_FILE))
    return Redactor(secrets)
