"""The members of a population: their values at milestones, and the checkpoints that they continue
from.

A member that is to continue from another has the plan in its trial's ``population`` until its next
attempt begins. The checkpoint is pinned in the study's folder, where no rotation removes it.
"""

from __future__ import annotations

import glob
import json
import math
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from gputui.core.config import PRIVATE_DIR_MODE
from gputui.recovery.checkpoints.choices import choose, is_unchanged, passed_over
from gputui.recovery.checkpoints.resumable import spans_of
from gputui.runs.checkpoint_formats import validate
from gputui.runs.checkpoint_names import explicit_step
from gputui.runs.repository import transaction
from gputui.store import checkpoints
from gputui.store.attempts import read_attempts
from gputui.store.checkpoints import CheckpointRow
from gputui.store.runs import get_run
from gputui.store.studies import OUTSIDE, TrialRecord, TrialState, read_rungs
from gputui.studies import pbt, rows
from gputui.studies.journal import StudyJournal
from gputui.studies.rows import StudyWriter
from gputui.studies.run_queries import ObjectiveReader
from gputui.studies.rungs import PassedRung, objective_value
from gputui.studies.spec import PbtSpec, StudySpec

LINEAGE = "lineage"
"""The key of a trial's ``population`` with its segments, oldest first."""


class LineageSegment(Struct, frozen=True):
    """A part of a member's training that began from a checkpoint with new parameters.

    Attributes:
        attempt: the first attempt of the member's run in this part.
        donor: the trial that wrote the checkpoint; None for the member itself.
        donor_attempt: the attempt that wrote it.
        step: the checkpoint's step; None if its name has none.
    """

    attempt: int
    donor: int | None
    donor_attempt: int
    step: int | None


def segments_of(trial: TrialRecord) -> list[LineageSegment]:
    """The parts of a member's training after its first, oldest first."""
    return msgspec.convert(trial.population.get(LINEAGE, []), list[LineageSegment])


