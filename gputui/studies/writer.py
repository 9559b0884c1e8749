"""The writes of a study's process: its rows, and commands for the agent."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE, Workspace
from gputui.runs.repository import transaction
from gputui.store import commands
from gputui.store.studies import StudyRecord, StudyState, TrialRecord, get_study
from gputui.studies import donors, rows
from gputui.studies.decide import Ruling


class StudyWriter(Struct, frozen=True):
    """Writes for one study. ``now`` gives UTC unix seconds. ``ask…``, ``set_trial`` and ``end_trial`` belong in the
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
        """Ask for the run of a trial; returns the command's ID. ``ticket`` names the file with the specification."""
        return self.ask("run", None, {"ticket": ticket, "name": f"{self.study_id}-t{number}"})

    def ask_stop(self, trial: TrialRecord, reason: str) -> None:
        """Ask to stop a trial's run at once, without a last checkpoint."""
        self.set_trial(trial, command_id=self.ask("stop", trial.run_id, {"now": True, "reason": reason}))

    def ring(self) -> None:
        """Wake the agent once its commands are committed. If this fails, the agent reads them a little later."""
        with suppress(OSError):
            self.workspace.doorbell.touch(mode=PRIVATE_FILE_MODE)

    def set_trial(self, trial: TrialRecord, **values: Any) -> None:
        """Set columns of a trial's row."""
        columns = ", ".join(f"{name} = ?" for name in values)
        self.connection.execute(
            f"UPDATE trials SET {columns} WHERE study_id = ? AND number = ?",  # noqa: S608 - the program's own names
            (*values.values(), self.study_id, trial.number),
        )

    def end_trial(self, trial: TrialRecord, ruling: Ruling) -> None:
        """Store the verdict on a trial."""
        self.set_trial(
            trial,
            state=ruling.state,
            reason=ruling.reason,
            value=ruling.values[0] if ruling.values else None,
            objective_values=json.dumps(ruling.values) if ruling.values else None,
            constraint_values=json.dumps(ruling.constraints) if ruling.constraints else None,
            ended_at=self.now(),
        )

    def move(self, study: StudyRecord, target: StudyState, cause: str, trials: int | None = None) -> bool:
        """Change the state of the study unless a person has changed it meanwhile; returns whether it changed.

        ``trials`` is the number of trials behind the decision, None if another trial would not change it.
        """
        with transaction(self.connection):
            current = get_study(self.connection, self.study_id)
            if current is None or current.state is not study.state:
                return False
            if trials is not None:
                count = rows.next_number(self.connection, self.study_id)
                if count != trials or current.spec_json != study.spec_json:
                    return False
            if target in (StudyState.FINISHED, StudyState.FAILED):
                # The members of a stopped study still need their pins if it is resumed.
                donors.remove_pins(self.workspace.studies / self.study_id)
            rows.move_study(self.connection, study, target, cause=cause, actor=self.actor, now=self.now())
        return True

    def is_kept(self, trial: TrialRecord) -> bool:
        """Whether a person wants that a trial is never cut short, perhaps since it was read."""
        row = self.connection.execute(
            "SELECT wish FROM trials WHERE study_id = ? AND number = ?", (self.study_id, trial.number)
        ).fetchone()
        return row is not None and row[0] == "keep"

    def is_refused(self, command_id: int | None) -> bool:
        """Whether the agent has refused a command."""
        answer = None if command_id is None else commands.answer(self.connection, command_id)
        return answer is not None and answer.state == "refused"
