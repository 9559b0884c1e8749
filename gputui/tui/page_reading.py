"""What a run's page explains beside its charts: what each incident cost, and which checkpoints there are."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from gputui.config import Workspace
from gputui.recovery.cost import Cost, costs
from gputui.runs.places import checkpoint_directory, sinks_of
from gputui.runs.spec import RunSpec, SpecError
from gputui.store import queries
from gputui.store.step_times import StepTimes
from gputui.store.views import AttemptView, DecisionView, EventView, IncidentView, RunView
from gputui.tui.checkpoint_list import CheckpointReader
from gputui.tui.snapshot import CheckpointList


class StoryReader:
    """The incidents and decisions of the run whose page is open. Rows are only ever added, and a decision with its
    outcome stays as it is: what was read is kept, and the rest of the table is read on."""

    def __init__(self) -> None:
        self._run: object = None
        self._incidents: tuple[IncidentView, ...] = ()
        self._decisions: tuple[DecisionView, ...] = ()

    def read(
        self, connection: sqlite3.Connection, run: RunView
    ) -> tuple[tuple[IncidentView, ...], tuple[DecisionView, ...]]:
        """All of them, oldest first. Raises sqlite3.Error."""
        if (run.run_id, run.created_at) != self._run:
            self._run = (run.run_id, run.created_at)
            self._incidents, self._decisions = (), ()
        last = self._incidents[-1].incident_id if self._incidents else 0
        self._incidents += tuple(queries.incidents(connection, run.run_id, after_id=last))
        settled = next((place for place, each in enumerate(self._decisions) if each.outcome is None),
                       len(self._decisions))  # fmt: skip
        kept = self._decisions[:settled]
        last = kept[-1].decision_id if kept else 0
        self._decisions = (*kept, *queries.decisions(connection, run.run_id, after_id=last))
        return self._incidents, self._decisions


class SinkReader:
    """The sinks of the run whose page is open, and what was said of them."""

    def __init__(self) -> None:
        self._run: object = None
        self._names: tuple[str, ...] = ()
        self._events: tuple[EventView, ...] = ()
        self._seen_id = 0

    def read(self, connection: sqlite3.Connection, run: RunView) -> tuple[tuple[str, ...], tuple[EventView, ...]]:
        """Names, and all that was said, oldest first. Raises sqlite3.Error."""
        if (run.run_id, run.created_at) != self._run:
            self._run = (run.run_id, run.created_at)
            self._names, self._events, self._seen_id = sink_names(run), (), 0
        if self._names:
            newest = queries.newest_event_id(connection, run.run_id)
            self._events += tuple(queries.sink_events(connection, run.run_id, after_id=self._seen_id))
            self._seen_id = newest
        return self._names, self._events


class IncidentCostReader:
    """The cost of each incident of one run, worked out again when an attempt began, did its first step or ended."""

    def __init__(self) -> None:
        self._basis: object = None
        self._costs: Mapping[int, Cost] = {}

    def read(
        self,
        connection: sqlite3.Connection,
        run_id: str,
        attempts: Sequence[AttemptView],
        incidents: Sequence[IncidentView],
        decisions: Sequence[DecisionView],
    ) -> Mapping[int, Cost]:
        """Costs by incident. Raises sqlite3.Error."""
        if not incidents:
            return {}
        moves = tuple((each.number, each.first_step, each.first_step_at, each.ended_at) for each in attempts)
        basis = (run_id, moves, len(incidents), len(decisions))
        if basis != self._basis:
            self._costs = costs(attempts, incidents, decisions, StepTimes(connection, run_id))
            self._basis = basis
        return self._costs


class RunCheckpoints:
    """The checkpoints of the run whose page is open."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._reader = CheckpointReader()
        self._spec_json = ""
        self._place: tuple[Path, str] | None = None

    def read(self, run: RunView, to_check: str | None) -> CheckpointList | None:
        """What is known of them; None for a run whose profile names no place for any."""
        if run.spec_json != self._spec_json:
            self._spec_json, self._place = run.spec_json, self._find(run)
        return None if self._place is None else self._reader.read(*self._place, to_check)

    def wait(self, seconds: float) -> None:
        """Wait until the look under way is over."""
        self._reader.wait(seconds)

    def _find(self, run: RunView) -> tuple[Path, str] | None:
        try:
            spec = RunSpec.from_json(json.loads(run.spec_json))
            folder = checkpoint_directory(spec, self._workspace.run_dir(run.run_id))
        except (SpecError, ValueError):
            return None
        return None if folder is None or spec.checkpoints is None else (folder, spec.checkpoints.pattern)


def launched_params(run: RunView) -> Mapping[str, object]:
    """The parameters of the launch, from the stored specification."""
    try:
        params = json.loads(run.spec_json).get("params")
    except (ValueError, AttributeError):
        return {}
    return params if isinstance(params, dict) else {}


def sink_names(run: RunView) -> tuple[str, ...]:
    """The forms in which the run's metrics also go elsewhere."""
    return tuple(sinks_of(run.spec_json, run.run_id, Path()))