class Population:
    """Carries out the decisions of `gputui.studies.pbt`."""

    def __init__(self, writer: StudyWriter, curves: ObjectiveReader, journal: StudyJournal) -> None:
        self._writer = writer
        self._curves = curves
        self._journal = journal

    def read_milestones(self, spec: StudySpec, population: PbtSpec, trial: TrialRecord) -> None:
        """Store a member's value at each milestone that it has passed since it last continued from
        another."""
        objective = spec.objectives[0]
        curve = self._curves.read(spec, trial).get(objective.metric)
        after = trial.population.get("after", 0)
        since = []
        if curve is not None:
            since = [point for point in curve.points if point.attempt > after]
        if not since or "exploit" in trial.population:
            return
        passed = int(since[-1].position // population.every)
        if passed <= (trial.rung or 0):
            return
        milestones = []
        for milestone in range((trial.rung or 0) + 1, passed + 1):
            points = [point for point in since if point.position <= milestone * population.every]
            value = objective_value(points, objective)
            if value is not None:
                number = None if math.isnan(value) else value
                milestones.append(PassedRung(milestone, points[-1].step, number, points[-1].attempt))
                if number is not None:
                    self._journal.report(trial.number, milestone, number)
        with transaction(self._writer.connection):
            self._writer.set_rungs(trial.number, milestones)
            self._writer.set_trial(trial, rung=passed)

    def exploit(
        self, spec: StudySpec, population: PbtSpec, trials: Sequence[TrialRecord], decided: int, now: float
    ) -> str | None:
        """Compare the members at the newest milestone after ``decided`` that all have passed, and
        stop the worst: they continue from checkpoints of the best. Members that have ended are
        compared too, and can be donors. ``now`` is UTC unix seconds.

        Returns why that is not possible, if no member has a usable checkpoint.
        """
        trials = [trial for trial in trials if trial.origin != OUTSIDE]
        training = [trial for trial in trials if trial.state is TrialState.RUNNING]
        if any(not trial.state.is_over and trial.state is not TrialState.RUNNING for trial in trials):
            # A member that is about to continue from a donor is compared once it trains again.
            return None
        values: dict[int, dict[int, float]] = {trial.number: {} for trial in trials}
        for rung in read_rungs(self._writer.connection, self._writer.study_id):
            values[rung.number][rung.rung] = math.nan if rung.value is None else rung.value
        milestone = pbt.due_milestone([values[trial.number] for trial in training], decided)
        if milestone is None or pbt.is_last(milestone, population):
            return None
        compared = [trial for trial in trials if trial in training or trial.state is TrialState.COMPLETE]
        donated, why = self._donor_checkpoints(population, compared, milestone, now)
        if not donated:
            return f"no member has a checkpoint that another could continue from after milestone {milestone} ({why})"
        members = [
            pbt.PopulationMember(
                trial.number, trial.params, values[trial.number][milestone],
                can_give=trial.number in donated, trains=trial in training,
            )
            for trial in compared
            if milestone in values[trial.number]
        ]  # fmt: skip
        exploits = pbt.choose_exploits(
            members, milestone, population, space=spec.space, objective=spec.objectives[0], seed=spec.seed
        )
        plans = []
        for exploit in exploits:
            plan = self._plan(exploit, donated[exploit.donor], milestone)
            if plan is not None:
                plans.append((next(trial for trial in training if trial.number == exploit.number), plan))
        self._store_plans(plans, milestone)
        return None

    def _plan(self, exploit: pbt.Exploit, checkpoint: CheckpointRow, milestone: int) -> Mapping[str, Any] | None:
        """Pin a donor's checkpoint; returns what the member is to continue from, or None if the
        checkpoint is not whole."""
        folder = self._writer.workspace.studies / self._writer.study_id / rows.PINS
        pinned = pin(folder, exploit, milestone, Path(checkpoint.path))
        # What was written over while it was copied may be a part of each.
        if pinned is None or not is_unchanged(checkpoint):
            return None
        return {
            "donor": exploit.donor,
            "donor_attempt": checkpoint.attempt,
            "milestone": milestone,
            "step": _step(checkpoint),
            "params": dict(exploit.params),
            "from": str(pinned),
        }

    def _donor_checkpoints(
        self, population: PbtSpec, compared: Sequence[TrialRecord], milestone: int, now: float
    ) -> tuple[dict[int, CheckpointRow], str]:
        """The checkpoint that each member can give, by its trial's number, and why the first of the
        others can give none."""
        # From a checkpoint of the last step nothing is left to train.
        last_useful = None if population.length is None else population.length - 1
        donated: dict[int, CheckpointRow] = {}
        refusals: list[str] = []
        for trial in compared:
            most_steps: float | None = milestone * population.every
            if trial.state is TrialState.RUNNING:
                most_steps = last_useful
            checkpoint, why = donor_checkpoint(self._writer.connection, trial.run_id or "", now, most_steps)
            if checkpoint is not None:
                donated[trial.number] = checkpoint
            elif why:
                refusals.append(why)
        return donated, next(iter(refusals), "none was saved")

    def _store_plans(self, plans: Sequence[tuple[TrialRecord, Mapping[str, Any]]], milestone: int) -> None:
        """Store the plans of members, and stop these."""
        writer = self._writer
        with transaction(writer.connection):
            for member, plan in plans:
                reason = f"continues from trial {plan['donor']} after milestone {milestone}"
                text = json.dumps({**member.population, "exploit": plan})
                writer.set_trial(member, state=TrialState.STOPPING, reason=reason, rung=milestone, population=text)
                # Values behind the milestone belong to the training that is abandoned.
                writer.connection.execute(
                    "DELETE FROM trial_rungs WHERE study_id = ? AND number = ? AND rung > ?",
                    (writer.study_id, member.number, milestone),
                )
                writer.ask_stop(member, reason)
            writer.connection.execute(
                "UPDATE studies SET milestone = ? WHERE study_id = ?", (milestone, writer.study_id)
            )
        writer.ring()

    def continue_from_donor(self, trial: TrialRecord) -> None:
        """Begin the next attempt of a stopped member from its donor's checkpoint."""
        plan = trial.population["exploit"]
        (attempt,) = self._writer.connection.execute(
            "SELECT coalesce(max(number), 0) FROM attempts WHERE run_id = ?", (trial.run_id,)
        ).fetchone()
        segment = LineageSegment(attempt + 1, plan["donor"], plan["donor_attempt"], plan["step"])
        population = {"after": attempt, LINEAGE: [*trial.population.get(LINEAGE, ()), asdict(segment)]}
        self._journal.set_params(trial.number, plan["params"])
        with transaction(self._writer.connection):
            arguments = {"from": plan["from"], "set": plan["params"]}
            command_id = self._writer.ask("resume", trial.run_id, arguments)
            self._writer.set_trial(
                trial, state=TrialState.LAUNCHING, command_id=command_id, params=json.dumps(plan["params"]),
                parent=plan["donor"], generation=plan["milestone"], reason=None, ended_at=None,
                population=json.dumps(population),
            )  # fmt: skip
        self._writer.ring()

    def continue_from_own(self, trial: TrialRecord) -> None:
        """Continue from the member's own newest checkpoint with the new parameters, because the
        donor's was refused."""
        *earlier, segment = trial.population[LINEAGE]
        population = {**trial.population, LINEAGE: [*earlier, {**segment, "donor": None}]}
        with transaction(self._writer.connection):
            command_id = self._writer.ask("resume", trial.run_id, {"set": dict(trial.params)})
            self._writer.set_trial(trial, command_id=command_id, parent=None, population=json.dumps(population))
        self._writer.ring()


# --- checkpoints ------------------------------------------------------------------------------------------------------


def donor_checkpoint(
    connection: sqlite3.Connection, run_id: str, now: float, most_steps: float | None = None
) -> tuple[CheckpointRow | None, str]:
    """Find the checkpoint that a member can give: that from which recovery would resume its run.

    Args:
        connection: the open database.
        run_id: the member's run.
        now: UTC unix seconds.
        most_steps: the most steps before the checkpoint; None for any number.

    Returns:
        The checkpoint, which is no longer growing; or None and which ones it cannot give, and why.

    Raises:
        sqlite3.Error
    """
    run = get_run(connection, run_id)
    if run is None:
        return None, "its run was removed"
    written = [row for row in checkpoints.of_run(connection, run_id) if row.is_written]
    if most_steps is not None:
        written = [row for row in written if (steps := _steps_before(row)) is not None and steps <= most_steps]
    choice = choose(written, spans_of(run, read_attempts(connection, run_id), now), 1)
    if not choice.usable:
        return None, passed_over(choice.refused) or choice.unreadable or choice.doubted or ""
    best = choice.usable[0]
    (row,) = (row for row in choice.rows if (row.path, row.place) == (str(best.path), best.place))
    if row.verdict == "valid" or row.is_settled:
        return row, ""
    return None, f"{row.name} {best.why}, and may be growing"


def _step(checkpoint: CheckpointRow) -> int | None:
    """The step in a checkpoint's name, else the step that the script reports."""
    named_step = explicit_step(checkpoint.name)
    if named_step is None:
        return checkpoint.step
    return named_step


def _steps_before(checkpoint: CheckpointRow) -> int | None:
    """The number of steps before a checkpoint: scripts count steps from 0, names from 1."""
    named_step = explicit_step(checkpoint.name)
    if named_step is not None or checkpoint.step is None:
        return named_step
    return checkpoint.step + 1


def pin(folder: Path, exploit: pbt.Exploit, milestone: int, path: Path) -> Path | None:
    """Keep a donor's checkpoint, with its checksum and shards, in ``folder``; None if it is not
    whole, or gone, or the disk is full. A file with its step in the name is written once and is
    linked; any other is copied."""
    # A member may still load the newest of the earlier pins.
    earlier = sorted(folder.glob(f"{exploit.number}-from-*"), key=lambda pinned: pinned.stat().st_mtime)
    for former in earlier[:-1]:
        shutil.rmtree(former, ignore_errors=True)
    target = folder / f"{exploit.number}-from-{exploit.donor}-at-{milestone}"
    # A killed process may have left a part of it.
    shutil.rmtree(target, ignore_errors=True)
    # A compressed checkpoint step_1.pt.gz has its shards in step_1.shards.
    stem = Path(path.name.removesuffix(".gz")).stem
    try:
        target.mkdir(mode=PRIVATE_DIR_MODE, parents=True)
        for file in {path, *path.parent.glob(f"{glob.escape(stem)}.*")}:
            keep = _link_or_copy if explicit_step(path.name) is not None else shutil.copy2
            if file.is_dir():
                shutil.copytree(file, target / file.name, copy_function=keep)
            else:
                keep(str(file), str(target / file.name))
    except OSError:
        return None
    info = validate(target / path.name)
    if info.valid or info.is_unknown:
        return target / path.name
    return None


def _link_or_copy(source: str, target: str) -> None:
    try:
        Path(target).hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)  # another file system
