"""Scans of checkpoint folders: before an attempt begins, while it lives, and at its end. Jobs read
the folder; the loop writes the rows."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePath
from sqlite3 import Connection
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import attempt_dir, overlap
from gputui.core.config import Workspace
from gputui.core.files import read_regular
from gputui.metrics.files import fixed_part
from gputui.metrics.trackers import TRACKERS
from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.resumable import AttemptSpan, Rows, attempt_spans
from gputui.recovery.checkpoints.search import CheckpointSearch, surveyed
from gputui.recovery.kinds import kind_of
from gputui.recovery.run_history import training_began_at
from gputui.runs.agent_process import read_identity
from gputui.runs.command import watched_checkpoints
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.repository import transaction
from gputui.runs.shim_records import read_record
from gputui.runs.stored_spec import spec_of
from gputui.runs.submission import write_private
from gputui.store import checkpoints
from gputui.store.attempts import read_attempts
from gputui.store.checkpoints import CheckpointRow, Neighbour
from gputui.store.metrics.losses import failed_at, last_sound_step, unsound_since
from gputui.store.metrics.step_lines import StepLines, up_to_step
from gputui.store.run_history import IncidentView, read_incidents, read_transitions
from gputui.store.runs import Run, get_run

log = logging.getLogger(__name__)

SCAN_SECONDS = 10.0  # checkpoints come every few minutes, and a scan may read many files
# Lines of a remote run without a timestamp get the time of their transfer, which is later by this
# much, or by the pause between two transfers.
FETCHED_SECONDS = 5.0
# A file system that does not answer for this long hangs.
DEADLINE_SECONDS = 60.0
CLAIM_FILE = ".gputui-home"
LEDGER_FILE = "checkpoints.json"
MAX_LEDGER_BYTES = 64 << 20  # some 200 000 checkpoints
TWO_HOMES = "two homes of gputui write in this folder, which is not supported"


class CheckpointScan(NamedTuple):
    """Result of a scan at a time (UTC unix seconds)."""

    search: CheckpointSearch
    rows: Rows
    at: float


class _KeptLedger(Struct):
    """The ledger of a scan (UTC unix seconds) as an attempt's folder keeps it."""

    at: float
    rows: Rows


def search_now(
    context: AgentContext, run: Run, ended_at: float | None = None, *, ended_well: bool = False
) -> CheckpointSearch | None:
    """The input of a scan for the run's checkpoints; None if there can be none, or if only its target sees them.

    Args:
        ended_at: the end of the newest attempt (UTC unix seconds) if its row does not have it yet.
        ended_well: that attempt ended with code 0.
    """
    connection = context.connection
    workspace = context.workspace
    spec = spec_of(run)
    folder, pattern = watched_checkpoints(spec, workspace.run_dir(run.run_id))
    if not context.executors.of(spec.target).sees_checkpoints(spec.target or {}):
        return None
    rows = read_attempts(connection, run.run_id)
    if pattern == LEARNED and not rows:
        return None  # nothing is its own yet
    attempts = attempt_spans(rows, names_metrics=spec.names_metrics, now=context.now())
    writer = None
    neighbours: Sequence[Neighbour] = ()
    since = context.now()
    if attempts:
        *earlier, newest = attempts
        since = checkpoints.scanned_at(connection, run.run_id, newest.number) or newest.begun_at
        # What appeared since the last scan in its life is its own, also after its end.
        if newest.ended_at is None or since < newest.ended_at:
            writer = newest.number
            neighbours = checkpoints.neighbours(connection, run.run_id, since)
        if ended_at is not None:
            attempts = (*earlier, replace(newest, ended_at=ended_at, ended_well=ended_well))
    command_words = map(str, (*run.params.values(), *(spec.args or ())))
    return CheckpointSearch(
        database=workspace.database,
        run_id=run.run_id,
        folder=folder,
        pattern=pattern,
        rows=tuple(checkpoints.of_run(connection, run.run_id, with_gone=True)),
        attempts=attempts,
        writer=writer,
        since=since,
        neighbours=tuple(neighbours),
        command_paths=tuple(dict.fromkeys(command_words)),
        metric_folders=tuple(_metric_folders(connection, run.run_id, neighbours, folder)),
    )


def _metric_folders(
    connection: Connection, run_id: str, neighbours: Iterable[Neighbour], folder: Path
) -> Iterator[str]:
    """The folders below a run's folder in which it alone writes metrics, as those that a library makes for each run.

    None if a neighbour writes metrics nowhere: its files may lie anywhere.
    """
    root = Path(os.path.realpath(folder))
    their_folders: list[Path] = []
    for neighbour in neighbours:
        if overlap(Path(neighbour.folder), root):
            folders = _folders_of_sources(connection, neighbour.run_id, root)
            if not folders:
                return
            their_folders += folders
    for path in _folders_of_sources(connection, run_id, root):
        if not any(overlap(path, folder) for folder in their_folders):
            yield str(path)


