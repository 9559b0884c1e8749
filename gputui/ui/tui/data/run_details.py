"""Reading the page of a run: its log, charts, incidents with their costs, and checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.metrics.curves.live_curves import CurveReader
from gputui.metrics.progress import Progress
from gputui.recovery.run_history import Failure, RunHistory
from gputui.runs.code_version import code_words
from gputui.runs.command import sinks_of, watched_checkpoints
from gputui.runs.executors import Executors, hides_checkpoints
from gputui.runs.stored_spec import known_spec
from gputui.store import checkpoints
from gputui.store.events import read_data_events
from gputui.store.metrics import intake
from gputui.store.rows import json_mapping
from gputui.store.runs import Run
from gputui.ui.tui.data.log_tail import LogReader
from gputui.ui.tui.data.machine import StoreReading
from gputui.ui.views.snapshot import Checkpoint, CheckpointList, Interest, LogTail, RunPage

if TYPE_CHECKING:
    from gputui.runs.checkpoint_files import FoundCheckpoint


AFTER_ALL = 1 << 62
"""The order of a file that the ledger does not have yet."""

LIST_SECONDS = 5.0  # checkpoints come minutes apart, and a listing may take a network disk's time
MOST_LISTED = 50  # more than anybody scrolls through

CHECKED_UNASKED_BYTES = 256 * 1024 * 1024
"""Larger checkpoints are checked only on request: the training needs the disk too."""


class LedgerFact(Struct, frozen=True):
    """The ledger's entry of a checkpoint.

    Attributes:
        step: the step that it was saved at; None if unknown.
        attempt: the number of the attempt that saved it; None if unknown.
        refused: why the run will not resume from it; "" if it may.
        order: its position in the order in which all were seen.
        is_contested: whether it is refused because another run may have written it.
    """

    step: int | None
    attempt: int | None
    refused: str
    order: int = 0
    is_contested: bool = False


class CheckpointQuery(NamedTuple):
    """A request for a list of checkpoints.

    Attributes:
        pattern: a glob, or `LEARNED` for the paths of ``facts``.
        to_check: the name of a checkpoint that is checked whatever its size.
        facts: the ledger's entries by path.
    """

    folder: Path
    pattern: str
    to_check: str | None = None
    facts: Mapping[str, LedgerFact] = {}


class CheckpointReader:
    """Lists one run's checkpoints, and checks the newest that the run wrote, in a thread: the folder may be on a slow
    file system. `read` never waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._query: CheckpointQuery | None = None
        self._listed_at = float("-inf")
        self._listing: tuple[Path | None, CheckpointList] = (None, CheckpointList())
        self._checked: dict[FoundCheckpoint, tuple[bool | None, str]] = {}
        self._thread: threading.Thread | None = None

    def read(self, query: CheckpointQuery) -> CheckpointList:
        """The known checkpoints, newest first."""
        now = self._clock()
        is_busy = self._thread is not None and self._thread.is_alive()
        if not is_busy and (query != self._query or now - self._listed_at >= LIST_SECONDS):
            self._query = query
            self._listed_at = now
            self._thread = threading.Thread(target=self._look, args=(query,), name="checkpoints", daemon=True)
            self._thread.start()
        folder, newest = self._listing
        if folder == query.folder:
            return newest
        return CheckpointList()

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    # --- the thread

    def _look(self, query: CheckpointQuery) -> None:
        # Imported on first use: the archive and hash libraries would slow the start.
        from gputui.runs.checkpoint_files import list_checkpoints, measured
        from gputui.runs.checkpoint_formats import validate
        from gputui.runs.learned_checkpoints import LEARNED

        files: list[FoundCheckpoint] = []
        if query.pattern == LEARNED:
            files = [file for path in query.facts if (file := measured(Path(path))) is not None]
        else:
            with suppress(OSError):
                files = list_checkpoints(query.folder, query.pattern)
        orders = {path: fact.order for path, fact in query.facts.items()}
        files.sort(key=lambda file: orders.get(file.path, AFTER_ALL), reverse=True)
        self._show(query, files)
        written = {path for path, fact in query.facts.items() if fact.attempt is not None}
        newest = next((file for file in files if file.path in written), None)
        for file in files[:MOST_LISTED]:
            is_small = file.size_bytes is not None and file.size_bytes <= CHECKED_UNASKED_BYTES
            is_requested = Path(file.path).name == query.to_check
            if (is_requested or (file is newest and is_small)) and file not in self._checked:
                info = validate(Path(file.path))
                is_valid = None if info.is_unreadable else info.valid
                self._checked[file] = (is_valid, clean(info.why))
                self._show(query, files)

    def _show(self, query: CheckpointQuery, files: list[FoundCheckpoint]) -> None:
        from gputui.runs.checkpoint_names import step_in_name

        listed = []
        for file in files[:MOST_LISTED]:
            path = Path(file.path)
            checked = self._checked.get(file, (None, ""))
            step = step_in_name(path, query.folder)
            checkpoint = Checkpoint(clean(path.name), step, file.size_bytes, file.modified_ns / 1e9, *checked)
            if (fact := query.facts.get(file.path)) is not None:
                checkpoint = checkpoint._replace(
                    step=fact.step, attempt=fact.attempt, refused=clean(fact.refused), is_contested=fact.is_contested
                )
            listed.append(checkpoint)
        # A single assignment, because the feed's thread reads it at any time.
        self._listing = (query.folder, CheckpointList(tuple(listed), len(files), is_known=True))


