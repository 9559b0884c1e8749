"""The process of one study: it reads rows, decides, and writes trials together with the commands that carry them out.

It is crash-only: what it decides is one transaction each, all else is read back from the store. The agent starts it,
and starts it again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from gputui.config import PRIVATE_FILE_MODE, Workspace
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.runs.submission import read_spec, ticket_path, write_ticket
from gputui.store import commands
from gputui.store.metrics.objectives import reported_values
from gputui.store.metrics.queries import Cursor, latest, metric_names
from gputui.store.run_states import RunState
from gputui.store.studies import (
    StudyRecord,
    StudyState,
    TrialRecord,
    TrialState,
    get_study,
    read_rungs,
    read_trials,
    study_gpu_hours,
)
from gputui.studies import decide, donors, pbt, rows
from gputui.studies.decide import ObjectiveCourse, ObjectivePoint, Ruling, RunEnd, Usage
from gputui.studies.sampling import OptunaMirror, missing_library
from gputui.studies.spec import PbtSpec, StudySpec
from gputui.studies.warm_start import warm_trials
from gputui.yaml_forms.nearest import nearest

log = logging.getLogger(__name__)

PEAK_METRIC, STEP_METRIC = "gpu_mem_peak", "step_time"
MOST_LAUNCHES = 2
"""How often a launch is asked for that the agent refuses, before the study pauses."""


@dataclass(slots=True)
class _Followed:
    """How far the metrics of a trial's run were read."""

    run_id: str
    cursor: Cursor = field(default_factory=dict)
    courses: dict[str, ObjectiveCourse] = field(default_factory=dict)


