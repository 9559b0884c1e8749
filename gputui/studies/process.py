"""The process of one study: it reads rows, decides, and writes trials together with the commands that carry them out.

It is crash-only: what it decides is one transaction each, all else is read back from the store. The agent starts it,
and starts it again.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

from gputui.config import Workspace
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec, SpecError, spec_of
from gputui.runs.submission import read_spec, ticket_path, write_ticket
from gputui.store import commands
from gputui.store.commands import CommandAnswer
from gputui.store.memory_peaks import peak_bytes, study_peaks
from gputui.store.metrics.queries import latest, metric_names
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
from gputui.studies.sampling import OptunaMirror, missing_library
from gputui.studies.sharing import trials_on_gpu
from gputui.studies.spec import StudySpec, StudySpecError
from gputui.studies.warm_start import warm_trials
from gputui.studies.writer import StudyWriter
from gputui.yaml_forms.nearest import nearest

log = logging.getLogger(__name__)

STEP_METRIC = "step_time"
MOST_LAUNCHES = 2
"""How often a launch is asked for that the agent refuses, before the study pauses."""
AGAIN_SECONDS = 30.0
"""After a refusal that may pass, such as that of a full disk."""


class StudyProcess:
    """One study from where the store has it. ``connection`` may write; ``now`` gives UTC unix seconds."""

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
        """Do what is due; whether the study still needs a process. Raises sqlite3.Error, what Optuna raises, and
        StudySpecError where a study that is not to end cannot be read; another process then goes on from the store."""
        study = get_study(self.connection, self.study_id)
        if study is None or study.state.is_over:
            return False
        if study.spec_json != self._spec_json:
            try:
                self.spec = StudySpec.from_json(json.loads(study.spec_json))
            except (StudySpecError, ValueError):
                if study.state is not StudyState.STOPPING:
                    raise
                return self._stop_unread(study)
            self._spec_json = study.spec_json
        spec = self.spec
        assert spec is not None
        if study.state is StudyState.RUNNING and (lacking := missing_library(spec) or self._unreadable()) is not None:
            self.writer.move(study, StudyState.PAUSED, f"{lacking}, then gputui study resume {self.study_id}")
            return True
        trials = self._trials.read()
        if study.state is StudyState.RUNNING and not trials and spec.warm_start:
            self._warm_start(spec)
        for trial in trials:
            if not trial.state.is_over and trial.state is not TrialState.ENQUEUED:
                self._follow(study, spec, trial)
        study = get_study(self.connection, self.study_id)
        assert study is not None
        trials = self._trials.read()
        living = [one for one in trials if not one.state.is_over and one.state is not TrialState.ENQUEUED]
        if study.state is StudyState.STOPPING:
            return self._stop(study, living)
        if study.state is StudyState.RUNNING:
            return self._advance(study, spec, trials, living)
        return bool(living) and not study.state.is_over

    def _unreadable(self) -> str | None:
        """Why the specification that runs are made from cannot be read, and what to do."""
        if self._base is None:
            try:
                self._base = read_spec(self.workspace.studies / self.study_id / rows.SPEC_FILE)
            except SpecError as error:
                return f"{error}; put it back"
        return None

    def _stop(self, study: StudyRecord, living: Sequence[TrialRecord]) -> bool:
        """Go on with stopping; whether a trial still lives."""
        self._stop_trials(living, study.reason or "the study was stopped")
        if not living:
            self.writer.move(study, StudyState.STOPPED, study.reason or "stopped")
        return bool(living)

    def _stop_unread(self, study: StudyRecord) -> bool:
        """Stop a study that this gputui does not understand: whatever its trials reached, they are stopped."""
        for trial in self._trials.read():
            if trial.state in (TrialState.RUNNING, TrialState.PRUNING, TrialState.STOPPING):
                end = self._end_of(trial)
                self._ask_stop_again(trial, end)
                if end is not None:
                    with transaction(self.connection):
                        self.writer.end_trial(trial, Ruling(TrialState.STOPPED, study.reason))
        trials = self._trials.read()
        return self._stop(
            study, [one for one in trials if not one.state.is_over and one.state is not TrialState.ENQUEUED]
        )

    # --- one trial ------------------------------------------------------------------------------------------------

    def _follow(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord) -> None:
        if trial.state is TrialState.LAUNCHING:
            self._look_at_launch(study, spec, trial)
            return
        # Before its metrics: what a run that is over reported is then all there.
        end = self._end_of(trial)
        self._ask_stop_again(trial, end)
        if trial.run_id is not None and spec.pbt is not None:
            self.population.read_milestones(spec, spec.pbt, trial)
        elif trial.run_id is not None:
            is_going = end is None and study.state is not StudyState.STOPPING
            self._read_metrics(spec, trial, is_going=is_going)
        goes_on = "exploit" in trial.sampler and study.state is not StudyState.STOPPING
        if end is not None and goes_on and end.state is not RunState.SUCCEEDED:
            self.population.go_on_from_donor(trial)
        elif end is not None:
            self._rule(study, spec, trial, end)

    def _ask_stop_again(self, trial: TrialRecord, end: RunEnd | None) -> None:
        """A stop that was decided and refused, as where the disk was full, is asked for until it is carried out."""
        if end is None and trial.state is not TrialState.RUNNING and self.writer.is_refused(trial.command_id):
            with transaction(self.connection):
                self.writer.ask_stop(trial, trial.reason or "")

    def _look_at_launch(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord) -> None:
        """What the agent answered to the command that starts the trial's run."""
        if study.state is StudyState.STOPPING or trial.command_id is None:
            return
        answer = commands.answer(self.connection, trial.command_id)
        if answer is None:
            return
        # A person may have been quicker to start it again.
        if answer.state == "done" or (trial.run_id is not None and self._end_of(trial) is None):
            with transaction(self.connection):
                self.writer.set_trial(trial, state=TrialState.RUNNING)
        elif answer.refusal == commands.NO_CHECKPOINT and trial.parent is not None:
            self.population.go_on_from_own(trial)
        elif answer.refusal == commands.NO_CHECKPOINT:
            self._start_again(trial, "restart")
        elif answer.verb != "run":
            self._ask_once_more(trial, answer)
        elif trial.starts < MOST_LAUNCHES and study.state is StudyState.RUNNING:
            ticket = self._write_ticket(spec, trial.number, trial.params)
            with transaction(self.connection):
                command_id = self.writer.ask_run(trial.number, ticket)
                self.writer.set_trial(trial, command_id=command_id, starts=trial.starts + 1)
            self.writer.ring()
        elif study.state is StudyState.RUNNING:
            reason = f"trial {trial.number} cannot be launched: {answer.reason}"
            self.writer.move(study, StudyState.PAUSED, f"{reason}; then gputui study resume {self.study_id}")

    def _ask_once_more(self, trial: TrialRecord, answer: CommandAnswer) -> None:
        """A run that was to go on was refused for something that may pass, such as a full disk."""
        if trial.starts >= decide.MOST_STARTS:
            with transaction(self.connection):
                self.writer.end_trial(trial, Ruling(TrialState.FAILED, f"{answer.reason}; asked {trial.starts} times"))
        elif self.now() - (answer.answered_at or 0.0) >= AGAIN_SECONDS:
            words = commands.arguments(self.connection, answer.command_id)
            with transaction(self.connection):
                command_id = self.writer.ask(answer.verb, trial.run_id, words)
                self.writer.set_trial(trial, command_id=command_id, starts=trial.starts + 1)
            self.writer.ring()

    def _end_of(self, trial: TrialRecord) -> RunEnd | None:
        """How the trial's run ended, None while it lives. A run that was removed counts as stopped."""
        row = None
        if trial.run_id is not None:
            row = self.connection.execute(
                "SELECT state, reason, EXISTS (SELECT 1 FROM attempts AS a WHERE a.run_id = runs.run_id "
                "AND a.last_step IS NOT NULL), json_valid(spec) AND spec ->> '$.checkpoints' IS NOT NULL "
                "FROM runs WHERE run_id = ?",
                (trial.run_id,),
            ).fetchone()
        if row is None:
            return RunEnd(RunState.STOPPED, "its run was removed")
        state = RunState(row[0])
        if not state.is_over:
            return None
        incident = None if state is RunState.SUCCEEDED else self._incident_of(trial.run_id)
        return RunEnd(state, row[1], None if incident is None else incident[0], bool(row[2]), bool(row[3]))

    def _incident_of(self, run_id: str | None) -> tuple[str, str] | None:
        """Kind and fingerprint of a run's last incident."""
        row: tuple[str, str] | None = self.connection.execute(
            "SELECT kind, fingerprint FROM incidents WHERE run_id = ? ORDER BY incident_id DESC LIMIT 1", (run_id,)
        ).fetchone()
        return row

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
                        (self.study_id, trial.number, one.rung, one.step, one.value, one.attempt, self.now())
                        for one in passed
                    ],
                )
                self.writer.set_trial(trial, rung=passed[-1].rung)
                if reason is not None:
                    self.writer.set_trial(trial, state=TrialState.PRUNING, reason=reason)
                    self.writer.ask_stop(trial, reason)
        except sqlite3.Error:
            # Optuna has taken a value that the store has not.
            self._mirror = None
            raise
        if reason is not None:
            self.writer.ring()

    def _judge(
        self, spec: StudySpec, trial: TrialRecord, passed: Sequence[PassedRung]
    ) -> tuple[Sequence[PassedRung], str | None]:
        """The rungs up to the one at which the trial is cut short, and why; all and None where it goes on. They are
        judged in their order, also where several were passed since the last look."""
        mirror = self._synced(spec)
        for place, one in enumerate(passed):
            if one.value is None or one.rung >= spec.pruner.rungs:
                continue
            mirror.report(trial.number, one.rung, one.value)
            if mirror.should_prune(trial.number):
                others = self.connection.execute(
                    "SELECT value FROM trial_rungs WHERE study_id = ? AND rung = ? AND number != ? "
                    "AND value IS NOT NULL",
                    (self.study_id, one.rung, trial.number),
                )
                known = [value for (value,) in others]
                return passed[: place + 1], decide.place_words(one.rung, one.value, known, spec.objectives[0])
        return passed, None

    def _rule(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord, end: RunEnd) -> None:
        """Write the verdict on a trial whose run is over, or start the same point again."""
        courses = self.courses.read(spec, trial) if trial.run_id is not None else {}
        values = [
            decide.objective_value(courses[one.metric].points if one.metric in courses else (), one)
            for one in spec.objectives
        ]
        ruled = decide.ruling(trial, end, values, self._constraints(spec, trial), spec)
        if ruled.again is not None and study.state is not StudyState.STOPPING:
            self._start_again(trial, "resume" if ruled.again == "resume" else "restart")
            return
        if ruled.again is not None:
            ruled = Ruling(TrialState.STOPPED, end.reason)
        with transaction(self.connection):
            self.writer.end_trial(trial, ruled)
        self.courses.forget(trial.number)
        if study.state is StudyState.RUNNING and ruled.state is TrialState.FAILED:
            self._look_at_failure(study, spec, trial, end, values)

    def _look_at_failure(
        self, study: StudyRecord, spec: StudySpec, trial: TrialRecord, end: RunEnd, values: Sequence[float | None]
    ) -> None:
        """Whether no other trial can do better than the one that failed."""
        trials = self._trials.read()
        if end.state is RunState.SUCCEEDED and None in values and not any(one.values for one in trials):
            metric = next(one.metric for one, value in zip(spec.objectives, values, strict=True) if value is None)
            names = metric_names(self.connection, trial.run_id or "")
            meant = nearest(metric, names)
            told = f"did you mean {meant}?" if meant else f"there are {', '.join(names) or 'none'}"
            self.writer.move(study, StudyState.PAUSED, f"no line of trial {trial.number} reports {metric}; {told}")
            return
        over = sorted((one for one in trials if one.ended_at is not None and one.origin != "warm"), key=_by_end)
        ends = [(self._incident_of(one.run_id), self._has_stepped(one)) for one in over]
        if decide.same_error([(None if kind is None else kind[1], stepped) for kind, stepped in ends]):
            living = [one for one in trials if not one.state.is_over and one.state is not TrialState.ENQUEUED]
            reason = f"{decide.SAME_ERRORS} trials failed alike at their start: {end.reason}"
            self._stop_trials(living, reason)
            if not living:
                self.writer.move(study, StudyState.FAILED, reason)
            else:
                self.writer.move(study, StudyState.STOPPING, reason)

    def _has_stepped(self, trial: TrialRecord) -> bool:
        row = self.connection.execute(
            "SELECT 1 FROM attempts WHERE run_id = ? AND last_step IS NOT NULL", (trial.run_id,)
        ).fetchone()
        return row is not None

    def _constraints(self, spec: StudySpec, trial: TrialRecord) -> tuple[float, ...]:
        if not spec.constraints.count or trial.run_id is None:
            return ()
        newest = latest(self.connection, trial.run_id)
        attempts = self.connection.execute("SELECT number FROM attempts WHERE run_id = ?", (trial.run_id,)).fetchall()
        peaks = [peak_bytes(self.connection, trial.run_id, number) for (number,) in attempts]
        largest = max((peak for peak in peaks if peak is not None), default=None)
        return decide.constraint_values(spec, largest, newest.get(STEP_METRIC))

    def _start_again(self, trial: TrialRecord, verb: Literal["resume", "restart"]) -> None:
        """Ask for the same point once more, in the same run."""
        with transaction(self.connection):
            command_id = self.writer.ask(verb, trial.run_id, {})
            starts = trial.starts + (trial.state is not TrialState.LAUNCHING)
            self.writer.set_trial(trial, state=TrialState.LAUNCHING, command_id=command_id, starts=starts)
            if verb == "restart" and LINEAGE in trial.sampler:
                # A member that begins again does so with the parameters that it began with.
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
        is_grid = spec.sampler.kind == "grid"
        exhausted = is_grid and decide.grid_point(spec, trials) is None
        # Asked for once none lives; in the order of their rungs.
        passed = read_rungs(self.connection, self.study_id) if spec.rerun and not living else ()
        reached = {one.number: one.value for one in passed if one.value is not None}
        move = decide.next_move(spec, trials, usage, self._room(spec), exhausted=exhausted, reached=reached)
        if move.stop_trials is not None:
            self._stop_trials(living, move.stop_trials)
        if move.over is not None:
            return not self.writer.move(study, StudyState.FINISHED, move.over, known=len(trials))
        if move.rerun:
            self._enqueue_again([trials[number] for number in move.rerun])
        elif move.launch:
            self._launch(spec, trials)
        elif spec.pbt is not None:
            self.population.exploit(spec, spec.pbt, trials)
        return True

    def _enqueue_again(self, chosen: Sequence[TrialRecord]) -> None:
        """Points that were cut short run once more, to the end, each as a trial of its own."""
        with transaction(self.connection):
            for trial in chosen:
                number = rows.next_number(self.connection, self.study_id)
                rows.insert_trial(
                    self.connection, self.study_id, number, trial.params, state=TrialState.ENQUEUED, origin="rerun",
                    now=self.now(), parent=trial.number,
                )  # fmt: skip

    def _room(self, spec: StudySpec) -> int:
        gpus, leased, awaited = self.connection.execute(
            "SELECT (SELECT count(*) FROM gpus WHERE present AND uuid NOT IN (SELECT gpu_uuid FROM gpu_quarantine)), "
            "(SELECT count(DISTINCT l.gpu_uuid) FROM leases AS l JOIN runs AS r USING (run_id) "
            "WHERE r.study_id IS NOT ?1), (SELECT coalesce(sum(coalesce(gpu_count, max(spec ->> '$.gpus.count', "
            "json_array_length(spec, '$.gpus.uuids')))), 0) FROM runs "
            "WHERE state = 'queued' AND json_valid(spec) AND study_id IS NOT ?1 AND priority >= ?2)",
            (self.study_id, spec.priority),
        ).fetchone()
        assert self._base is not None
        cores = len(os.sched_getaffinity(0))
        return decide.room_for(spec, gpus, leased + awaited, cores, self._base.nproc, self._share(spec))

    def _share(self, spec: StudySpec) -> int:
        """How many trials fit on a GPU of the machine that nobody else uses, at most."""
        if spec.trials_per_gpu == 1:
            return 1
        peaks = study_peaks(self.connection, self.study_id)
        gpus = self.connection.execute("SELECT name, facts ->> '$.memory_total_bytes' FROM gpus WHERE present")
        fitting = (trials_on_gpu(spec.trials_per_gpu, total, 0, peaks.get(name)) for name, total in gpus)
        return max(fitting, default=1)

    def _launch(self, spec: StudySpec, trials: Sequence[TrialRecord]) -> None:
        """Begin the next trial: one that a person enqueued, else a new point."""
        enqueued = next((one for one in trials if one.state is TrialState.ENQUEUED), None)
        if enqueued is not None and enqueued.run_id is not None:
            self._take_up(enqueued)
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
            params, of_trial, of_study = self._synced(spec).ask()
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
            # A person enqueued a point meanwhile, which has the number; what was asked for is forgotten.
            self._mirror = None
            with suppress(OSError):
                ticket_path(self.workspace, ticket).unlink()
            return
        except sqlite3.Error:
            # Optuna has counted a trial that the store has not.
            self._mirror = None
            raise
        self.writer.ring()

    def _take_up(self, trial: TrialRecord) -> None:
        """A trial that was stopped together with the study goes on in its run."""
        end = self._end_of(trial)
        if end is None:
            # A person was quicker.
            with transaction(self.connection):
                self.writer.set_trial(trial, state=TrialState.RUNNING)
        elif "exploit" in trial.sampler:
            self.population.go_on_from_donor(trial)
        elif end.has_checkpoints and end.has_stepped:
            self._start_again(trial, "resume")
        else:
            self._start_again(trial, "restart")

    def _warm_start(self, spec: StudySpec) -> None:
        found = warm_trials(self.connection, spec)
        with transaction(self.connection):
            for number, (run_id, params, values, ended_at) in enumerate(found):
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
        """Ask all to stop that were not asked yet; a launch that no agent carried out is withdrawn."""
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

    def _synced(self, spec: StudySpec) -> OptunaMirror:
        """Optuna's view of what the store has."""
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
        """The specification of a trial's run as a private file, before its command is written."""
        assert self._base is not None
        return write_ticket(self.workspace, decide.trial_spec(self._base, spec, self.study_id, number, params))


def _by_end(trial: TrialRecord) -> float:
    return trial.ended_at or 0.0
