"""Reading studies for the overview and for their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sqlite3 import Connection

from gputui.store import studies
from gputui.store.runs import Run
from gputui.store.studies import StudyRecord, StudyState, TrialState
from gputui.studies.analysis import best_trial
from gputui.studies.results import StudyResults, read_results
from gputui.studies.spec import study_spec
from gputui.ui.views.snapshot import StudyRow

ROWS_KEPT = 2
"""Most studies on the overview."""


class StudyReader:
    """Reads studies; the rows of those that have ended only once."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, StudyState, float | None], StudyRow] = {}

    def overview(
        self, store: Connection, runs: Sequence[Run], at: float | None = None
    ) -> tuple[tuple[StudyRow, ...], Mapping[str, StudyState]]:
        """The newest active studies with their progress, and the states of all by their ids. Raises sqlite3.Error."""
        records = studies.read_studies(store, at)
        active = [study for study in records if not study.state.is_over][:ROWS_KEPT]
        states = {study.study_id: study.state for study in records}
        return tuple(self._row(store, study, runs, at) for study in active), states

    def page(
        self, store: Connection, study_id: str | None, runs: Sequence[Run], now: float, at: float | None = None
    ) -> tuple[StudyResults | None, tuple[StudyRow, ...]]:
        """A study, the newest for None, and the rows of all studies. Raises sqlite3.Error."""
        records = studies.read_studies(store, at)
        rows = tuple(self._row(store, record, runs, at) for record in records)
        study = next((record for record in records if study_id in (None, record.study_id)), None)
        if study is None:
            return None, rows
        return read_results(store, study, now, at), rows

    def _row(self, store: Connection, study: StudyRecord, runs: Sequence[Run], at: float | None) -> StudyRow:
        key = (study.study_id, study.state, study.ended_at)
        if key in self._ended:
            return self._ended[key]
        spec = study_spec(study)
        trials = studies.read_trials(store, study.study_id, at)
        # A trial runs from its launch on, though its run may wait in the queue.
        queued = {run.run_id for run in runs if run.state == "queued"}
        begun = [trial.run_id in queued for trial in trials if trial.state is TrialState.RUNNING]
        planned = spec.wanted_trials
        if planned is not None:
            # Points that a person added, reruns and earlier runs count beyond the budget.
            planned = max(planned, len(trials))
        value = None
        number = None
        best = best_trial(trials, spec.objectives)
        if best is not None:
            value = best.value
            number = best.number
        row = StudyRow(
            study.study_id,
            study.state,
            over=sum(trial.state.is_over for trial in trials),
            running=begun.count(False),
            queued=begun.count(True),
            planned=planned,
            metric=spec.objectives[0].metric,
            best=value,
            best_number=number,
        )
        if study.state.is_over:
            self._ended[key] = row
        return row
