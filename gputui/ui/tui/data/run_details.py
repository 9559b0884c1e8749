"""Reading the page of a run: its log, charts, incidents with their costs, and checkpoints."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.metrics.curves.live_curves import CurveReader
from gputui.metrics.progress import Progress
from gputui.recovery.costs import Cost
from gputui.recovery.run_history import RunHistory
from gputui.runs.code_version import code_words
from gputui.runs.command import sinks_of, watched_checkpoints
from gputui.runs.executors import Executors, hides_checkpoints
from gputui.runs.stored_spec import known_spec
from gputui.store import checkpoints
from gputui.store.events import read_data_events
from gputui.store.metrics import intake
from gputui.store.rows import json_mapping
from gputui.store.runs import Run
from gputui.ui.tui.data.checkpoints import CheckpointQuery, CheckpointReader, LedgerFact
from gputui.ui.tui.data.log_tail import LogReader
from gputui.ui.views.snapshot import Checkpoint, CheckpointList, LogTail, RunPage

if TYPE_CHECKING:
    from gputui.ui.views.snapshot import Interest


class RunPageReader:
    def __init__(self, workspace: Workspace, curves: CurveReader) -> None:
        self.checkpoints = CheckpointReader()
        self._workspace = workspace
        self._curves = curves
        self._log = LogReader()
        self._ledger: tuple[str, Mapping[str, LedgerFact]] = ("", {})
        self._costs: tuple[object, Mapping[int, Cost]] = (None, {})

    def read(
        self,
        connection: sqlite3.Connection,
        run: Run,
        progress: Progress,
        metric_names: tuple[str, ...],
        interest: Interest,
        now: float,
        at: float | None = None,
    ) -> RunPage:
        """The page now, or at the past moment ``at`` (UTC unix seconds). Raises sqlite3.Error."""
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
        costs: Mapping[int, Cost] = {}
        if history.incidents:
            # Among a million lines that is slow, and done when one of these has changed.
            moves = [
                (attempt.started_at, attempt.first_step, attempt.first_step_at, attempt.ended_at)
                for attempt in attempts
            ]
            basis = (run_id, moves, history.incidents, history.decisions)
            if basis != self._costs[0]:
                self._costs = (basis, history.costs())
            costs = self._costs[1]
        return RunPage(
            run=run,
            launched=launched_params(run),
            progress=progress,
            metric_names=metric_names,
            attempts=attempts,
            incidents=tuple(history.incidents),
            decisions=tuple(history.decisions),
            log=log,
            rank_count=_rank_count(run),
            charts=charts,
            costs=costs,
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

    def _tail(self, run: Run, interest: Interest) -> LogTail:
        directory = self._workspace.run_dir(run.run_id) / "attempts" / str(run.attempt)
        return self._log.read(directory, interest.log_label, deep=interest.is_log_deep or interest.moment is not None)


def _ledger_facts(history: RunHistory) -> Mapping[str, LedgerFact]:
    from gputui.recovery.checkpoints import attempt_spans, resumable  # its checks of files would slow the start

    rows = history.checkpoints
    spans = attempt_spans.spans_of(history.run, history.attempts, time.time())
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
