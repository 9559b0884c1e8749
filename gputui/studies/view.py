"""The table of trials as a view of the journal: rows are inserted and ended here as the journal has
them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as State

from gputui.core.yaml_forms.quantities import is_number
from gputui.runs.repository import transaction
from gputui.store.rows import insert, update
from gputui.store.studies import OUTSIDE, TrialReader, TrialRecord, TrialState, read_rungs
from gputui.studies.decide import Ruling
from gputui.studies.journal import VERDICT, StudyJournal
from gputui.studies.rows import note_end, verdict_columns

_STATES = {
    State.WAITING: TrialState.ENQUEUED,
    State.RUNNING: TrialState.RUNNING,
    State.COMPLETE: TrialState.COMPLETE,
    State.PRUNED: TrialState.PRUNED,
    State.FAIL: TrialState.FAILED,
}


class TrialView:
    """Keeps the rows of a study's trials up to date. ``now`` gives UTC unix seconds."""

    def __init__(self, connection: sqlite3.Connection, study_id: str, now: Callable[[], float]) -> None:
        self._connection = connection
        self._study_id = study_id
        self._now = now
        self._reader = TrialReader(connection, study_id)
        self._final: set[int] = set()

    def read(self) -> list[TrialRecord]:
        """The rows of all trials, by number."""
        return self._reader.read()

    def restore(self, journal: StudyJournal) -> None:
        """Give a journal the trials that only the table has, and end what a killed process left
        half done."""
        rows = self.read()
        if len(rows) > len(journal.trials()):
            journal.restore(rows, read_rungs(self._connection, self._study_id))
        journal.follow(rows, with_stopped=False)

    def update(self, journal: StudyJournal, stopped: int | None = None) -> list[TrialRecord]:
        """Bring the rows to what the journal has; returns all. A trial that another process ended is
        over once its run is: the one that is ``stopped``."""
        rows = self.read()
        trials = journal.trials()
        notes = journal.own_notes() if len(trials) > len(rows) else {}
        changes: dict[int, dict[str, Any]] = {}
        for trial in trials:
            row = None
            if trial.number < len(rows):
                row = rows[trial.number]
            if row is None:
                changes[trial.number] = self._new_row(journal, trial, notes.get(trial.number))
            elif trial.number not in self._final:
                changes[trial.number] = self._changed_columns(journal, trial, row, is_stopped=trial.number == stopped)
        changes = {number: values for number, values in changes.items() if _differs(rows, number, values)}
        if not changes:
            return rows
        with transaction(self._connection):
            for number, values in changes.items():
                if number < len(rows):
                    update(self._connection, "trials", {"study_id": self._study_id, "number": number}, **values)
                    if not rows[number].state.is_over and TrialState(values.get("state", "")).is_over:
                        note_end(self._connection, self._study_id, number, self._now())
                else:
                    insert(self._connection, "trials", study_id=self._study_id, number=number, **values)
        return self.read()

    def _changed_columns(
        self, journal: StudyJournal, trial: FrozenTrial, row: TrialRecord, *, is_stopped: bool
    ) -> dict[str, Any]:
        """The columns of a row that follow from the journal; none while there is nothing new."""
        if row.state.is_over and row.state is not TrialState.STOPPED:
            if trial.state.is_finished():
                self._final.add(trial.number)
            return {}
        if row.origin == OUTSIDE:
            return self._outside_row(journal, trial)
        # Without a verdict another process has ended it, whose run must end first.
        has_run = row.state not in (TrialState.ENQUEUED, TrialState.STOPPED) and not is_stopped
        if not trial.state.is_finished() or (VERDICT not in trial.user_attrs and has_run):
            return {}
        return self._end_columns(journal, trial)

    def _new_row(self, journal: StudyJournal, trial: FrozenTrial, note: Mapping[str, Any] | None) -> dict[str, Any]:
        """The row of a trial, with what gputui noted when it made it."""
        if note is None:
            return self._outside_row(journal, trial)
        # The run of an earlier trial may have been removed since.
        run = self._connection.execute("SELECT run_id FROM runs WHERE run_id = ?", (note.get("run"),)).fetchone()
        if trial.state.is_finished():
            ended = self._end_columns(journal, trial)
        else:
            ended = {"state": TrialState.ENQUEUED}
        return {
            "origin": note["origin"],
            "params": json.dumps(trial.params),
            "run_id": None if run is None else run[0],
            "parent": note.get("parent"),
            "created_at": self._now(),
            **ended,
        }

    def _outside_row(self, journal: StudyJournal, trial: FrozenTrial) -> dict[str, Any]:
        started = trial.datetime_start
        params = {name: _plain(value) for name, value in trial.params.items()}
        return {
            "origin": OUTSIDE,
            "params": json.dumps(params),
            "rung": trial.last_step,
            "created_at": self._now() if started is None else started.timestamp(),
            **(self._outside_verdict(journal, trial) if trial.state.is_finished() else {"state": _STATES[trial.state]}),
        }

    def _end_columns(self, journal: StudyJournal, trial: FrozenTrial) -> dict[str, Any]:
        """The columns of one of gputui's trials that is over: its verdict, or what another process told."""
        if VERDICT not in trial.user_attrs:
            return self._outside_verdict(journal, trial)
        verdict = dict(trial.user_attrs[VERDICT])
        at = verdict.pop("at")
        return verdict_columns(msgspec.convert(verdict, Ruling), at)

    def _outside_verdict(self, journal: StudyJournal, trial: FrozenTrial) -> dict[str, Any]:
        """The columns of what another process told of a trial."""
        values = tuple(trial.values or ())
        if trial.state is not State.COMPLETE:
            ruling = Ruling(_STATES[trial.state], "ended by another process")
        elif not values or not all(map(math.isfinite, values)):
            ruling = Ruling(TrialState.FAILED, "another process told a value that is not finite")
        elif not journal.spec.has_point(trial.params):
            ruling = Ruling(TrialState.FAILED, "its point is not one of the study's space")
        else:
            ruling = Ruling(TrialState.COMPLETE, reason=None, values=values)
        complete = trial.datetime_complete
        ended_at = self._now() if complete is None else complete.timestamp()
        return verdict_columns(ruling, ended_at)


def _plain(value: object) -> object:
    """The value if JSON knows it, else as text."""
    if value is None or isinstance(value, str | bool) or is_number(value):
        return value
    return str(value)


def _differs(rows: Sequence[TrialRecord], number: int, values: Mapping[str, Any]) -> bool:
    """Return whether a row would change. The row of a trial that another process runs is made at
    each turn."""
    if number >= len(rows) or not values:
        return bool(values)
    row = rows[number]
    was = {"state": row.state, "rung": row.rung, "params": dict(row.params)}
    now = values
    if "params" in values:
        now = {**values, "params": json.loads(values["params"])}
    return any(now.get(name, value) != value for name, value in was.items())
