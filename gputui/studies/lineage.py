"""The training of a population's member from its first step, through the runs of its donors."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from gputui.runs.checkpoint_names import explicit_step
from gputui.runs.spec import Phase
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.studies import TrialRecord
from gputui.studies.population import segments_of


class LineageError(Exception):
    """The training of a member is unknown. The text says why."""


class _Part(NamedTuple):
    """The newest part of a member's training among its attempts up to ``last_attempt``; it ended at
    step ``end_step``."""

    number: int
    last_attempt: float = math.inf
    end_step: int | None = None


def lineage(connection: sqlite3.Connection, trials: Sequence[TrialRecord], number: int) -> list[Phase]:
    """The phases of the training of member ``trials[number]``, those in its donors' runs included.

    Raises LineageError if a run was removed, a checkpoint has no step or the stored parts are
    inconsistent; sqlite3.Error.
    """
    phases: list[Phase] = []
    part: _Part | None = _Part(number)
    while part is not None:
        phase, part = _phase_and_origin(connection, trials, part)
        phases.insert(0, phase)
    return phases


def _phase_and_origin(
    connection: sqlite3.Connection, trials: Sequence[TrialRecord], part: _Part
) -> tuple[Phase, _Part | None]:
    """The phase of a part, and the part whose checkpoint it began from; None for a first step."""
    number, last_attempt, end_step = part
    if number >= len(trials):
        raise LineageError(f"trial {number}, which is of this lineage, is not known")
    trial = trials[number]
    segment = next((segment for segment in reversed(segments_of(trial)) if segment.attempt <= last_attempt), None)
    first_attempt = 1 if segment is None else segment.attempt
    first = _attempt(connection, trial, first_attempt)
    phase = Phase(end_step, {name: first.params[name] for name in trial.params if name in first.params})
    if segment is None:
        return phase, None
    if segment.donor is None:
        origin = _Part(number, segment.attempt - 1, _resumed_step(first))
    else:
        origin = _Part(segment.donor, segment.donor_attempt, segment.step)
    if origin.end_step is None:
        raise LineageError(f"the checkpoint that trial {number} went on from has no step in its name")
    if end_step is not None and origin.end_step >= end_step:
        raise LineageError(f"trial {number} went back behind a checkpoint that it had gone on from")
    return phase, origin


def _attempt(connection: sqlite3.Connection, trial: TrialRecord, number: int) -> Attempt:
    attempts = []
    if trial.run_id is not None:
        attempts = read_attempts(connection, trial.run_id)
    if not attempts:
        raise LineageError(f"the run of trial {trial.number}, which is of this lineage, was removed")
    attempt = next((attempt for attempt in attempts if attempt.number == number), None)
    if attempt is None:
        raise LineageError(f"attempt {number} of {trial.run_id} is not known")
    return attempt


def _resumed_step(attempt: Attempt) -> int | None:
    """The step of the checkpoint that an attempt resumed from."""
    named_step = None if attempt.resumed_from is None else explicit_step(PurePath(attempt.resumed_from).name)
    if named_step is None:
        return attempt.resumed_step
    return named_step
