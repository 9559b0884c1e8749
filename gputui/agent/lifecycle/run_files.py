"""A run's specification resolved once, its metrics files, and the phases of its profile."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import sqlite3
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct

from gputui.core.config import Workspace
from gputui.core.redaction import Redactor, secrets_in
from gputui.metrics.files import has_wildcards
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.metrics.trackers import TRACKERS
from gputui.recovery.policies import POLICIES, Policy, PolicyError, policy_from
from gputui.runs.checkpoint_names import explicit_step
from gputui.runs.command import in_run
from gputui.runs.foreign_json import read_foreign_json
from gputui.runs.identity import is_held
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.logs import FIRST_NODE
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import METRICS_FILE, MetricsSpec, RunSpec, SpecError
from gputui.runs.stored_spec import spec_of
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt
from gputui.store.runs import Run

log = logging.getLogger(__name__)


# In an attempt's folder: its last step and its steps in all, if it ended far below them by itself.
EARLY_FILE = "early.json"
# More than any executor writes.
RECORD_BYTES = 1 << 16


def attempt_dir(workspace: Workspace, run_id: str, number: int) -> Path:
    return workspace.run_dir(run_id) / "attempts" / str(number)


def attempt_numbers(run_dir: Path) -> list[int]:
    """The attempts that were prepared, in order, by their folders."""
    names = [path.parent.name for path in run_dir.glob("attempts/[0-9]*/attempt.json")]
    return sorted(int(name) for name in names if name.isdigit())


def living_attempt(workspace: Workspace, run_id: str) -> int | None:
    """The attempt of a run that is alive by its lock, whatever the database knows: it may have been
    restored from a backup."""
    numbers = reversed(attempt_numbers(workspace.run_dir(run_id)))
    return next((n for n in numbers if is_held(attempt_dir(workspace, run_id, n) / "attempt.lock")), None)


def rank_output(spec: RunSpec, gpus_given: int, folder: Path) -> str:
    """Path of the first rank's output below the attempt's ``folder``, as
    `MetricsIngest.begin_attempt` expects it."""
    output = LAUNCHERS[spec.launcher].rank_output(spec.ranks_on(gpus_given))
    return f"{FIRST_NODE}/{output}"


def read_executor_record(path: Path) -> dict[str, Any] | None:
    """A record that the executor wrote, or None if there is none. A damaged one counts as an empty
    record, because the executor did write it."""
    try:
        value = read_foreign_json(path, RECORD_BYTES)
    except OSError:
        return None
    except ValueError as error:
        log.warning("%s cannot be read: %s", path, error)
        return {}
    if isinstance(value, dict):
        return value
    return {}


def open_metrics(ingest: MetricsIngest, run_id: str, spec: RunSpec, run_dir: Path) -> None:
    """Register the run's sources of metrics. Works inside the caller's transaction."""
    for source in spec.metrics:
        if source.kind == "auto":
            ingest.open_source(run_id, str(run_dir / METRICS_FILE), "jsonl")
            ingest.open_source(run_id, str(run_dir), "output")
            continue
        if source in spec.searched_events:
            continue
        reading = Reading(source.patterns, source.step, source.units)
        ingest.open_source(run_id, source_path(source, spec, run_dir), source.kind, reading)


def overlap(folder: Path, another: Path) -> bool:
    """Return whether one of the two folders is the other or lies in it."""
    return folder.is_relative_to(another) or another.is_relative_to(folder)


def source_path(source: MetricsSpec, spec: RunSpec, run_dir: Path) -> str:
    """The path or glob of a run's source, as `MetricsIngest.open_source` takes it."""
    path = in_run(source.path, spec, run_dir) if source.path else run_dir
    is_pattern = source.kind == "hf" or source.kind in TRACKERS or has_wildcards(str(path))
    if source.path and is_pattern:
        # Only the profile's own characters are wildcards, not those in the names of folders.
        pattern = source.path
        if pattern.startswith(f"{spec.workdir}/"):
            pattern = glob.escape(spec.workdir) + pattern.removeprefix(spec.workdir)
        path = in_run(pattern, spec, Path(glob.escape(str(run_dir))))
    return str(path)


class ResolvedRun(Struct, frozen=True):
    """A run's specification, parsed when its attempt is launched or adopted.

    Attributes:
        spec: the stored, redacted one.
        redactor: hides the secrets of the run's private file.
    """

    spec: RunSpec
    policy: Policy
    redactor: Redactor


def resolved_run(workspace: Workspace, run: Run) -> ResolvedRun:
    """Resolve a run's specification. Raises SpecError if its row cannot be read."""
    redactor = redactor_of(workspace, run.run_id)
    return ResolvedRun(spec_of(run), policy_of(run), redactor)


def policy_of(run: Run) -> Policy:
    """The run's policy; the standard one if it cannot be read. Raises SpecError."""
    try:
        return policy_from(spec_of(run).recovery)
    except PolicyError as error:
        log.warning("%s: %s; the standard policy is used", run.run_id, error)
        return POLICIES["standard"]


def redactor_of(workspace: Workspace, run_id: str) -> Redactor:
    """A redactor of the secrets in the agent's environment and, if it can be read, in the run's
    specification."""
    secrets = secrets_in(os.environ, {})
    with contextlib.suppress(SpecError):
        secrets |= secrets_of(read_spec(workspace.run_dir(run_id) / SPEC_FILE))
    return Redactor(secrets)


def next_phase(connection: sqlite3.Connection, spec: RunSpec, attempt: Attempt) -> tuple[int, str] | None:
    """The phase after the attempt's, once the attempt has written the checkpoint that ends its phase, or a
    later one. Raises sqlite3.Error.

    Returns:
        Its number, counted from 1, and the path of the checkpoint to continue from; None before, and in the last phase.
    """
    begun = 0
    if attempt.resumed_from is not None:
        # Names count steps as the profile does; the ledger counts like the metrics, from 0.
        step = explicit_step(PurePath(attempt.resumed_from).name)
        if step is None:
            step = attempt.resumed_step or 0
        begun = step
    number = sum(phase.until is not None and phase.until <= begun for phase in spec.phases)
    if number + 1 >= len(spec.phases) or (phase_end := spec.phases[number].until) is None:
        return None
    endings = [
        (step, row.path)
        for row in checkpoints.of_run(connection, attempt.run_id)
        if row.is_written and row.attempt == attempt.number
        if row.verdict in ("unexamined", "valid")
        for step in (explicit_step(row.name) or row.step,)
        if step is not None and step >= phase_end
    ]
    if not endings:
        return None
    _, first_path = min(endings)
    return number + 2, first_path