class StudyProcess:
    """One study from where the store has it. ``connection`` may write; ``now`` gives UTC unix seconds.

    Raises SpecError where the study's private specification cannot be read.
    """

    def __init__(
        self, workspace: Workspace, connection: sqlite3.Connection, study_id: str, now: Callable[[], float]
    ) -> None:
        self.workspace = workspace
        self.connection = connection
        self.study_id = study_id
        self.now = now
        self.actor = f"study {study_id}"
        self.base: RunSpec = read_spec(workspace.studies / study_id / rows.SPEC_FILE)
        self.spec: StudySpec | None = None
        self._spec_json = ""
        self._mirror: OptunaMirror | None = None
        self._followed: dict[int, _Followed] = {}

    def turn(self) -> bool:
        """Do what is due; whether the study still needs a process. Raises sqlite3.Error and what Optuna raises; another
        process then goes on from the store."""
        study = get_study(self.connection, self.study_id)
        if study is None or study.state.is_over:
            return False
        if study.spec_json != self._spec_json:
            self.spec = StudySpec.from_json(json.loads(study.spec_json))
            self._spec_json = study.spec_json
        spec = self.spec
        assert spec is not None
        if study.state is StudyState.RUNNING and (missing := missing_library(spec)) is not None:
            self._move(study, StudyState.PAUSED, f"{missing}, then gputui study resume {self.study_id}")
            return True
        trials = read_trials(self.connection, self.study_id)
        if study.state is StudyState.RUNNING and not trials and spec.warm_start:
            self._warm_start(spec)
        for trial in trials:
            if not trial.state.is_over and trial.state is not TrialState.ENQUEUED:
                self._follow(study, spec, trial)
        study = get_study(self.connection, self.study_id)
        assert study is not None
        trials = read_trials(self.connection, self.study_id)
        living = [one for one in trials if not one.state.is_over and one.state is not TrialState.ENQUEUED]
        if study.state is StudyState.STOPPING:
            self._stop_trials(living, study.reason or "the study was stopped")
            if not living:
                self._move(study, StudyState.STOPPED, study.reason or "stopped")
            return bool(living)
        if study.state is StudyState.RUNNING:
            return self._advance(study, spec, trials, living)
        return bool(living) and not study.state.is_over

    # --- one trial ------------------------------------------------------------------------------------------------

    def _follow(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord) -> None:
        if trial.state is TrialState.LAUNCHING:
            self._look_at_launch(study, spec, trial)
            return
        # Before its metrics: what a run that is over reported is then all there.
        end = self._end_of(trial)
        if end is None and trial.state is not TrialState.RUNNING and self._is_refused(trial.command_id):
            # As where the disk was full: a stop that was decided is asked for until it is carried out.
            with transaction(self.connection):
                self._ask_stop(trial, trial.reason or "")
        if trial.run_id is not None and spec.pbt is not None:
            self._read_milestones(spec, spec.pbt, trial)
        elif trial.run_id is not None:
            is_going = end is None and study.state is not StudyState.STOPPING
            self._read_metrics(spec, trial, is_going=is_going)
        goes_on = "exploit" in trial.sampler and study.state is not StudyState.STOPPING
        if end is not None and goes_on and end.state is not RunState.SUCCEEDED:
            self._go_on_from_donor(trial)
        elif end is not None:
            self._rule(study, spec, trial, end)

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
                self._set(trial, state=TrialState.RUNNING)
        elif answer.verb == "resume" and trial.parent is not None:
            self._go_on_from_own(trial)
        elif answer.verb == "resume":
            # No checkpoint of it can be used.
            self._start_again(trial, "restart")
        elif answer.verb == "restart":
            with transaction(self.connection):
                self._end(trial, Ruling(TrialState.FAILED, answer.reason))
        elif trial.starts < MOST_LAUNCHES and study.state is StudyState.RUNNING:
            ticket = self._write_ticket(spec, trial.number, trial.params)
            with transaction(self.connection):
                command_id = self._ask_run(trial.number, ticket)
                self._set(trial, command_id=command_id, starts=trial.starts + 1)
            self._ring()
        elif study.state is StudyState.RUNNING:
            reason = f"trial {trial.number} cannot be launched: {answer.reason}"
            self._move(study, StudyState.PAUSED, f"{reason}; then gputui study resume {self.study_id}")

    def _end_of(self, trial: TrialRecord) -> RunEnd | None:
        """How the trial's run ended, None while it lives. A run that was removed counts as stopped."""
        row = None
        if trial.run_id is not None:
            row = self.connection.execute(
                "SELECT state, reason, EXISTS (SELECT 1 FROM attempts AS a WHERE a.run_id = runs.run_id "
                "AND a.last_step IS NOT NULL), spec ->> '$.checkpoints' IS NOT NULL FROM runs WHERE run_id = ?",
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

    def _courses(self, spec: StudySpec, trial: TrialRecord) -> dict[str, ObjectiveCourse]:
        """The values of each objective's metric, as far as they are stored."""
        assert trial.run_id is not None
        followed = self._followed.get(trial.number)
        if followed is None or followed.run_id != trial.run_id:
            followed = self._followed[trial.number] = _Followed(trial.run_id)
        by = spec.pruner.by
        metrics = list(dict.fromkeys(one.metric for one in spec.objectives))
        values, followed.cursor = reported_values(self.connection, trial.run_id, metrics, by, followed.cursor)
        for one in values:
            # Steps count from 0: that with number 9 is the tenth.
            position = one.position if one.position is not None else one.step + 1.0
            point = ObjectivePoint(position, one.step, one.value, one.attempt, one.at or self.now())
            followed.courses.setdefault(one.metric, ObjectiveCourse()).add(point)
        return followed.courses

    def _read_metrics(self, spec: StudySpec, trial: TrialRecord, *, is_going: bool) -> None:
        courses = self._courses(spec, trial)
        if spec.pruner.kind == "none" or trial.state is not TrialState.RUNNING:
            return
        objective = spec.objectives[0]
        course = courses.get(objective.metric)
        if course is None or not course.points:
            return
        newest = course.points[-1]
        rung = decide.rung_passed(newest.position, spec.pruner)
        if rung <= (trial.rung or 0):
            return
        value = decide.objective_value(course.points, objective)
        number = None if value is None or math.isnan(value) else value
        reason = None
        if number is not None and is_going and rung < spec.pruner.rungs and missing_library(spec) is None:
            reason = self._pruned(spec, trial, rung, number)
        with transaction(self.connection):
            self.connection.execute(
                "INSERT OR IGNORE INTO trial_rungs (study_id, number, rung, step, value, attempt, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.study_id, trial.number, rung, newest.step, number, newest.attempt, self.now()),
            )
            self._set(trial, rung=rung)
            if reason is not None:
                self._set(trial, state=TrialState.PRUNING, reason=reason)
                self._ask_stop(trial, reason)
        if reason is not None:
            self._ring()

    def _read_milestones(self, spec: StudySpec, population: PbtSpec, trial: TrialRecord) -> None:
        """Store what a member had reached at each milestone that it has passed since it last went on from another."""
        objective = spec.objectives[0]
        course = self._courses(spec, trial).get(objective.metric)
        after = trial.sampler.get("after", 0)
        of_course = [one for one in course.points if one.attempt > after] if course is not None else []
        if not of_course or "exploit" in trial.sampler:
            return
        passed = int(of_course[-1].position // population.every)
        if passed <= (trial.rung or 0):
            return
        with transaction(self.connection):
            for milestone in range((trial.rung or 0) + 1, passed + 1):
                points = [one for one in of_course if one.position <= milestone * population.every]
                value = decide.objective_value(points, objective)
                if points and value is not None:
                    self.connection.execute(
                        "INSERT OR IGNORE INTO trial_rungs (study_id, number, rung, step, value, attempt, at) "
                        "VALUES (?, ?, ?, ?, ?, ?, ?)",
                        (
                            self.study_id, trial.number, milestone, points[-1].step,
                            None if math.isnan(value) else value, points[-1].attempt, self.now(),
                        ),
                    )  # fmt: skip
            self._set(trial, rung=passed)

    def _exploit(self, spec: StudySpec, population: PbtSpec, living: Sequence[TrialRecord]) -> None:
        """Compare the members at a milestone that all have passed: the worst are asked to stop, to go on from
        checkpoints of the best. Those are linked into the study's folder first, where no rotation removes them."""
        values: dict[int, dict[int, float]] = {one.number: {} for one in living}
        for rung in read_rungs(self.connection, self.study_id):
            if rung.number in values:
                values[rung.number][rung.rung] = math.nan if rung.value is None else rung.value
        (remembered,) = self.connection.execute(
            "SELECT sampler FROM studies WHERE study_id = ?", (self.study_id,)
        ).fetchone()
        decided = int(json.loads(remembered).get("milestone", 0))
        training = [one for one in living if one.state is TrialState.RUNNING]
        if len(training) < len(living):
            # One of them is about to go on from elsewhere; it is compared, and may give, once it trains.
            return
        milestone = pbt.due_milestone([values[one.number] for one in training], decided)
        if milestone is None:
            return
        found = {one.number: donors.whole_checkpoint(self.connection, one.run_id or "") for one in training}
        if not any(found.values()):
            # The agent has not found any yet.
            return
        members = [
            pbt.PopulationMember(one.number, one.params, values[one.number][milestone], found[one.number] is not None)
            for one in training
            if milestone in values[one.number]
        ]
        asked = pbt.exploits(members, milestone, population, spec.space, spec.objectives[0], spec.seed)
        folder = self.workspace.studies / self.study_id / donors.PINS
        pins = {one.number: donors.pin(folder, one, milestone, found[one.donor]) for one in asked}
        trials = {one.number: one for one in training}
        with transaction(self.connection):
            for one in asked:
                path = pins[one.number]
                if path is None:
                    continue
                plan = {"donor": one.donor, "milestone": milestone, "params": dict(one.params), "from": str(path)}
                reason = f"goes on from trial {one.donor} after milestone {milestone}"
                self._set(
                    trials[one.number], state=TrialState.STOPPING, reason=reason, rung=milestone,
                    sampler=json.dumps({"exploit": plan}),
                )  # fmt: skip
                # What it reached beyond belongs to the training that it leaves.
                self.connection.execute(
                    "DELETE FROM trial_rungs WHERE study_id = ? AND number = ? AND rung > ?",
                    (self.study_id, one.number, milestone),
                )
                self._ask_stop(trials[one.number], reason)
            self.connection.execute(
                "UPDATE studies SET sampler = ? WHERE study_id = ?",
                (json.dumps({"milestone": milestone}), self.study_id),
            )
        self._ring()

    def _go_on_from_donor(self, trial: TrialRecord) -> None:
        """A member that was asked to stop for it has ended: its next attempt begins from the donor's checkpoint."""
        plan = trial.sampler["exploit"]
        (attempt,) = self.connection.execute(
            "SELECT coalesce(max(number), 0) FROM attempts WHERE run_id = ?", (trial.run_id,)
        ).fetchone()
        words = {"from": plan["from"], "set": plan["params"]}
        with transaction(self.connection):
            command_id = commands.submit(self.connection, "resume", trial.run_id, words, self.actor, now=self.now())
            self._set(
                trial, state=TrialState.LAUNCHING, command_id=command_id, params=json.dumps(plan["params"]),
                parent=plan["donor"], generation=plan["milestone"], reason=None,
                sampler=json.dumps({"after": attempt}),
            )  # fmt: skip
        self._ring()

    def _go_on_from_own(self, trial: TrialRecord) -> None:
        """The donor's checkpoint was refused: the member goes on from its own newest one, with the new parameters."""
        words = {"set": dict(trial.params)}
        with transaction(self.connection):
            command_id = commands.submit(self.connection, "resume", trial.run_id, words, self.actor, now=self.now())
            self._set(trial, command_id=command_id, parent=None)
        self._ring()

    def _pruned(self, spec: StudySpec, trial: TrialRecord, rung: int, value: float) -> str | None:
        """Why the trial is cut short at a rung, None where it goes on."""
        mirror = self._synced(spec)
        mirror.report(trial.number, rung, value)
        if not mirror.should_prune(trial.number):
            return None
        others = [
            one.value
            for one in read_rungs(self.connection, self.study_id)
            if one.rung == rung and one.number != trial.number and one.value is not None
        ]
        return decide.place_words(rung, value, others, spec.objectives[0])

    def _rule(self, study: StudyRecord, spec: StudySpec, trial: TrialRecord, end: RunEnd) -> None:
        """Write the verdict on a trial whose run is over, or start the same point again."""
        courses = self._courses(spec, trial) if trial.run_id is not None else {}
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
            self._end(trial, ruled)
        self._followed.pop(trial.number, None)
        if study.state is StudyState.RUNNING and ruled.state is TrialState.FAILED:
            self._look_at_failure(study, spec, trial, end, values)

    def _look_at_failure(
        self, study: StudyRecord, spec: StudySpec, trial: TrialRecord, end: RunEnd, values: Sequence[float | None]
    ) -> None:
        """Whether no other trial can do better than the one that failed."""
        trials = read_trials(self.connection, self.study_id)
        if end.state is RunState.SUCCEEDED and None in values and not any(one.values for one in trials):
            metric = next(one.metric for one, value in zip(spec.objectives, values, strict=True) if value is None)
            names = metric_names(self.connection, trial.run_id or "")
            meant = nearest(metric, names)
            told = f"did you mean {meant}?" if meant else f"there are {', '.join(names) or 'none'}"
            self._move(study, StudyState.PAUSED, f"no line of trial {trial.number} reports {metric}; {told}")
            return
        over = sorted((one for one in trials if one.ended_at is not None and one.origin != "warm"), key=_by_end)
        ends = [(self._incident_of(one.run_id), self._has_stepped(one)) for one in over]
        if decide.same_error([(None if kind is None else kind[1], stepped) for kind, stepped in ends]):
            living = [one for one in trials if not one.state.is_over and one.state is not TrialState.ENQUEUED]
            reason = f"{decide.SAME_ERRORS} trials failed alike at their start: {end.reason}"
            self._stop_trials(living, reason)
            if not living:
                self._move(study, StudyState.FAILED, reason)
            else:
                self._move(study, StudyState.STOPPING, reason)

    def _has_stepped(self, trial: TrialRecord) -> bool:
        row = self.connection.execute(
            "SELECT 1 FROM attempts WHERE run_id = ? AND last_step IS NOT NULL", (trial.run_id,)
        ).fetchone()
        return row is not None

    def _constraints(self, spec: StudySpec, trial: TrialRecord) -> tuple[float, ...]:
        if not spec.constraints.count or trial.run_id is None:
            return ()
        newest = latest(self.connection, trial.run_id)
        (peak,) = self.connection.execute(
            "SELECT max(n.data ->> ?) FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) "
            "WHERE s.run_id = ?",
            (f'$."{PEAK_METRIC}"', trial.run_id),
        ).fetchone()
        return decide.constraint_values(spec, peak if isinstance(peak, (int, float)) else None, newest.get(STEP_METRIC))

    def _start_again(self, trial: TrialRecord, verb: Literal["resume", "restart"]) -> None:
        """Ask for the same point once more, in the same run."""
        with transaction(self.connection):
            command_id = commands.submit(self.connection, verb, trial.run_id, {}, self.actor, now=self.now())
            starts = trial.starts + (trial.state is not TrialState.LAUNCHING)
            self._set(trial, state=TrialState.LAUNCHING, command_id=command_id, starts=starts)
        self._ring()

    # --- the study ------------------------------------------------------------------------------------------------

    def _advance(
        self, study: StudyRecord, spec: StudySpec, trials: Sequence[TrialRecord], living: Sequence[TrialRecord]
    ) -> bool:
        usage = Usage(
            study_gpu_hours(self.connection, self.study_id, self.now()), max(0.0, self.now() - study.created_at)
        )
        is_grid = spec.sampler.kind == "grid"
        exhausted = is_grid and decide.grid_point(spec, trials) is None
        move = decide.next_move(spec, trials, usage, self._room(spec), exhausted=exhausted)
        if move.stop_trials is not None:
            self._stop_trials(living, move.stop_trials)
        if move.over is not None:
            self._move(study, StudyState.FINISHED, move.over)
            return False
        if move.launch:
            self._launch(spec, trials)
        elif spec.pbt is not None:
            self._exploit(spec, spec.pbt, living)
        return True

    def _room(self, spec: StudySpec) -> int:
        gpus, leased, awaited = self.connection.execute(
            "SELECT (SELECT count(*) FROM gpus WHERE present AND uuid NOT IN (SELECT gpu_uuid FROM gpu_quarantine)), "
            "(SELECT count(*) FROM leases AS l JOIN runs AS r USING (run_id) WHERE r.study_id IS NOT ?1), "
            "(SELECT coalesce(sum(coalesce(gpu_count, max(spec ->> '$.gpus.count', "
            "json_array_length(spec, '$.gpus.uuids')))), 0) FROM runs "
            "WHERE state = 'queued' AND study_id IS NOT ?1 AND priority >= ?2)",
            (self.study_id, spec.priority),
        ).fetchone()
        return decide.room_for(spec, gpus, leased + awaited, len(os.sched_getaffinity(0)), self.base.nproc)

    def _launch(self, spec: StudySpec, trials: Sequence[TrialRecord]) -> None:
        """Begin the next trial: one that a person enqueued, else a new point."""
        enqueued = next((one for one in trials if one.state is TrialState.ENQUEUED), None)
        if enqueued is not None:
            ticket = self._write_ticket(spec, enqueued.number, enqueued.params)
            with transaction(self.connection):
                command_id = self._ask_run(enqueued.number, ticket)
                self._set(enqueued, state=TrialState.LAUNCHING, command_id=command_id, starts=1)
            self._ring()
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
                command_id = self._ask_run(number, ticket)
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
        self._ring()

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
        """Ask all to stop that were not asked yet; a launch that nobody carried out is withdrawn."""
        for trial in living:
            if trial.state is TrialState.LAUNCHING:
                with transaction(self.connection):
                    if (
                        trial.command_id is None
                        or commands.withdraw(self.connection, trial.command_id)
                        or self._is_refused(trial.command_id)
                    ):
                        self._end(trial, Ruling(TrialState.STOPPED, reason))
                    else:
                        self._set(trial, state=TrialState.RUNNING)
            elif trial.state is TrialState.RUNNING:
                with transaction(self.connection):
                    self._set(trial, state=TrialState.STOPPING, reason=reason)
                    self._ask_stop(trial, reason)
        self._ring()

    def _is_refused(self, command_id: int | None) -> bool:
        answer = None if command_id is None else commands.answer(self.connection, command_id)
        return answer is not None and answer.state == "refused"

    # --- rows -----------------------------------------------------------------------------------------------------

    def _synced(self, spec: StudySpec) -> OptunaMirror:
        """Optuna's view of what the store has."""
        if self._mirror is None:
            (remembered,) = self.connection.execute(
                "SELECT sampler FROM studies WHERE study_id = ?", (self.study_id,)
            ).fetchone()
            self._mirror = OptunaMirror(spec, self.study_id, json.loads(remembered))
        self._mirror.sync(read_trials(self.connection, self.study_id), read_rungs(self.connection, self.study_id))
        return self._mirror

    def _write_ticket(self, spec: StudySpec, number: int, params: Any) -> str:
        """The specification of a trial's run as a private file, before its command is written."""
        return write_ticket(self.workspace, decide.trial_spec(self.base, spec, self.study_id, number, params))

    def _ask_run(self, number: int, ticket: str) -> int:
        words = {"ticket": ticket, "name": f"{self.study_id}-t{number}"}
        return commands.submit(self.connection, "run", None, words, self.actor, now=self.now())

    def _ask_stop(self, trial: TrialRecord, reason: str) -> None:
        """At once: a trial that is cut short saves no last checkpoint."""
        words = {"now": True, "reason": reason}
        command_id = commands.submit(self.connection, "stop", trial.run_id, words, self.actor, now=self.now())
        self._set(trial, command_id=command_id)

    def _ring(self) -> None:
        """Wake the agent, once what it is to do is committed; a bell that cannot be rung only delays it."""
        with suppress(OSError):
            self.workspace.doorbell.touch(mode=PRIVATE_FILE_MODE)

    def _set(self, trial: TrialRecord, **values: Any) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        self.connection.execute(
            f"UPDATE trials SET {columns} WHERE study_id = ? AND number = ?",  # noqa: S608 - the program's own names
            (*values.values(), self.study_id, trial.number),
        )

    def _end(self, trial: TrialRecord, ruled: Ruling) -> None:
        self._set(
            trial,
            state=ruled.state,
            reason=ruled.reason,
            value=ruled.values[0] if ruled.values else None,
            objective_values=json.dumps(ruled.values) if ruled.values else None,
            constraint_values=json.dumps(ruled.constraints) if ruled.constraints else None,
            ended_at=self.now(),
        )

    def _move(self, study: StudyRecord, target: StudyState, cause: str) -> None:
        with transaction(self.connection):
            current = get_study(self.connection, self.study_id)
            # What a person asked for meanwhile goes first.
            if current is not None and current.state is study.state:
                rows.move_study(self.connection, study, target, cause=cause, actor=self.actor, now=self.now())


def _by_end(trial: TrialRecord) -> float:
    return trial.ended_at or 0.0