def _folders_of_sources(connection: Connection, run_id: str, root: Path) -> set[Path]:
    """The folders below ``root`` of the files in which a run writes metrics."""
    rows = connection.execute("SELECT path, format FROM metric_sources WHERE run_id = ?", (run_id,)).fetchall()
    folders = set()
    for path, kind in rows:
        # A tracker's source may be the folder itself.
        is_folder = kind in TRACKERS and not fnmatch(PurePath(path).name, PurePath(TRACKERS[kind].pattern).name)
        folder = path if is_folder else str(PurePath(path).parent)
        folders.add(fixed_part(folder))
    return {folder for folder in folders if folder != root and folder.is_relative_to(root)}


def write_ledger(connection: Connection, search: CheckpointSearch, rows: Sequence[CheckpointRow]) -> None:
    """Store the changed rows of the ledger in the caller's transaction."""
    checkpoints.save(connection, search.run_id, search.rows, rows)


def attempt_begins(connection: Connection, run: Run, number: int, folder: Path, attempt_folder: Path) -> None:
    """Record in the ledger that an attempt begins from ``run.resume_from``: what is in it lay there
    before. Works inside the caller's transaction, after the attempt's row was written."""
    before = tuple(checkpoints.of_run(connection, run.run_id, with_gone=True))
    rows = read_attempts(connection, run.run_id)
    now = rows[-1].created_at
    spans = attempt_spans(rows, names_metrics=spec_of(run).names_metrics, now=now)
    earlier = tuple(span for span in spans if span.number < number)
    checkpoints.note_scan(connection, run.run_id, number, str(folder), now)
    after = ledger.attempt_begins(before, earlier, number, run.resume_from)
    checkpoints.save(connection, run.run_id, before, after)
    keep(attempt_folder, after, now)


def attempt_ended(
    connection: Connection, search: CheckpointSearch, rows: Rows, attempt_folder: Path, *, is_seen: bool, now: float
) -> None:
    """Store the ledger at the end of an attempt, in the caller's transaction. Unless its checkpoints
    were seen, the next scan finds what it left."""
    write_ledger(connection, search, rows)
    newest = search.attempts[-1]
    if is_seen:
        at = max(now, newest.ended_at or now)
        checkpoints.note_scan(connection, search.run_id, newest.number, str(search.folder), at)
        keep(attempt_folder, rows, at)


def keep(attempt_folder: Path, rows: Rows, at: float) -> None:
    """Keep the ledger of a scan (UTC unix seconds) in an attempt's folder too, from which it is
    read back if the database is lost or restored."""
    try:
        write_private(attempt_folder / LEDGER_FILE, {"at": at, "rows": msgspec.to_builtins(rows)})
    except OSError as error:
        log.warning("%s cannot be written: %s", attempt_folder / LEDGER_FILE, error)


def restore(connection: Connection, run_id: str, run_dir: Path) -> None:
    """Replace the stored ledger by the one that the newest attempt of a run kept, if one can be read, in the
    caller's transaction."""
    files = [path for path in run_dir.glob(f"attempts/*/{LEDGER_FILE}") if path.parent.name.isdigit()]
    for file in sorted(files, key=lambda path: int(path.parent.name), reverse=True):
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            stored = msgspec.json.decode(read_regular(file, MAX_LEDGER_BYTES), type=_KeptLedger)
            connection.execute("DELETE FROM checkpoints WHERE run_id = ?", (run_id,))
            checkpoints.save(connection, run_id, (), stored.rows)
            checkpoints.note_scan(connection, run_id, int(file.parent.name), folder=None, at=stored.at)
            return


def attempts_to_resume(connection: Connection, workspace: Workspace, run: Run) -> list[dict[str, Any]]:
    """The attempts whose checkpoints the next attempt may resume from, if only its target sees the
    checkpoints; none if it begins from the start or from a named checkpoint.

    See `gputui.runs.executors.remote_checkpoints.resume_plan`.
    """
    if run.resume_from is not None:
        return []
    run_id = run.run_id
    lines = StepLines(connection, run.run_id)
    # Attempts before a start from scratch belong to another training.
    since = training_began_at(read_transitions(connection, run_id))
    attempts = [row for row in read_attempts(connection, run_id) if row.created_at >= since]
    incidents = {row.attempt: row for row in read_incidents(connection, run_id)}
    late = max(FETCHED_SECONDS, (spec_of(run).target or {}).get("poll", 0.0))
    lineage: list[dict[str, Any]] = []
    was_ever_sound = any(last_sound_step(lines, row.number) is not None for row in attempts)
    for span in attempt_spans(attempts, names_metrics=spec_of(run).names_metrics, now=0.0):
        incident = incidents.get(span.number)
        limit = None
        if was_ever_sound:
            limit = _sound_until(lines, span, incident, late)
        base = _named_checkpoint(attempt_dir(workspace, run_id, span.number))
        if base is not None:
            lineage.clear()  # it was named instead of all checkpoints written so far
        may_be_checkpoint = incident is not None and kind_of(incident.kind).may_be_checkpoint
        failed = may_be_checkpoint and not span.has_worked
        lineage.append({"attempt": span.number, "until": limit, "failed": failed, "base": base})
    return lineage


