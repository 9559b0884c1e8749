"""Reading the page of a run: its log, charts, incidents with their costs, and checkpoints."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.recovery.costs import Cost, costs
from gputui.runs.code_version import code_words
from gputui.runs.command import checkpoint_directory, sinks_of
from gputui.runs.executors import chooses_start
from gputui.runs.spec import known_spec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.events import EventView, newest_event_id, read_data_events
from gputui.store.metrics import intake
from gputui.store.metrics.step_times import StepTimes
from gputui.store.rows import json_mapping
from gputui.store.run_history import DecisionView, IncidentView, read_decisions, read_incidents
from gputui.store.runs import Run
from gputui.ui.tui.data.checkpoints import CheckpointReader, Facts, LedgerFact
from gputui.ui.tui.data.curves import CurveReader
from gputui.ui.tui.data.log_tail import LogReader
from gputui.ui.tui.data.snapshot import Checkpoint, CheckpointList, LogTail, Progress, RunPage

if TYPE_CHECKING:
    from gputui.ui.tui.data.snapshot import Interest


class RunStory(NamedTuple):
    """What happened to a run: incidents with decisions and costs, sinks, events of DATA_KINDS."""

    incidents: tuple[IncidentView, ...] = ()
    decisions: tuple[DecisionView, ...] = ()
    costs: Mapping[int, Cost] = MappingProxyType({})
    sinks: tuple[str, ...] = ()
    events: tuple[EventView, ...] = ()


class StoryReader:
    """Reads the story of a run, again when an event is added or an attempt starts, makes its first step or ends."""

    def __init__(self) -> None:
        self._basis: object = None
        self._story = RunStory()

    def read(self, connection: sqlite3.Connection, run: Run, attempts: Sequence[Attempt], at: float | None) -> RunStory:
        """The story until ``at`` (UTC; None is now), oldest first. Raises sqlite3.Error."""
        moves = [
            (each.number, each.started_at, each.first_step, each.first_step_at, each.ended_at) for each in attempts
        ]
        basis = (run.run_id, run.created_at, newest_event_id(connection, run.run_id), moves, at)
        if basis == self._basis:
            return self._story
        incidents = tuple(read_incidents(connection, run.run_id, at))
        decisions = tuple(read_decisions(connection, run.run_id, at))
        costs_: Mapping[int, Cost] = {}
        if incidents:
            is_chosen_there = chooses_start(known_spec(run))
            steps = StepTimes(connection, run.run_id)
            costs_ = costs(attempts, incidents, decisions, steps, start_is_chosen_there=is_chosen_there)
        events = tuple(read_data_events(connection, run.run_id, at))
        self._basis, self._story = basis, RunStory(incidents, decisions, costs_, tuple(sinks_of(run, Path())), events)
        return self._story


class RunCheckpoints:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._reader = CheckpointReader()
        self._facts: tuple[str, Facts] = ("", {})

    def note_ledger(self, connection: sqlite3.Connection, run: Run, attempts: Sequence[Attempt]) -> None:
        """Read the ledger of the run's checkpoints. Raises sqlite3.Error."""
        from gputui.recovery.checkpoints import attempt_spans, resumable  # its checks of files would slow the start

        rows = checkpoints.of_run(connection, run.run_id)
        known = attempt_spans.spans_of(run, attempts, time.time())
        refused = {row.path: why for row, why in resumable.refused(rows, known)}
        facts = {
            row.path: LedgerFact(row.step, row.attempt if row.is_written else None, refused.get(row.path, ""), row.seen)
            for row in rows
        }
        self._facts = (run.run_id, facts)

    def read(self, run: Run, to_check: str | None) -> CheckpointList | None:
        """The known checkpoints; None if the run's profile names no place for them."""
        spec = known_spec(run)
        folder = None if spec is None else checkpoint_directory(spec, self._workspace.run_dir(run.run_id))
        if folder is None or spec is None or not spec.checkpoints:
            return None
        if chooses_start(spec):
            return CheckpointList(is_elsewhere=True)
        facts = self._facts[1] if self._facts[0] == run.run_id else {}
        return self._reader.read(folder, spec.checkpoints.pattern, to_check, facts)

    def wait(self, seconds: float) -> None:
        self._reader.wait(seconds)


class RunPageReader:
    def __init__(self, workspace: Workspace, curves: CurveReader) -> None:
        self.checkpoints = RunCheckpoints(workspace)
        self._workspace = workspace
        self._curves = curves
        self._log = LogReader()
        self._story = StoryReader()

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
        attempts = tuple(read_attempts(connection, run.run_id, at))
        story = self._story.read(connection, run, attempts, at)
        if at is None:
            self.checkpoints.note_ledger(connection, run, attempts)
        listed = self.checkpoints.read(run, interest.checkpoint_to_check)
        if at is not None and listed is not None:
            gone = [
                Checkpoint(clean(Path(path).name), step, size_bytes, written_at, attempt=attempt, is_gone=True)
                for path, attempt, step, size_bytes, written_at in checkpoints.former(connection, run.run_id, at)
            ]
            listed = listed.at(at, gone)
        log, request = self.log(run, interest), interest.charts
        if at is not None:
            from gputui.ui.tui.data.past import past_tail  # most screens never show the past

            log = past_tail(log, at, attempts[-1].ended_at if attempts else None)
        return RunPage(
            run=run,
            launched=launched_params(run),
            progress=progress,
            metric_names=metric_names,
            attempts=attempts,
            incidents=story.incidents,
            decisions=story.decisions,
            log=log,
            charts=None if request is None else self._curves.read(connection, run.run_id, request, now, at),
            costs=story.costs,
            checkpoints=listed,
            intake=intake.intake(connection, run.run_id) if at is None else None,
            sinks=story.sinks,
            data_events=story.events,
        )

    def later(self, page: RunPage, interest: Interest) -> RunPage:
        """The page with a new log and new checkpoints, which are not in the store."""
        checkpoints = self.checkpoints.read(page.run, interest.checkpoint_to_check)
        return replace(page, log=self.log(page.run, interest), checkpoints=checkpoints)

    def log(self, run: Run, interest: Interest) -> LogTail:
        directory = self._workspace.run_dir(run.run_id) / "attempts" / str(run.attempt)
        return self._log.read(directory, interest.log_label, deep=interest.is_log_deep or interest.moment is not None)


def launched_params(run: Run) -> Mapping[str, object]:
    """The parameters that a run was launched with."""
    params = json_mapping(run.spec_json).get("params")
    return params if isinstance(params, dict) else {}


def launched_code(run: Run) -> str | None:
    """The code version that a run was launched with, in words; None if unknown."""
    words = code_words(json_mapping(run.spec_json).get("code"))
    return None if words is None else clean(words)
