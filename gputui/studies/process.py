"""The process of one study: it reads rows, decides, and writes trials together with the commands that carry them out.

It is crash-only: each decision is one transaction, and everything else is read from the store. The agent starts it, and
restarts it after a crash.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

from gputui.core.config import Workspace
from gputui.recovery.checkpoints.ledger import NUMERIC_INCIDENTS
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec, SpecError, spec_of
from gputui.runs.submission import read_spec, ticket_path, write_ticket
from gputui.store import commands
from gputui.store.commands import CommandAnswer
from gputui.store.metrics.queries import metric_names
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from gputui.store.studies import (
    StudyRecord,
    StudyState,
    TrialReader,
    TrialRecord,
    TrialState,
    get_study,
    read_rungs,
    study_gpu_hours,
    study_wall_seconds,
)
from gputui.studies import decide, pbt, rows
from gputui.studies.courses import CourseReader
from gputui.studies.decide import PassedRung, Ruling, RunEnd, Usage
from gputui.studies.lineage import LINEAGE
from gputui.studies.population import Population
from gputui.studies.run_queries import (
    constraint_values,
    has_stepped,
    last_incident,
    run_end,
    trial_slots,
    warm_trials,
)
from gputui.studies.sampling import OptunaMirror, missing_library
from gputui.studies.spec import StudySpec, study_spec
from gputui.studies.writer import StudyWriter

log = logging.getLogger(__name__)

MAX_LAUNCHES = 2
"""Refused launches of a trial before the study pauses."""
AGAIN_SECONDS = 30.0
"""The delay after a refusal that may be temporary, such as a full disk."""


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
        self.courses = CourseReader(connection, now)
        self.population = Population(self.writer, self.courses)
        self.spec: StudySpec | None = None
        self._base: RunSpec | None = None
        self._spec_json = ""
        self._mirror: OptunaMirror | None = None
        self._trials = TrialReader(connection, study_id)

    def turn(self) -> bool:
        """Do everything that is due. Returns whether the study still needs a process.

        Raises sqlite3.Error and errors of Optuna; another process then continues from the store.
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
        trials = self._trials.read()
        if study.state is StudyState.RUNNING and not trials and spec.warm_start:
            self._warm_start(spec)
        for trial in decide.living(trials):
            self._follow(study, spec, trial)
        study = get_study(self.connection, self.study_id)
        assert study is not None
        trials = self._trials.read()
        living = decide.living(trials)
        if study.state is StudyState.STOPPING:
            self._stop_trials(living, study.reason or "the study was stopped")
            if not living:
                self.writer.move(study, StudyState.STOPPED, study.reason or "stopped")
        if study.state is StudyState.RUNNING:
            return self._advance(study, spec, trials, living)
        return bool(living) and not study.state.is_over

    def _base_problem(self) -> str | None:
        """Why the specification of the runs cannot be read, and the remedy; None if it can."""
        if self._base is None:
            try:
                self._base = read_spec(self.workspace.studies / self.study_id / rows.SPEC_FILE)
            except SpecError as error:
                return f"{error}; put it back"
        return None

    # --- one trial ------------------------------------------------------------------------------------------------

    def _follow(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord) -> None:
        if trial.state is TrialState.LAUNCHING:
            self._follow_launch(study, spec, trial)
            return
        # Read the end before the metrics: a run that has ended has then reported everything.
        end = run_end(self.connection, trial.run_id)
        if end is not None:
            # A person may have cut it short since it was read.
            trial = self._trials.read()[trial.number]
        self._repeat_refused_stop(trial, end)
        if trial.run_id is not None and spec.pbt is not None:
            self.population.read_milestones(spec, spec.pbt, trial)
        elif trial.run_id is not None:
            is_going = end is None and study.state is not StudyState.STOPPING
            self._read_metrics(spec, trial, is_going=is_going)
        is_continued = "exploit" in trial.sampler and study.state is not StudyState.STOPPING
        if end is not None and is_continued and end.state is not RunState.SUCCEEDED:
            self.population.continue_from_donor(trial)
        elif end is not None:
            self._end_trial(study, spec, trial, end)

    def _repeat_refused_stop(self, trial: TrialRecord, end: RunEnd | None) -> None:
        """Ask again for a stop that the agent refused, for instance because the disk was full."""
        if end is None and trial.state is not TrialState.RUNNING and self.writer.is_refused(trial.command_id):
            with transaction(self.connection):
                self.writer.ask_stop(trial, trial.reason or "")

    def _follow_launch(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord) -> None:
        """React to the agent's answer to the command that starts the trial's run."""
        if study.state is StudyState.STOPPING or trial.command_id is None:
            return
        answer = commands.answer(self.connection, trial.command_id)
        if answer is None:
            return
        # A person may have started it again meanwhile.
        if answer.state == "done" or (trial.run_id is not None and run_end(self.connection, trial.run_id) is None):
            with transaction(self.connection):
                self.writer.set_trial(trial, state=TrialState.RUNNING)
        elif answer.refusal == commands.NO_CHECKPOINT and trial.parent is not None:
            self.population.continue_from_own(trial)
        elif answer.refusal == commands.NO_CHECKPOINT:
            self._start_run_again(trial, "restart")
        elif answer.verb != "run":
            self._repeat_refused_command(trial, answer)
        elif trial.starts < MAX_LAUNCHES and study.state is StudyState.RUNNING:
            ticket = self._write_ticket(spec, trial.number, trial.params)
            with transaction(self.connection):
                command_id = self.writer.ask_run(trial.number, ticket)
                self.writer.set_trial(trial, command_id=command_id, starts=trial.starts + 1)
            self.writer.ring()
        elif study.state is StudyState.RUNNING:
            reason = f"trial {trial.number} cannot be launched: {answer.reason}"
            self.writer.move(study, StudyState.PAUSED, f"{reason}; then gputui study resume {self.study_id}")

    def _repeat_refused_command(self, trial: TrialRecord, answer: CommandAnswer) -> None:
        """Ask again for a restart or resume that was refused for a reason that may be temporary."""
        if trial.starts >= decide.MOST_STARTS:
            with transaction(self.connection):
                self.writer.end_trial(trial, Ruling(TrialState.FAILED, f"{answer.reason}; asked {trial.starts} times"))
        elif self.now() - (answer.answered_at or 0.0) >= AGAIN_SECONDS:
            words = commands.arguments(self.connection, answer.command_id)
            with transaction(self.connection):
                command_id = self.writer.ask(answer.verb, trial.run_id, words)
                self.writer.set_trial(trial, command_id=command_id, starts=trial.starts + 1)
            self.writer.ring()

    def _read_metrics(self, spec: StudySpec, trial: TrialRecord, *, is_going: bool) -> None:
        courses = self.courses.read(spec, trial)
        if spec.pruner.kind == "none" or trial.state is not TrialState.RUNNING:
            return
        course = courses.get(spec.objectives[0].metric)
        points = () if course is None else course.points
        passed: Sequence[PassedRung] = decide.rungs_passed(
            points, spec.pruner, spec.objectives[0], behind=trial.rung or 0
        )
        if not passed:
            return
        reason = None
        try:
            if is_going and trial.origin != "rerun" and missing_library(spec) is None:
                passed, reason = self._judge(spec, trial, passed)
            with transaction(self.connection):
                self.connection.executemany(
                    "INSERT OR IGNORE INTO trial_rungs (study_id, number, rung, step, value, attempt, at) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [
                        (self.study_id, trial.number, rung.rung, rung.step, rung.value, rung.attempt, self.now())
                        for rung in passed
                    ],
                )
                self.writer.set_trial(trial, rung=passed[-1].rung)
                if reason is not None and not self.writer.is_kept(trial):
                    self.writer.set_trial(trial, state=TrialState.PRUNING, reason=reason)
                    self.writer.ask_stop(trial, reason)
        except sqlite3.Error:
            # Optuna has a value that was not stored.
            self._mirror = None
            raise
        if reason is not None:
            self.writer.ring()

    def _judge(
        self, spec: StudySpec, trial: TrialRecord, passed: Sequence[PassedRung]
    ) -> tuple[Sequence[PassedRung], str | None]:
        """Judge a trial at the rungs that it has passed, in their order.

        Returns the rungs up to the one at which it is pruned, and the reason; all rungs and None if it continues.
        """
        mirror = self._synced_mirror(spec)
        for index, rung in enumerate(passed):
            if rung.value is None or rung.rung >= spec.pruner.rungs:
                continue
            mirror.report(trial.number, rung.rung, rung.value)
            # One that a person keeps is judged, too: later ones are compared with it.
            if mirror.should_prune(trial.number) and trial.wish != "keep":
                others = self.connection.execute(
                    "SELECT value FROM trial_rungs WHERE study_id = ? AND rung = ? AND number != ? "
                    "AND value IS NOT NULL",
                    (self.study_id, rung.rung, trial.number),
                )
                values = [value for (value,) in others]
                return passed[: index + 1], decide.pruning_reason(rung.rung, rung.value, values, spec.objectives[0])
        return passed, None

    def _end_trial(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord, end: RunEnd) -> None:
        """Store the verdict on a trial whose run is over, or start its run again."""
        values = self._values(spec, trial)
        verdict = decide.ruling(trial, end, values, constraint_values(self.connection, spec, trial.run_id), spec)
        if verdict.again is not None and study.state is not StudyState.STOPPING:
            self._start_run_again(trial, "resume" if verdict.again == "resume" else "restart")
            return
        if verdict.again is not None:
            verdict = Ruling(TrialState.STOPPED, end.reason)
        with transaction(self.connection):
            self.writer.end_trial(trial, verdict)
        self.courses.forget(trial.number)
        if study.state is StudyState.RUNNING and verdict.state is TrialState.FAILED:
            self._check_for_common_error(study, spec, trial, end, values)

    def _values(self, spec: StudySpec, trial: TrialRecord) -> list[float | None]:
        """The value of each objective that counts; None where no line reports it."""
        courses = self.courses.read(spec, trial) if trial.run_id is not None else {}
        return [
            decide.objective_value(courses[objective.metric].points if objective.metric in courses else (), objective)
            for objective in spec.objectives
        ]

    def _check_for_common_error(
        self, study: StudyRecord, spec: StudySpec, trial: TrialRecord, end: RunEnd, values: Sequence[float | None]
    ) -> None:
        """Pause or end the study if the failure of this trial will repeat in every other."""
        trials = self._trials.read()
        if end.state is RunState.SUCCEEDED and None in values and not any(other.values for other in trials):
            metric = spec.objectives[values.index(None)].metric
            names = metric_names(self.connection, trial.run_id or "")
            missing = decide.unreported_words(metric, spec.pruner, names)
            self.writer.move(study, StudyState.PAUSED, f"no line of trial {trial.number} reports {missing}")
            return
        well = (TrialState.COMPLETE, TrialState.PRUNED)
        others = [other for other in trials if other.state is not TrialState.FAILED and other.origin != "warm"]
        if any(other.state in well for other in others):
            return
        failed = [other for other in trials if other.state is TrialState.FAILED]
        causes = [self._cause(spec, other) for other in sorted(failed, key=lambda other: other.ended_at or 0.0)]
        # Trials that fail end before those that work.
        stepped = (other for other in others if has_stepped(self.connection, other.run_id))
        if not decide.same_cause(causes) or any(self._cause(spec, other) != causes[-1] for other in stepped):
            return
        if causes[-1] == decide.DIVERGED:
            what = f"{decide.SAME_DIVERGED} trials in a row diverged and none was complete"
            reason = f"{what}: give smaller ranges, or fix the script (gputui logs {trial.run_id})"
        else:
            explain = f"gputui explain {trial.run_id}"
            reason = f"{decide.SAME_ERRORS} trials failed alike at their start ({explain}): {end.reason}"
        living = decide.living(trials)
        self._stop_trials(living, reason)
        self.writer.move(study, StudyState.STOPPING if living else StudyState.FAILED, reason)

    def _cause(self, spec: StudySpec, trial: TrialRecord) -> str | None:
        """The cause that failed a trial, or soon will, and may fail every other one; see `decide.same_cause`."""
        kind, fingerprint = last_incident(self.connection, trial.run_id) or (None, None)
        values = self._values(spec, trial)
        self.courses.forget(trial.number)
        if kind in NUMERIC_INCIDENTS or any(value is not None and not math.isfinite(value) for value in values):
            return decide.DIVERGED
        return None if has_stepped(self.connection, trial.run_id) else fingerprint

    def _start_run_again(self, trial: TrialRecord, verb: Literal["resume", "restart"]) -> None:
        """Ask for another attempt at the same point, in the same run."""
        with transaction(self.connection):
            command_id = self.writer.ask(verb, trial.run_id, {})
            starts = trial.starts + (trial.state is not TrialState.LAUNCHING)
            self.writer.set_trial(trial, state=TrialState.LAUNCHING, command_id=command_id, starts=starts)
            if verb == "restart" and LINEAGE in trial.sampler:
                # A member that restarts has the parameters of its launch again.
                run = get_run(self.connection, trial.run_id or "")
                launched = {} if run is None else spec_of(run).params
                first = {name: launched.get(name, value) for name, value in trial.params.items()}
                self.writer.set_trial(trial, params=json.dumps(first), parent=None, generation=None, sampler="{}")
        self.writer.ring()

    # --- the study ------------------------------------------------------------------------------------------------

    def _advance(
        self, study: StudyRecord, spec: StudySpec, trials: Sequence[TrialRecord], living: Sequence[TrialRecord]
    ) -> bool:
        usage = Usage(
            study_gpu_hours(self.connection, self.study_id, self.now()),
            study_wall_seconds(self.connection, self.study_id, self.now()),
        )
        exhausted = spec.sampler.kind == "grid" and decide.grid_point(spec, trials) is None
        # A later rung of a trial overrides its earlier ones.
        passed = read_rungs(self.connection, self.study_id) if spec.rerun and not living else ()
        reached = {rung.number: rung.value for rung in passed if rung.value is not None}
        assert self._base is not None
        slots = trial_slots(self.connection, spec, self.study_id, self._base)
        move = decide.next_move(spec, trials, usage, slots, exhausted=exhausted, reached=reached)
        if move.stop_trials is not None:
            self._stop_trials(living, move.stop_trials)
        if move.over is not None:
            return not self.writer.move(study, StudyState.FINISHED, move.over, trials=len(trials))
        if move.rerun:
            self._enqueue_reruns([trials[number] for number in move.rerun])
        elif move.launch:
            self._launch(spec, trials)
        elif spec.pbt is not None:
            self.population.exploit(spec, spec.pbt, trials)
        return True

    def _enqueue_reruns(self, chosen: Sequence[TrialRecord]) -> None:
        """Enqueue pruned points again, each as a new trial that runs to the end."""
        with transaction(self.connection):
            for trial in chosen:
                number = rows.next_number(self.connection, self.study_id)
                rows.insert_trial(
                    self.connection, self.study_id, number, trial.params, state=TrialState.ENQUEUED, origin="rerun",
                    now=self.now(), parent=trial.number,
                )  # fmt: skip

    def _launch(self, spec: StudySpec, trials: Sequence[TrialRecord]) -> None:
        """Launch the next trial: an enqueued one, else a new point."""
        enqueued = next((trial for trial in trials if trial.state is TrialState.ENQUEUED), None)
        if enqueued is not None and enqueued.run_id is not None:
            self._continue_stopped(enqueued)
            return
        if enqueued is not None:
            ticket = self._write_ticket(spec, enqueued.number, enqueued.params)
            with transaction(self.connection):
                command_id = self.writer.ask_run(enqueued.number, ticket)
                self.writer.set_trial(enqueued, state=TrialState.LAUNCHING, command_id=command_id, starts=1)
            self.writer.ring()
            return
        number = len(trials)
        of_trial: dict[str, Any] = {}
        of_study: dict[str, Any] = {}
        if spec.sampler.kind == "grid":
            params: dict[str, Any] | None = decide.grid_point(spec, trials)
            if params is None:
                return
        elif spec.pbt is not None:
            params = pbt.first_point(spec.space, spec.seed, number)
        else:
            params, of_trial, of_study = self._synced_mirror(spec).ask()
        ticket = self._write_ticket(spec, number, params)
        try:
            with transaction(self.connection):
                command_id = self.writer.ask_run(number, ticket)
                rows.insert_trial(
                    self.connection,
                    self.study_id,
                    number,
                    params,
                    state=TrialState.LAUNCHING,
                    origin="sampled",
                    now=self.now(),
                    sampler=of_trial,
                    command_id=command_id,
                )
                if of_study:
                    self.connection.execute(
                        "UPDATE studies SET sampler = ? WHERE study_id = ?", (json.dumps(of_study), self.study_id)
                    )
        except sqlite3.IntegrityError:
            # A person enqueued a point meanwhile, and it has this number. Forget the sampled one.
            self._mirror = None
            with suppress(OSError):
                ticket_path(self.workspace, ticket).unlink()
            return
        except sqlite3.Error:
            # Optuna counts a trial that was not stored.
            self._mirror = None
            raise
        self.writer.ring()

    def _continue_stopped(self, trial: TrialRecord) -> None:
        """Continue a trial that was stopped together with the study, in its run."""
        end = run_end(self.connection, trial.run_id)
        if end is None:
            # A person has already resumed it.
            with transaction(self.connection):
                self.writer.set_trial(trial, state=TrialState.RUNNING)
        elif "exploit" in trial.sampler:
            self.population.continue_from_donor(trial)
        else:
            self._start_run_again(trial, "resume" if end.has_checkpoints and end.has_stepped else "restart")

    def _warm_start(self, spec: StudySpec) -> None:
        earlier = warm_trials(self.connection, spec)
        with transaction(self.connection):
            for number, (run_id, params, values, ended_at) in enumerate(earlier):
                rows.insert_trial(
                    self.connection,
                    self.study_id,
                    number,
                    params,
                    state=TrialState.COMPLETE,
                    origin="warm",
                    now=self.now(),
                )
                self.connection.execute(
                    "UPDATE trials SET run_id = ?, value = ?, objective_values = ?, ended_at = ? "
                    "WHERE study_id = ? AND number = ?",
                    (run_id, values[0], json.dumps(values), max(ended_at, self.now()), self.study_id, number),
                )

    def _stop_trials(self, living: Sequence[TrialRecord], reason: str) -> None:
        """Ask each active trial once to stop; withdraw launches that no agent has carried out."""
        for trial in living:
            if trial.state is TrialState.LAUNCHING:
                with transaction(self.connection):
                    if (
                        trial.command_id is None
                        or commands.withdraw(self.connection, trial.command_id)
                        or self.writer.is_refused(trial.command_id)
                    ):
                        self.writer.end_trial(trial, Ruling(TrialState.STOPPED, reason))
                    else:
                        self.writer.set_trial(trial, state=TrialState.RUNNING)
            elif trial.state is TrialState.RUNNING:
                with transaction(self.connection):
                    self.writer.set_trial(trial, state=TrialState.STOPPING, reason=reason)
                    self.writer.ask_stop(trial, reason)
        self.writer.ring()

    # --- rows -----------------------------------------------------------------------------------------------------

    def _synced_mirror(self, spec: StudySpec) -> OptunaMirror:
        """Optuna's view of the stored trials."""
        trials = self._trials.read()
        if self._mirror is not None and self._mirror.is_outdated(trials):
            self._mirror = None
        if self._mirror is None:
            (remembered,) = self.connection.execute(
                "SELECT sampler FROM studies WHERE study_id = ?", (self.study_id,)
            ).fetchone()
            self._mirror = OptunaMirror(spec, self.study_id, json.loads(remembered))
        unsettled = self._mirror.unsettled(trials)
        self._mirror.sync(trials, read_rungs(self.connection, self.study_id, numbers=unsettled))
        return self._mirror

    def _write_ticket(self, spec: StudySpec, number: int, params: Any) -> str:
        """Write the specification of a trial's run to a private file, before its command."""
        assert self._base is not None
        return write_ticket(self.workspace, decide.trial_spec(self._base, spec, self.study_id, number, params))
