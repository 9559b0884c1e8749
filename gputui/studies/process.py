"""The process of one study: it decides, and writes trials together with the commands that carry
them out.

It is crash-only. What is decided about a trial is first written to Optuna's journal
(`gputui.studies.journal`); the rows that others read follow from it (`gputui.studies.view`) at each
turn. The agent starts the process, and restarts it after a crash.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gputui.core.config import Workspace
from gputui.runs.repository import fitting_name, transaction
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.stored_spec import spec_of
from gputui.runs.submission import read_spec, write_ticket
from gputui.store import commands
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from gputui.store.studies import (
    OUTSIDE,
    StudyRecord,
    StudyState,
    TrialRecord,
    TrialState,
    get_study,
    read_rungs,
    study_gpu_hours,
    study_wall_seconds,
)
from gputui.studies import decide, pbt, rows
from gputui.studies.decide import Ruling, RunEnd, Usage, Verb
from gputui.studies.failures import common_failure
from gputui.studies.importances import evaluate_importances
from gputui.studies.journal import StudyJournal
from gputui.studies.journal_file import open_storage
from gputui.studies.population import LINEAGE, Population
from gputui.studies.rows import StudyWriter
from gputui.studies.run_queries import (
    ObjectiveReader,
    constraint_values,
    objective_values,
    run_end,
    trial_slots,
    warm_trials,
)
from gputui.studies.rungs import ObjectiveCurve, PassedRung, pruning_reason, rungs_passed
from gputui.studies.spec import PbtSpec, StudySpec, missing_library, study_spec
from gputui.studies.view import TrialView

WITHOUT_DONOR_SECONDS = 60.0
"""How long the members of a population may lack a checkpoint to continue from before the study
pauses. The agent looks for checkpoints every ten seconds."""

MAX_LAUNCHES = 2
"""Refused launches of a trial before the study pauses."""


class StudyProcess:
    """The work of one study. ``connection`` may write; ``now`` gives UTC unix seconds."""

    def __init__(
        self, workspace: Workspace, connection: sqlite3.Connection, study_id: str, now: Callable[[], float]
    ) -> None:
        self.workspace = workspace
        self.connection = connection
        self.study_id = study_id
        self.now = now
        self.writer = StudyWriter(workspace, connection, study_id, now)
        self.curves = ObjectiveReader(connection)
        self.view = TrialView(connection, study_id, now)
        self.spec: StudySpec | None = None
        self._base: RunSpec | None = None
        self._spec_json = ""
        self._opened: StudyJournal | None = None
        self._without_donor_since: float | None = None
        self._weighed = 0  # complete trials behind the stored importances

    def turn(self) -> bool:
        """Do everything that is due. Returns whether the study still needs a process.

        Raises sqlite3.Error, OSError and errors of Optuna; another process then continues from
        journal and store.
        """
        study = get_study(self.connection, self.study_id)
        if study is None or study.state.is_over:
            return False
        if study.spec_json != self._spec_json:
            self.spec = study_spec(study)
            self._spec_json = study.spec_json
        spec = self.spec
        assert spec is not None
        if study.state is StudyState.RUNNING and (problem := missing_library(spec) or self._base_problem()) is not None:
            self.writer.move(study, StudyState.PAUSED, f"{problem}, then gputui study resume {self.study_id}")
            return True
        if study.state is StudyState.STOPPING:
            return self._stop(study, spec)
        trials = self._sync_rows(study, spec)
        ended_outside = [
            trial for trial in decide.active_trials(trials) if self.journal.has_outside_value(trial.number)
        ]
        if ended_outside:
            self._stop_trials(ended_outside, "another process told its value", self._end)
            trials = self.view.read()
        for trial in decide.active_trials(trials):
            self._follow(study, spec, trial)
        study = get_study(self.connection, self.study_id)
        assert study is not None
        trials = self.view.read()
        living = decide.active_trials(trials)
        if study.state is StudyState.RUNNING:
            return self._advance(study, spec, trials, living)
        return study.state is StudyState.STOPPING or (bool(living) and not study.state.is_over)

    def _stop(self, study: StudyRecord, spec: StudySpec) -> bool:
        """Stop all trials, then the study, by the table alone: whatever the journal holds, it can be
        stopped. Returns whether the study still needs a process."""
        begun = [trial for trial in decide.active_trials(self.view.read()) if trial.state is not TrialState.LAUNCHING]
        for trial in begun:
            end = run_end(self.connection, trial.run_id)
            self._repeat_refused_stop(trial, end)
            if end is not None:
                # A person may have cut it short since it was read.
                verdict = self._verdict(spec, self.view.read()[trial.number], end)
                if verdict.again is not None:
                    verdict = Ruling(TrialState.STOPPED, end.reason)
                self.writer.end_open(trial, verdict)
        living = decide.active_trials(self.view.read())
        reason = study.reason or "the study was stopped"
        self._stop_trials(living, reason, self.writer.end_open)
        if living:
            return True
        # The next process that needs the journal says what is wrong with it.
        with suppress(Exception):
            self.journal.follow(self.view.update(self.journal), with_stopped=False)
        return not self.writer.move(study, StudyState.STOPPED, reason)

    @property
    def journal(self) -> StudyJournal:
        """The study in Optuna."""
        if self._opened is None:
            assert self.spec is not None
            storage = open_storage(self.workspace.studies / self.study_id, self.writer.warn)
            self._opened = StudyJournal(self.spec, self.study_id, storage)
            self.view.restore(self._opened)
        return self._opened

    def _sync_rows(self, study: StudyRecord, spec: StudySpec) -> list[TrialRecord]:
        """Put what was asked for into the journal, and bring the rows to what the journal has;
        returns them."""
        requests = rows.enqueued_points(self.connection, self.study_id)
        notes = list(self.journal.own_notes().values())
        for request_id, params in requests:
            if request_id not in [note.get("request") for note in notes]:
                self.journal.add(params, "enqueued", request=request_id)
        if study.state is StudyState.RUNNING:
            self._add_warm_trials(spec, notes)
            self.journal.follow(self.view.read(), with_stopped=True)
        trials = self.view.update(self.journal)
        if requests:
            done = json.dumps([request_id for request_id, _ in requests])
            query = "DELETE FROM trial_requests WHERE request_id IN (SELECT value FROM json_each(?))"
            self.connection.execute(query, (done,))
        complete = sum(trial.state is TrialState.COMPLETE for trial in trials)
        if complete != self._weighed:
            self._weighed = complete
            rows.set_importances(self.connection, self.study_id, evaluate_importances(trials, spec))
        return trials

    def _add_warm_trials(self, spec: StudySpec, notes: Sequence[Mapping[str, Any]]) -> None:
        """Add earlier runs until a first point has been drawn. ``notes`` is what gputui noted with each
        of its trials."""
        warm = [note.get("run") for note in notes if note["origin"] == "warm"]
        if len(warm) >= spec.warm_start or any(note["origin"] == "sampled" for note in notes):
            return
        for trial in warm_trials(self.connection, spec, self.study_id):
            if trial.run_id not in warm:
                ended_at = max(trial.ended_at, self.now())
                self.journal.add(trial.params, "warm", values=trial.values, ended_at=ended_at, run=trial.run_id)

    def _base_problem(self) -> str | None:
        """The reason why the specification of the runs cannot be read, and the remedy; None if it
        can."""
        if self._base is None:
            try:
                self._base = read_spec(self.workspace.studies / self.study_id / rows.SPEC_FILE)
            except SpecError as error:
                return f"{error}; put it back"
        return None

    def _population(self) -> Population:
        return Population(self.writer, self.curves, self.journal)

    # --- one trial ------------------------------------------------------------------------------------------------

    def _follow(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord) -> None:
        if trial.state is TrialState.LAUNCHING:
            self._follow_launch(study, spec, trial)
            return
        # Read the end before the metrics: a run that has ended has then reported everything.
        end = run_end(self.connection, trial.run_id)
        if end is not None:
            # A person may have cut it short since it was read.
            trial = self.view.read()[trial.number]
        self._repeat_refused_stop(trial, end)
        if trial.run_id is not None and spec.pbt is not None:
            self._population().read_milestones(spec, spec.pbt, trial)
        elif trial.run_id is not None:
            self._read_metrics(spec, trial, is_going=end is None)
        if end is not None and "exploit" in trial.population and end.state is not RunState.SUCCEEDED:
            self._population().continue_from_donor(trial)
        elif end is not None:
            self._end_trial(study, spec, trial, end)

    def _repeat_refused_stop(self, trial: TrialRecord, end: RunEnd | None) -> None:
        """Ask again for a stop that the agent refused, for instance because the disk was full."""
        if end is None and trial.state is not TrialState.RUNNING and self.writer.is_refused(trial.command_id):
            with transaction(self.connection):
                self.writer.ask_stop(trial, trial.reason or "")

    def _follow_launch(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord) -> None:
        """React to the agent's answer to the command that starts the trial's run."""
        if trial.command_id is None:
            return
        answer = commands.answer(self.connection, trial.command_id)
        if answer is None:
            return
        # A person may have started it again meanwhile.
        if answer.state == "done" or (trial.run_id is not None and run_end(self.connection, trial.run_id) is None):
            with transaction(self.connection):
                self.writer.set_trial(trial, state=TrialState.RUNNING)
        elif answer.refusal == commands.NO_CHECKPOINT and LINEAGE in trial.population:
            self._population().continue_from_own(trial)
        elif answer.refusal == commands.NO_CHECKPOINT:
            self._start_run_again(trial, "restart")
        elif answer.verb != "run":
            self._end(trial, Ruling(TrialState.FAILED, answer.reason))
        elif trial.starts < MAX_LAUNCHES and study.state is StudyState.RUNNING:
            self._ask_run(spec, trial, starts=trial.starts + 1)
        elif study.state is StudyState.RUNNING:
            reason = f"trial {trial.number} cannot be launched: {answer.reason}"
            self.writer.move(study, StudyState.PAUSED, f"{reason}; then gputui study resume {self.study_id}")

    def _read_metrics(self, spec: StudySpec, trial: TrialRecord, *, is_going: bool) -> None:
        curves = self.curves.read(spec, trial)
        if spec.pruner.kind == "none" or trial.state is not TrialState.RUNNING:
            return
        curve = curves.get(spec.objectives[0].metric)
        points = [] if curve is None else curve.points
        passed: Sequence[PassedRung] = rungs_passed(points, spec.pruner, spec.objectives[0], behind=trial.rung or 0)
        if not passed:
            return
        may_end = is_going and trial.origin != "rerun"
        passed, reason = self._judge(spec, trial, passed, may_end=may_end)
        with transaction(self.connection):
            self.writer.set_rungs(trial.number, passed)
            self.writer.set_trial(trial, rung=passed[-1].rung)
            if reason is not None:
                self.writer.set_trial(trial, state=TrialState.PRUNING, reason=reason)
                self.writer.ask_stop(trial, reason)
        if reason is not None:
            self.writer.ring()

    def _judge(
        self, spec: StudySpec, trial: TrialRecord, passed: Sequence[PassedRung], *, may_end: bool
    ) -> tuple[Sequence[PassedRung], str | None]:
        """Report the rungs that a trial has passed, in their order, and where it ``may_end`` judge
        it at each.

        Returns the rungs up to the one at which it is pruned, and the reason; all rungs and None if
        it continues.
        """
        for index, rung in enumerate(passed):
            if rung.value is None:
                continue
            self.journal.report(trial.number, rung.rung, rung.value)
            if not may_end or rung.rung >= spec.pruner.rungs:
                continue
            # One that a person keeps is judged, too: later ones are compared with it.
            if self.journal.should_prune(trial.number) and trial.request != "keep":
                others = self.connection.execute(
                    "SELECT value FROM trial_rungs WHERE study_id = ? AND rung = ? AND number != ? "
                    "AND value IS NOT NULL",
                    (self.study_id, rung.rung, trial.number),
                )
                values = [value for (value,) in others]
                return passed[: index + 1], pruning_reason(rung.rung, rung.value, values, spec.objectives[0])
        return passed, None

    def _end_trial(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord, end: RunEnd) -> None:
        """Store the verdict on a trial whose run is over, or start its run again."""
        verdict = self._verdict(spec, trial, end)
        if verdict.again is not None:
            self._start_run_again(trial, verdict.again)
            return
        self._end(trial, verdict)
        self.curves.forget(trial.number)
        if study.state is StudyState.RUNNING and verdict.state in (TrialState.FAILED, TrialState.INFEASIBLE):
            common = common_failure(self.connection, spec, self.view.read(), trial, end)
            if common is not None:
                self.writer.move(study, *common)

    def _verdict(self, spec: StudySpec, trial: TrialRecord, end: RunEnd) -> Ruling:
        curves: dict[str, ObjectiveCurve] = {}
        if trial.run_id is not None:
            curves = self.curves.read(spec, trial)
        values = objective_values(curves, spec)
        return decide.judge_trial(trial, end, values, constraint_values(self.connection, spec, trial.run_id), spec)

    def _end(self, trial: TrialRecord, verdict: Ruling) -> None:
        self.journal.end(trial.number, verdict, self.now())
        self.view.update(self.journal, stopped=trial.number)

    def _start_run_again(self, trial: TrialRecord, verb: Verb) -> None:
        """Ask for another attempt at the same point, in the same run."""
        with transaction(self.connection):
            command_id = self.writer.ask(verb, trial.run_id, {})
            starts = trial.starts + (trial.state is not TrialState.LAUNCHING)
            self.writer.set_trial(trial, state=TrialState.LAUNCHING, command_id=command_id, starts=starts)
            if verb == "restart" and LINEAGE in trial.population:
                # A member that restarts has the parameters of its launch again.
                run = get_run(self.connection, trial.run_id or "")
                launched = {} if run is None else spec_of(run).params
                first = {name: launched.get(name, value) for name, value in trial.params.items()}
                self.journal.set_params(trial.number, first)
                self.writer.set_trial(trial, params=json.dumps(first), parent=None, generation=None, population="{}")
        self.writer.ring()

    # --- the study ------------------------------------------------------------------------------------------------

    def _advance(
        self, study: StudyRecord, spec: StudySpec, trials: Sequence[TrialRecord], living: Sequence[TrialRecord]
    ) -> bool:
        usage = Usage(
            study_gpu_hours(self.connection, self.study_id, self.now()),
            study_wall_seconds(self.connection, self.study_id, self.now()),
        )
        # A later rung of a trial overrides its earlier ones.
        reached: dict[int, float] = {}
        if spec.rerun and not living:
            passed = read_rungs(self.connection, self.study_id)
            reached = {rung.number: rung.value for rung in passed if rung.value is not None}
        assert self._base is not None
        slots = trial_slots(self.connection, spec, self.study_id, self._base)
        (since,) = self.connection.execute(
            "SELECT max(at) FROM study_moves WHERE study_id = ? AND to_state = 'running'", (self.study_id,)
        ).fetchone()
        move = decide.next_move(spec, trials, usage, room=slots, reached=reached, since=since)
        if move.stop_trials is not None:
            self._stop_trials(living, move.stop_trials, self._end)
        if move.over is not None:
            is_without_heirs = spec.pbt is not None and not any(trial.generation for trial in trials)
            alone = ""
            if is_without_heirs:
                alone = "; no member has continued from another"
            return not self.writer.move(study, StudyState.FINISHED, f"{move.over}{alone}")
        if move.rerun:
            for number in move.rerun:
                self.journal.add(trials[number].params, "rerun", parent=number)
            self.view.update(self.journal)
        elif move.launch:
            self._launch(spec, trials)
        elif spec.pbt is not None:
            self._compare_members(study, spec, spec.pbt, trials)
        return True

    def _compare_members(
        self, study: StudyRecord, spec: StudySpec, population: PbtSpec, trials: Sequence[TrialRecord]
    ) -> None:
        """Let the worst members continue from the best; pause the study if they cannot for long."""
        problem = self._population().exploit(spec, population, trials, study.milestone, self.now())
        if problem is None:
            self._without_donor_since = None
            return
        if self._without_donor_since is None:
            self._without_donor_since = self.now()
        if self.now() - self._without_donor_since >= WITHOUT_DONOR_SECONDS:
            self._without_donor_since = None
            self.writer.move(study, StudyState.PAUSED, f"{problem}; its trials go on alone")

    def _launch(self, spec: StudySpec, trials: Sequence[TrialRecord]) -> None:
        """Launch the next trial: one that waits in the journal, else a new point."""
        waiting = _waiting(trials) or _waiting(self._add_point(spec, trials))
        if waiting is None:
            return
        if waiting.run_id is not None:
            self._continue_stopped(waiting)
        else:
            self._ask_run(spec, waiting, starts=1)

    def _ask_run(self, spec: StudySpec, trial: TrialRecord, *, starts: int) -> None:
        """Ask for the run of a trial."""
        assert self._base is not None
        run = decide.trial_spec(self._base, spec, self.study_id, trial.number, trial.params)
        arguments = {
            "ticket": write_ticket(self.workspace, run),
            "name": fitting_name(f"{self.study_id}-t{trial.number}"),
        }
        with transaction(self.connection):
            command_id = self.writer.ask("run", run_id=None, arguments=arguments)
            self.writer.set_trial(trial, state=TrialState.LAUNCHING, command_id=command_id, starts=starts)
        self.writer.ring()

    def _add_point(self, spec: StudySpec, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Put a new point into the journal; returns all trials."""
        if spec.pbt is not None:
            self.journal.add(pbt.first_point(spec.space, spec.seed, len(trials)), "sampled")
        elif not spec.is_grid:
            self.journal.sample()
        elif (point := decide.grid_point(spec, trials)) is not None:
            self.journal.add(point, "sampled")
        return self.view.update(self.journal)

    def _continue_stopped(self, trial: TrialRecord) -> None:
        """Continue a trial that was stopped together with the study, in its run."""
        end = run_end(self.connection, trial.run_id)
        if end is None:
            # A person has already resumed it.
            with transaction(self.connection):
                self.writer.set_trial(trial, state=TrialState.RUNNING)
        elif "exploit" in trial.population:
            self._population().continue_from_donor(trial)
        else:
            self._start_run_again(trial, end.again)

    def _stop_trials(
        self, living: Sequence[TrialRecord], reason: str, end: Callable[[TrialRecord, Ruling], None]
    ) -> None:
        """Ask each active trial once to stop; withdraw launches that no agent has carried out, and
        ``end`` their trials."""
        for trial in living:
            if trial.state is TrialState.LAUNCHING:
                with transaction(self.connection):
                    is_withdrawn = (
                        trial.command_id is None
                        or commands.withdraw(self.connection, trial.command_id)
                        or self.writer.is_refused(trial.command_id)
                    )
                    if not is_withdrawn:
                        self.writer.set_trial(trial, state=TrialState.RUNNING)
                if is_withdrawn:
                    end(trial, Ruling(TrialState.STOPPED, reason))
            elif trial.state is TrialState.RUNNING:
                with transaction(self.connection):
                    self.writer.set_trial(trial, state=TrialState.STOPPING, reason=reason)
                    self.writer.ask_stop(trial, reason)
        self.writer.ring()


def _waiting(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The first of gputui's trials that has not begun."""
    return next((trial for trial in trials if trial.state is TrialState.ENQUEUED and trial.origin != OUTSIDE), None)