class RunPageReader:
    """Reads the page of one run; its costs only when its incidents have changed."""

    def __init__(self, workspace: Workspace, curves: CurveReader) -> None:
        self.checkpoints = CheckpointReader()
        self._workspace = workspace
        self._curves = curves
        self._log = LogReader()
        self._ledger: tuple[str, Mapping[str, LedgerFact]] = ("", {})
        self._failures: tuple[object, Sequence[Failure]] = (None, ())

    def read(self, reading: StoreReading, run: Run, progress: Progress, metric_names: tuple[str, ...]) -> RunPage:
        """The page of a run with the progress that was read already. Raises sqlite3.Error."""
        connection, interest, now, at = reading
        run_id = run.run_id
        history = RunHistory.read(connection, run, at)
        attempts = tuple(history.attempts)
        if at is None:
            self._ledger = (run_id, _ledger_facts(history))
        listed = self._checkpoints(run, interest)
        log = self._tail(run, interest)
        charts = None
        if interest.charts is not None:
            charts = self._curves.read(connection, run_id, interest.charts, now, at)
        usage = None
        if at is None:
            usage = intake.intake(connection, run_id)
        else:
            from gputui.ui.tui.data.past import past_tail  # most screens never show the past

            ended_at = attempts[-1].ended_at if attempts else None
            log = past_tail(log, at, ended_at)
            gone = [
                Checkpoint(clean(Path(path).name), step, size_bytes, written_at, attempt=attempt, is_gone=True)
                for path, attempt, step, size_bytes, written_at in checkpoints.gone_since(connection, run_id, at)
            ]
            listed = listed and listed.at(at, gone)
        return RunPage(
            run=run,
            launched=launched_params(run),
            progress=progress,
            metric_names=metric_names,
            attempts=attempts,
            failures=tuple(self._failures_of(history)),
            log=log,
            rank_count=_rank_count(run),
            charts=charts,
            checkpoints=listed,
            intake=usage,
            sinks=tuple(sinks_of(run, Path())),
            data_events=tuple(read_data_events(connection, run_id, at)),
        )

    def later(self, page: RunPage, interest: Interest) -> RunPage:
        """The page with a new log and new checkpoints, which are not in the store."""
        return replace(page, log=self._tail(page.run, interest), checkpoints=self._checkpoints(page.run, interest))

    def _checkpoints(self, run: Run, interest: Interest) -> CheckpointList | None:
        """The known checkpoints; None if the run's specification cannot be read."""
        spec = known_spec(run)
        if spec is None:
            return None
        if hides_checkpoints(spec):
            return CheckpointList(is_elsewhere=True)
        run_id, facts = self._ledger
        if run_id != run.run_id:
            facts = {}
        folder, pattern = watched_checkpoints(spec, self._workspace.run_dir(run.run_id))
        return self.checkpoints.read(CheckpointQuery(folder, pattern, interest.checkpoint_to_check, facts))

    def _failures_of(self, history: RunHistory) -> Sequence[Failure]:
        """The failures. Their cost is slow to find among a million lines, and is read when its basis has changed."""
        if not history.incidents:
            return ()
        moves = [
            (attempt.started_at, attempt.first_step, attempt.first_step_at, attempt.ended_at)
            for attempt in history.attempts
        ]
        basis = (history.run.run_id, moves, history.incidents, history.decisions)
        if basis != self._failures[0]:
            self._failures = (basis, history.failures())
        return self._failures[1]

    def _tail(self, run: Run, interest: Interest) -> LogTail:
        directory = self._workspace.run_dir(run.run_id) / "attempts" / str(run.attempt)
        return self._log.read(directory, interest.log_label, deep=interest.is_log_deep or interest.moment is not None)


def _ledger_facts(history: RunHistory) -> Mapping[str, LedgerFact]:
    from gputui.recovery.checkpoints import resumable  # its checks of files would slow the start

    rows = history.checkpoints
    spans = resumable.spans_of(history.run, history.attempts, time.time())
    refusals = {row.path: why for row, why in resumable.refused(rows, spans)}
    facts = {}
    for row in rows:
        attempt = row.attempt if row.is_written else None
        is_contested = row.origin == "contested"
        refusal = refusals.get(row.path, "")
        facts[row.path] = LedgerFact(row.step, attempt, refusal, row.place, is_contested=is_contested)
    return facts


def _rank_count(run: Run) -> int:
    """The number of ranks of the newest attempt; 0 if its specification cannot be read."""
    spec = known_spec(run)
    if spec is None:
        return 0
    if spec.target is None:
        return spec.ranks_on(len(run.gpus))
    return Executors().of(spec.target).placement(spec).ranks


def launched_params(run: Run) -> Mapping[str, object]:
    """The parameters that a run was launched with."""
    params = json_mapping(run.spec_json).get("params")
    if isinstance(params, dict):
        return params
    return {}


def launched_code(run: Run) -> str | None:
    """The code version that a run was launched with, in words; None if unknown."""
    version = code_words(json_mapping(run.spec_json).get("code"))
    if version is None:
        return None
    return clean(version)
