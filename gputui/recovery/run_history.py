"""The history of a run, read once for all who tell it: commands, the page of a run, reports and messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from gputui.recovery.costs import Cost, costs_of, total
from gputui.recovery.resumptions import Resumption, resumptions
from gputui.runs.executors import chooses_start
from gputui.runs.stored_spec import known_spec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.checkpoints import CheckpointRow
from gputui.store.commands import RESUME
from gputui.store.metrics.step_lines import StepLines
from gputui.store.run_history import (
    DecisionView,
    IncidentView,
    TransitionView,
    read_decisions,
    read_incidents,
    read_transitions,
)
from gputui.store.run_states import RunState
from gputui.store.runs import Run


class Failure(NamedTuple):
    """An incident of a run with what belongs to it.

    Attributes:
        decision: what was done about it; None before that was decided.
        attempt: the one that it ended; None if it is not stored.
        next_attempt: the one that followed.
        cost: None if it is not known.
    """

    incident: IncidentView
    decision: DecisionView | None
    attempt: Attempt | None
    next_attempt: Attempt | None
    cost: Cost | None


def total_cost(failures: Iterable[Failure]) -> Cost | None:
    """The cost of several failures together; None if none is known."""
    return total(failure.cost for failure in failures if failure.cost is not None)


class RunHistory(NamedTuple):
    """What is stored about a run, oldest first.

    Attributes:
        incidents: what ended its attempts.
        decisions: what was done about that.
        transitions: the changes of its state.
        checkpoints: its ledger.
        lines: reads its metrics.
    """

    run: Run
    attempts: list[Attempt]
    incidents: list[IncidentView]
    decisions: list[DecisionView]
    transitions: list[TransitionView]
    checkpoints: list[CheckpointRow]
    lines: StepLines

    @classmethod
    def read(cls, connection: sqlite3.Connection, run: Run, at: float | None = None) -> RunHistory:
        """Read the history now, or as it was at a moment (UTC unix seconds), but for the checkpoints, which are those
        of now. Raises sqlite3.Error."""
        return cls(
            run=run,
            attempts=read_attempts(connection, run.run_id, at),
            incidents=read_incidents(connection, run.run_id, at),
            decisions=read_decisions(connection, run.run_id, at),
            transitions=read_transitions(connection, run.run_id, at),
            checkpoints=checkpoints.of_run(connection, run.run_id),
            lines=StepLines(connection, run.run_id),
        )

    def failures(self) -> list[Failure]:
        """The incidents with the decisions on them and their costs, oldest first. Raises sqlite3.Error."""
        is_chosen_there = chooses_start(known_spec(self.run))
        cost_by_incident = costs_of(
            self.attempts, self.incidents, self.decisions, self.lines, start_is_chosen_there=is_chosen_there
        )
        return self.failures_with(cost_by_incident)

    def failures_with(self, cost_by_incident: Mapping[int, Cost]) -> list[Failure]:
        """The incidents with the decisions on them and these costs."""
        attempts = {attempt.number: attempt for attempt in self.attempts}
        decisions = {decision.incident_id: decision for decision in self.decisions}
        return [
            Failure(
                incident,
                decisions.get(incident.incident_id),
                attempts.get(incident.attempt),
                attempts.get(incident.attempt + 1),
                cost_by_incident.get(incident.incident_id),
            )
            for incident in self.incidents
        ]

    def resumptions(self) -> Mapping[int, Resumption]:
        """From where each attempt really went on, by its number. Raises sqlite3.Error."""
        return resumptions(self.attempts, self.lines, self.checkpoints)


def person_started_at(transitions: Sequence[TransitionView]) -> float:
    """The time at which a person last launched, restarted or resumed the run; minus infinity if
    unknown."""
    return max((move.at for move in queued_by_person(transitions)), default=float("-inf"))


def training_began_at(transitions: Sequence[TransitionView]) -> float:
    """The time at which the run last began from scratch on a person's request; minus infinity if
    unknown."""
    idle = {move.transition_id for move, after in pairwise(transitions) if after.to_state != RunState.STARTING}
    begun = (
        move.at for move in queued_by_person(transitions) if move.cause != RESUME and move.transition_id not in idle
    )
    return max(begun, default=float("-inf"))


def queued_by_person(transitions: Sequence[TransitionView]) -> list[TransitionView]:
    """The moves to ``queued`` by a person: only recovery moves a run there from ``recovering``."""
    return [move for move in transitions if move.to_state == RunState.QUEUED and move.from_state != RunState.RECOVERING]
