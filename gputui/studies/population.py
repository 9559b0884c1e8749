"""The members of a population: what they reached at milestones, and which go on from checkpoints of which others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.runs.repository import transaction
from gputui.store.studies import TrialRecord, TrialState, read_rungs
from gputui.studies import decide, donors, pbt
from gputui.studies.courses import CourseReader
from gputui.studies.lineage import LINEAGE, LineageSegment
from gputui.studies.spec import PbtSpec, StudySpec
from gputui.studies.writer import StudyWriter


class Population:
    """Carries out what `gputui.studies.pbt` decides. A member that is to go on from another has the plan in its trial's
    ``sampler`` from the decision until its next attempt is asked for."""

    def __init__(self, writer: StudyWriter, courses: CourseReader) -> None:
        self._writer = writer
        self._courses = courses

    def read_milestones(self, spec: StudySpec, population: PbtSpec, trial: TrialRecord) -> None:
        """Store what a member had reached at each milestone that it has passed since it last went on from another."""
        objective = spec.objectives[0]
        course = self._courses.read(spec, trial).get(objective.metric)
        after = trial.sampler.get("after", 0)
        of_course = [one for one in course.points if one.attempt > after] if course is not None else []
        if not of_course or "exploit" in trial.sampler:
            return
        passed = int(of_course[-1].position // population.every)
        if passed <= (trial.rung or 0):
            return
        with transaction(self._writer.connection):
            for milestone in range((trial.rung or 0) + 1, passed + 1):
                points = [one for one in of_course if one.position <= milestone * population.every]
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
        """Compare the members at a milestone that all have passed: the worst are asked to stop, to go on from
        checkpoints of the best. Those are pinned in the study's folder first, where no rotation removes them. Members
        that have ended are compared, too, and may give."""
        values: dict[int, dict[int, float]] = {one.number: {} for one in trials}
        for rung in read_rungs(self._writer.connection, self._writer.study_id):
            if rung.number in values:
                values[rung.number][rung.rung] = math.nan if rung.value is None else rung.value
        (remembered,) = self._writer.connection.execute(
            "SELECT sampler FROM studies WHERE study_id = ?", (self._writer.study_id,)
        ).fetchone()
        decided = int(json.loads(remembered).get("milestone", 0))
        training = [one for one in trials if one.state is TrialState.RUNNING]
        if any(not one.state.is_over and one.state is not TrialState.RUNNING for one in trials):
            # One of them is about to go on from elsewhere; it is compared, and may give, once it trains.
            return
        milestone = pbt.due_milestone([values[one.number] for one in training], decided)
        if milestone is None or pbt.is_last(milestone, population):
            return
        compared = [one for one in trials if one in training or one.state is TrialState.COMPLETE]
        # What a member saved at the end of its training leaves nothing to train.
        last = None if population.length is None else population.length - 1
        found = {
            one.number: donors.whole_checkpoint(
                self._writer.connection, one.run_id or "", last if one in training else milestone * population.every
            )
            for one in compared
        }
        if not any(found.values()):
            # The agent has not found any yet.
            return
        members = [
            pbt.PopulationMember(
                one.number, one.params, values[one.number][milestone], found[one.number] is not None, one in training
            )
            for one in compared
            if milestone in values[one.number]
        ]
        asked = pbt.exploits(members, milestone, population, spec.space, spec.objectives[0], spec.seed)
        folder = self._writer.workspace.studies / self._writer.study_id / donors.PINS
        pins = {
            one.number: donors.pin(folder, one, milestone, None if given is None else Path(given.path))
            for one in asked
            for given in (found[one.donor],)
        }
        with transaction(self._writer.connection):
            for one in asked:
                pinned, given = pins[one.number], found[one.donor]
                if pinned is None or given is None:
                    continue
                member = next(each for each in training if each.number == one.number)
                plan = {
                    "donor": one.donor, "donor_attempt": given.attempt, "milestone": milestone,
                    "step": donors.step_of(given),
                    "params": dict(one.params), "from": str(pinned.path), "seen": pinned.seen,
                }  # fmt: skip
                reason = f"continues from trial {one.donor} after milestone {milestone}"
                self._writer.set_trial(
                    member, state=TrialState.STOPPING, reason=reason, rung=milestone,
                    sampler=json.dumps({**member.sampler, "exploit": plan}),
                )  # fmt: skip
                # What it reached beyond belongs to the training that it leaves.
                self._writer.connection.execute(
                    "DELETE FROM trial_rungs WHERE study_id = ? AND number = ? AND rung > ?",
                    (self._writer.study_id, one.number, milestone),
                )
                self._writer.ask_stop(member, reason)
            self._writer.connection.execute(
                "UPDATE studies SET sampler = ? WHERE study_id = ?",
                (json.dumps({"milestone": milestone}), self._writer.study_id),
            )
        self._writer.ring()

    def go_on_from_donor(self, trial: TrialRecord) -> None:
        """A member that was asked to stop for it has ended: its next attempt begins from the donor's checkpoint."""
        plan = trial.sampler["exploit"]
        if donors.seen(Path(plan["from"])) != plan["seen"]:
            # Its script writes into the very file again: what is there now is not what was compared.
            self._go_on(trial, plan, {"set": plan["params"]}, parent=None)
        else:
            self._go_on(trial, plan, {"from": plan["from"], "set": plan["params"]}, parent=plan["donor"])

    def _go_on(self, trial: TrialRecord, plan: Mapping[str, Any], words: Mapping[str, Any], parent: int | None) -> None:
        (attempt,) = self._writer.connection.execute(
            "SELECT coalesce(max(number), 0) FROM attempts WHERE run_id = ?", (trial.run_id,)
        ).fetchone()
        segment = LineageSegment(attempt + 1, parent, plan["donor_attempt"], plan["step"]).to_json()
        with transaction(self._writer.connection):
            command_id = self._writer.ask("resume", trial.run_id, words)
            self._writer.set_trial(
                trial, state=TrialState.LAUNCHING, command_id=command_id, params=json.dumps(plan["params"]),
                parent=parent, generation=plan["milestone"], reason=None, ended_at=None,
                sampler=json.dumps({"after": attempt, LINEAGE: [*trial.sampler.get(LINEAGE, ()), segment]}),
            )  # fmt: skip
        self._writer.ring()

    def go_on_from_own(self, trial: TrialRecord) -> None:
        """The donor's checkpoint was refused: the member goes on from its own newest one, with the new parameters."""
        words = {"set": dict(trial.params)}
        *earlier, segment = trial.sampler[LINEAGE]
        kept = {**trial.sampler, LINEAGE: [*earlier, {**segment, "donor": None}]}
        with transaction(self._writer.connection):
            command_id = self._writer.ask("resume", trial.run_id, words)
            self._writer.set_trial(trial, command_id=command_id, parent=None, sampler=json.dumps(kept))
        self._writer.ring()
