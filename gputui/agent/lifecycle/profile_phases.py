"""Phases of a profile: once the checkpoint of a given step exists, the run continues from it with other parameters."""

from __future__ import annotations

import sqlite3
from pathlib import PurePath
from typing import NamedTuple

from gputui.runs.checkpoint_names import explicit_step
from gputui.runs.spec import Phase, RunSpec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt

INTENT = "phase"
"""The stop request of an attempt whose phase is over."""


class NextPhase(NamedTuple):
    """The next phase (``number`` counts from 1) and the checkpoint to continue from."""

    number: int
    phase: Phase
    checkpoint: str


def next_phase(connection: sqlite3.Connection, spec: RunSpec, attempt: Attempt) -> NextPhase | None:
    """The phase after the attempt's, once the attempt has written the checkpoint that ends its phase, or a later one;
    None before, and in the last phase. Raises sqlite3.Error."""
    begun = 0
    if attempt.resumed_from is not None:
        # Names count steps as the profile does; the ledger counts like the metrics, from 0.
        step = explicit_step(PurePath(attempt.resumed_from).name)
        begun = attempt.resumed_step or 0 if step is None else step
    number = sum(phase.until is not None and phase.until <= begun for phase in spec.phases)
    if number + 1 >= len(spec.phases) or (until := spec.phases[number].until) is None:
        return None
    found = [
        (step, row.path)
        for row in checkpoints.of_run(connection, attempt.run_id)
        if row.is_written and row.attempt == attempt.number and row.verdict in ("unexamined", "valid")
        for step in (explicit_step(row.name) or row.step,)
        if step is not None and step >= until
    ]
    return NextPhase(number + 2, spec.phases[number + 1], min(found)[1]) if found else None
