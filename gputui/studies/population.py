"""The members of a population: their values at milestones, and the checkpoints that they continue from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from gputui.runs.repository import transaction
from gputui.store.checkpoints import CheckpointRow
from gputui.store.studies import TrialRecord, TrialState, read_rungs
from gputui.studies import decide, donors, pbt
from gputui.studies.courses import CourseReader
from gputui.studies.lineage import LINEAGE, LineageSegment
from gputui.studies.spec import PbtSpec, StudySpec
from gputui.studies.writer import StudyWriter


class Population:
    """Carries out the decisions of `gputui.studies.pbt`. From the decision to its next attempt, a member that is to
    continue from another has the plan in its trial's ``sampler``."""

    def __init__(self, writer: StudyWriter, courses: CourseReader) -> None:
        self._writer = writer
        self._courses = courses

    def read_milestones(self, spec: StudySpec, population: PbtSpec, trial: TrialRecord) -> None:
        """Store a member's value at each milestone that it has passed since it last continued from another."""
        objective = spec.objectives[0]
        course = self._courses.read(spec, trial).get(objective.metric)
        after = trial.sampler.get("after", 0)
        points_since = [point for point in course.points if point.attempt > after] if course is not None else []
        if not points_since or "exploit" in trial.sampler:
            return
        passed = int(points_since[-1].position // population.every)
        if passed <= (trial.rung or 0):
            return
        with transaction(self._writer.connection):
            for milestone in range((trial.rung or 0) + 1, passed + 1):
                points = [point for point in points_since if point.position <= milestone * population.every]
                value = decide.objective_value(points, objective)
                if points and value is not None:
                    self._writer.connection.execute(
                        "INSERT OR IGNORE INTO trial_rungs (study_id, number, rung, step, value, attempt, at) "
                        "VALUES (?, ?, ?, ?, ?, ?, ?)",
                        (
                            self._writer.study_id, trial.number, milestone, points[-1].step,
                            None if math.isnan(value) else value, points[-1].attempt, self._writer.now(),
                        ),
                    )  # fmt: skip
            self._writer.set_trial(trial, rung=passed)

    def exploit(self, spec: StudySpec, population: PbtSpec, trials: Sequence[TrialRecord]) -> None:
        """Compare the members at a milestone that all have passed, and stop the worst: they continue from checkpoints
        of the best. These are first pinned in the study's folder, where no rotation removes them. Members that have
        ended are compared too, and can be donors."""
        connection, study_id = self._writer.connection, self._writer.study_id
        training = [trial for trial in trials if trial.state is TrialState.RUNNING]
        if any(not trial.state.is_over and trial.state is not TrialState.RUNNING for trial in trials):
            # A member that is about to continue from a donor is compared once it trains again.
            return
        values: dict[int, dict[int, float]] = {trial.number: {} for trial in trials}
        for rung in read_rungs(connection, study_id):
            if rung.number in values:
                values[rung.number][rung.rung] = math.nan if rung.value is None else rung.value
        (state,) = connection.execute("SELECT sampler FROM studies WHERE study_id = ?", (study_id,)).fetchone()
        decided = int(json.loads(state).get("milestone", 0))
        milestone = pbt.due_milestone([values[trial.number] for trial in training], decided)
        if milestone is None or pbt.is_last(milestone, population):
            return
        compared = [trial for trial in trials if trial in training or trial.state is TrialState.COMPLETE]
        # From a checkpoint of the last step nothing is left to train.
        last_useful = None if population.length is None else population.length - 1
        checkpoints = {
            trial.number: donors.newest_valid_checkpoint(
                connection, trial.run_id or "", last_useful if trial in training else milestone * population.every
            )
            for trial in compared
        }
        if not any(checkpoints.values()):
            return  # the agent has not found any yet
        members = [
            pbt.PopulationMember(
                trial.number, trial.params, values[trial.number][milestone],
                can_give=checkpoints[trial.number] is not None, trains=trial in training,
            )
            for trial in compared
            if milestone in values[trial.number]
        ]  # fmt: skip
        exploits = pbt.exploits(members, milestone, population, spec.space, spec.objectives[0], spec.seed)
        self._store_exploits(exploits, milestone, {trial.number: trial for trial in training}, checkpoints)

    def _store_exploits(
        self,
        exploits: Sequence[pbt.Exploit],
        milestone: int,
        training: Mapping[int, TrialRecord],
        checkpoints: Mapping[int, CheckpointRow | None],
    ) -> None:
        """Pin the donors' checkpoints, store the plans of the members and stop these."""
        writer = self._writer
        folder = writer.workspace.studies / writer.study_id / donors.PINS
        plans = []
        for exploit in exploits:
            checkpoint = checkpoints[exploit.donor]
            pinned = None if checkpoint is None else donors.pin(folder, exploit, milestone, Path(checkpoint.path))
            if checkpoint is not None and pinned is not None:
                plan = {
                    "donor": exploit.donor, "donor_attempt": checkpoint.attempt, "milestone": milestone,
                    "step": donors.step_of(checkpoint), "params": dict(exploit.params), "from": str(pinned.path),
                    "seen": pinned.version,
                }  # fmt: skip
                plans.append((training[exploit.number], plan))
        with transaction(writer.connection):
            for member, plan in plans:
                reason = f"continues from trial {plan['donor']} after milestone {milestone}"
                writer.set_trial(
                    member, state=TrialState.STOPPING, reason=reason, rung=milestone,
                    sampler=json.dumps({**member.sampler, "exploit": plan}),
                )  # fmt: skip
                # Values behind the milestone belong to the training that is abandoned.
                writer.connection.execute(
                    "DELETE FROM trial_rungs WHERE study_id = ? AND number = ? AND rung > ?",
                    (writer.study_id, member.number, milestone),
                )
                writer.ask_stop(member, reason)
            writer.connection.execute(
                "UPDATE studies SET sampler = ? WHERE study_id = ?",
                (json.dumps({"milestone": milestone}), writer.study_id),
            )
        writer.ring()

    def continue_from_donor(self, trial: TrialRecord) -> None:
        """Begin the next attempt of a stopped member from its donor's checkpoint."""
        plan = trial.sampler["exploit"]
        if donors.file_version(Path(plan["from"])) != plan["seen"]:
            # The donor's script has overwritten the file with a later checkpoint.
            self._continue(trial, plan, {"set": plan["params"]}, parent=None)
        else:
            self._continue(trial, plan, {"from": plan["from"], "set": plan["params"]}, parent=plan["donor"])

    def _continue(
        self, trial: TrialRecord, plan: Mapping[str, Any], words: Mapping[str, Any], parent: int | None
    ) -> None:
        (attempt,) = self._writer.connection.execute(
            "SELECT coalesce(max(number), 0) FROM attempts WHERE run_id = ?", (trial.run_id,)
        ).fetchone()
        segment = LineageSegment(attempt + 1, parent, plan["donor_attempt"], plan["step"])
        with transaction(self._writer.connection):
            command_id = self._writer.ask("resume", trial.run_id, words)
            self._writer.set_trial(
                trial, state=TrialState.LAUNCHING, command_id=command_id, params=json.dumps(plan["params"]),
                parent=parent, generation=plan["milestone"], reason=None, ended_at=None,
                sampler=json.dumps({"after": attempt, LINEAGE: [*trial.sampler.get(LINEAGE, ()), asdict(segment)]}),
            )  # fmt: skip
        self._writer.ring()

    def continue_from_own(self, trial: TrialRecord) -> None:
        """Continue from the member's own newest checkpoint with the new parameters, because the donor's was refused."""
        words = {"set": dict(trial.params)}
        *earlier, segment = trial.sampler[LINEAGE]
        sampler = {**trial.sampler, LINEAGE: [*earlier, {**segment, "donor": None}]}
        with transaction(self._writer.connection):
            command_id = self._writer.ask("resume", trial.run_id, words)
            self._writer.set_trial(trial, command_id=command_id, parent=None, sampler=json.dumps(sampler))
        self._writer.ring()
