"""What the process of a study writes: its rows, and the commands that ask the agent to carry them out."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gputui.config import PRIVATE_FILE_MODE, Workspace
from gputui.runs.repository import transaction
from gputui.store import commands
from gputui.store.studies import StudyRecord, StudyState, TrialRecord, get_study
from gputui.studies import donors, rows
from gputui.studies.decide import Ruling


@dataclass(frozen=True, slots=True)
class StudyWriter:
    """Writes for one study. ``now`` gives UTC unix seconds. ``ask…``, ``set_trial`` and ``end_trial`` belong in the
    caller's transaction, so that a decision and its command are stored together."""

    workspace: Workspace
    connection: sqlite3.Connection
    study_id: str
    now: Callable[[], float]

    @property
    def actor(self) -> str:
        """Who its commands are from."""
        return f"study {self.study_id}"

    def ask(self, verb: str, run_id: str | None, words: Mapping[str, Any]) -> int:
        """Write a command for the agent; its id."""
        return commands.submit(self.connection, verb, run_id, words, self.actor, now=self.now())

    def ask_run(self, number: int, ticket: str) -> int:
        """Ask for the run of a trial; the command's id. ``ticket`` names the file with its specification."""
        return self.ask("run", None, {"ticket": ticket, "name": f"{self.study_id}-t{number}"})

    def ask_stop(self, trial: TrialRecord, reason: str) -> None:
        """Ask for the end of a trial's run, at once: a trial that is cut short saves no last checkpoint."""
        self.set_trial(trial, command_id=self.ask("stop", trial.run_id, {"now": True, "reason": reason}))

    def ring(self) -> None:
        """Wake the agent once its commands are committed; if that fails, the agent reads them a little later."""
        with suppress(OSError):
            self.workspace.doorbell.touch(mode=PRIVATE_FILE_MODE)

    def set_trial(self, trial: TrialRecord, **values: Any) -> None:
        """Set columns of a trial's row."""
        columns = ", ".join(f"{name} = ?" for name in values)
        self.connection.execute(
            f"UPDATE trials SET {columns} WHERE study_id = ? AND number = ?",  # noqa: S608 - the program's own names
            (*values.values(), self.study_id, trial.number),
        )

    def end_trial(self, trial: TrialRecord, ruled: Ruling) -> None:
        """Write the verdict on a trial."""
        self.set_trial(
            trial,
            state=ruled.state,
            reason=ruled.reason,
            value=ruled.values[0] if ruled.values else None,
            objective_values=json.dumps(ruled.values) if ruled.values else None,
            constraint_values=json.dumps(ruled.constraints) if ruled.constraints else None,
            ended_at=self.now(),
        )

    def move(self, study: StudyRecord, target: StudyState, cause: str, known: int | None = None) -> bool:
        """Move the study unless a person has changed it meanwhile; whether it was moved. ``known`` is the number of
        trials that the decision saw, None if one more does not change it."""
        with transaction(self.connection):
            current = get_study(self.connection, self.study_id)
            if current is None or current.state is not study.state:
                return False
            if known is not None:
                count = rows.next_number(self.connection, self.study_id)
                if count != known or current.spec_json != study.spec_json:
                    return False
            if target in (StudyState.FINISHED, StudyState.FAILED):
                # A stopped study may be resumed, and then its members still need their pins.
                donors.remove_pins(self.workspace.studies / self.study_id)
            rows.move_study(self.connection, study, target, cause=cause, actor=self.actor, now=self.now())
        return True

    def is_refused(self, command_id: int | None) -> bool:
        """Whether the agent has refused a command."""
        answer = None if command_id is None else commands.answer(self.connection, command_id)
        return answer is not None and answer.state == "refused"