def _named_checkpoint(folder: Path) -> str | None:
    """The checkpoint that a person named for an attempt, by its attempt.json, which does not have the target's own
    choice."""
    plan = read_record(folder / "attempt.json") or {}
    path = plan.get("resume_from")
    if isinstance(path, str):
        return path
    return None


def _sound_until(lines: StepLines, span: AttemptSpan, incident: IncidentView | None, late: float) -> float | None:
    """Until when an attempt's numbers were sound, on the target's clock (UTC unix seconds); None if they were to its
    end.

    Args:
        late: how much later than written a line may arrive here, in seconds.
    """
    if (unsound := unsound_since(lines, span.number)) is not None:
        return unsound.at - late
    if incident is None or kind_of(incident.kind).fault != "training":
        return None
    if incident.step is None:
        return span.begun_at
    # The last time at which its numbers were sound before they went wrong at a step.
    at = failed_at(lines, span.number, incident.step)
    if at is None and (line := lines.newest(span.number, up_to_step(incident.step - 1))) is not None:
        at = line.at
    if at is None:
        return span.begun_at
    return at - late


def claim(folder: Path, home: Path) -> None:
    """Name the home in a folder outside of it. Raises OSError if the folder names another home,
    whose agent is alive."""
    if not folder.is_dir() or folder.is_relative_to(home):
        return
    marker = folder / CLAIM_FILE
    if marker.exists():
        other_home = Path(os.fsdecode(marker.read_bytes()))
        if other_home == home:
            return
        if read_identity(Workspace(profiles=other_home, state=other_home)) is not None:
            raise OSError(f"{TWO_HOMES}: {other_home} does too, by {marker}")
    with suppress(OSError):  # another user's folder
        marker.write_bytes(os.fsencode(home))


def scan(search: CheckpointSearch, now: float) -> CheckpointScan:
    """Scan the folder of an attempt at ``now`` (UTC unix seconds). Raises what `surveyed`
    raises."""
    if search.pattern != LEARNED:  # a working directory is not the run's alone
        claim(search.real_folder, search.home)
    return CheckpointScan(search, surveyed(search, lambda: now), now)


def store_scan(connection: Connection, number: int, folder_scan: CheckpointScan) -> None:
    """Store what a scan saw in the life of the attempt of this number, in the caller's transaction."""
    search = folder_scan.search
    checkpoints.note_scan(connection, search.run_id, number, str(search.real_folder), folder_scan.at)
    write_ledger(connection, search, folder_scan.rows)


@dataclass(slots=True)
class _Watch:
    """The scans for one attempt's checkpoints.

    ``due_at`` is when the next one is due (monotonic), ``job`` the one that runs.
    """

    due_at: float = -math.inf
    job: Job[CheckpointScan] | None = None
    is_reported: bool = False


@dataclass(slots=True)
class CheckpointSurveys:
    """Scans the checkpoint folders of all live attempts, in one job per run.

    ``on_scan`` is called with the run of each scan.
    """

    context: AgentContext
    on_scan: Callable[[str], None] = lambda _run_id: None
    _watches: dict[tuple[str, int], _Watch] = field(default_factory=dict)

    def scan_soon(self, run_id: str, number: int) -> None:
        """Scan for an attempt's checkpoints in the next turn."""
        self._watches.setdefault((run_id, number), _Watch()).due_at = -math.inf

    def poll(self, living: Collection[LiveAttempt]) -> None:
        """Store finished scans and start those that are due, the longest waiting first, until the
        turn is spent. Raises sqlite3.Error."""
        now = self.context.monotonic()
        before = self._watches
        keys = [(attempt.record.run_id, attempt.record.number) for attempt in living]
        self._watches = {key: before.get(key) or _Watch() for key in keys}
        for run_id, number in sorted(self._watches, key=lambda key: self._watches[key].due_at):
            watch = self._watches[run_id, number]
            if now < watch.due_at:
                break
            self._scan(watch, run_id, number)
            if self.context.budget.is_spent():
                break

    def _scan(self, watch: _Watch, run_id: str, number: int) -> None:
        context = self.context
        if watch.job is None:
            # First: a run whose search cannot be made must not keep the others waiting.
            due_at = watch.due_at
            watch.due_at = context.monotonic() + SCAN_SECONDS
            run = get_run(context.connection, run_id)
            if run is None:
                return
            search = search_now(context, run)
            if search is None:
                return
            watch.due_at = due_at
            name = f"looking into {search.folder}"
            work = partial(scan, search, context.now())
            watch.job = context.jobs.start(name, work, deadline_seconds=DEADLINE_SECONDS)
        if not watch.job.is_over:
            return
        job = watch.job
        watch.job = None
        watch.due_at = context.monotonic() + SCAN_SECONDS
        try:
            folder_scan = job.result()
        except Exception as error:
            text = f"its checkpoints cannot be looked for: {error}"
            if not watch.is_reported:
                watch.is_reported = True
                context.note("checkpoints_unreadable", text, run_id, severity="warning")
            return
        watch.is_reported = False
        with transaction(context.connection) as connection:
            store_scan(connection, number, folder_scan)
        self.on_scan(run_id)
