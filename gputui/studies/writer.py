"""The writes of a study's process to the store: its rows, and commands for the agent."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE, Workspace
from gputui.runs.repository import transaction
from gputui.store import commands
from gputui.store.events import add_event
from gputui.store.rows import insert, update
from gputui.store.studies import StudyRecord, StudyState, TrialRecord, get_study
from gputui.studies import rows
from gputui.studies.decide import Ruling
from gputui.studies.rungs import PassedRung


class StudyWriter(Struct, frozen=True):
    """Writes for one study. ``now`` gives UTC unix seconds. ``ask…`` and ``set…`` belong in the
    caller's transaction, so that a decision and its command are stored together."""

    workspace: Workspace
    connection: sqlite3.Connection
    study_id: str
    now: Callable[[], float]

    @property
    def actor(self) -> str:
        """The author of its commands."""
        return f"study {self.study_id}"

    def ask(self, verb: str, run_id: str | None, words: Mapping[str, Any]) -> int:
        """Write a command for the agent; returns its ID."""
        return commands.submit(self.connection, verb, run_id, words, self.actor, now=self.now())

    def ask_run(self, number: int, ticket: str) -> int:
        """Ask for the run of a trial; returns the command's ID. ``ticket`` names the file with the
        specification."""
        return self.ask("run", None, {"ticket": ticket, "name": f"{self.study_id}-t{number}"})

    def ask_stop(self, trial: TrialRecord, reason: str) -> None:
        """Ask to stop a trial's run at once, without a last checkpoint."""
        self.set_trial(trial, command_id=self.ask("stop", trial.run_id, {"now": True, "reason": reason}))

    def ring(self) -> None:
        """Wake the agent once its commands are committed. If this fails, the agent reads them a
        little later."""
        with suppress(OSError):
            self.workspace.doorbell.touch(mode=PRIVATE_FILE_MODE)

    def set_trial(self, trial: TrialRecord, **values: Any) -> None:
        """Set columns of a trial's row."""
        update(self.connection, "trials", {"study_id": self.study_id, "number": trial.number}, **values)

    def set_rungs(self, number: int, passed: Iterable[PassedRung]) -> None:
        """Store the values of a trial at rungs; the first one of a rung stays."""
        for one in passed:
            insert(
                self.connection, "trial_rungs", "IGNORE", study_id=self.study_id, number=number, rung=one.rung,
                step=one.step, value=one.value, attempt=one.attempt, at=self.now(),
            )  # fmt: skip

    def end_open(self, trial: TrialRecord, ruling: Ruling) -> None:
        """End a trial in the table alone, so that one that is stopped may continue."""
        with transaction(self.connection):
            self.set_trial(trial, **verdict_columns(ruling, self.now()))

    def move(self, study: StudyRecord, target: StudyState, cause: str) -> bool:
        """Change the state of the study, unless a person has changed the study meanwhile or, where
        it would end, has asked for more; returns whether it changed."""
        with transaction(self.connection):
            current = get_study(self.connection, self.study_id)
            if current is None or current.state is not study.state:
                return False
            if target is StudyState.FINISHED and (
                current.spec_json != study.spec_json or rows.requested_trials(self.connection, self.study_id)
            ):
                return False
            if target in (StudyState.FINISHED, StudyState.FAILED):
                # The members of a stopped study still need their pins if it is resumed.
                shutil.rmtree(self.workspace.studies / self.study_id / rows.PINS, ignore_errors=True)
            rows.move_study(self.connection, study, target, cause=cause, actor=self.actor, now=self.now())
        return True

    def warn(self, sentence: str) -> None:
        """Record a warning about the study's journal."""
        now = self.now()
        add_event(
            self.connection, "study_journal_repaired", sentence, now=now, severity="warning", subject=self.study_id
        )

    def is_refused(self, command_id: int | None) -> bool:
        """Whether the agent has refused a command."""
        answer = None if command_id is None else commands.answer(self.connection, command_id)
        return answer is not None and answer.state == "refused"


def verdict_columns(ruling: Ruling, at: float) -> dict[str, Any]:
    """The columns of a trial that is over since ``at`` (UTC unix seconds)."""
    return {
        "state": ruling.state,
        "reason": ruling.reason,
        "value": ruling.values[0] if ruling.values else None,
        "objective_values": json.dumps(ruling.values) if ruling.values else None,
        "constraint_values": json.dumps(ruling.constraints) if ruling.constraints else None,
        "ended_at": at,
    }
