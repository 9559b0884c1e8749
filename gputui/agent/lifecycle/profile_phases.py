"""Phases of a profile: parameters change once the checkpoint of a step is there, and the run continues from that."""

from __future__ import annotations

import sqlite3
from pathlib import PurePath
from typing import NamedTuple

from gputui.runs.checkpoint_names import explicit_step
from gputui.runs.spec import Phase, RunSpec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt

INTENT = "phase"
"""Why an attempt is asked to stop whose phase is over."""


class NextPhase(NamedTuple):
    """The phase that follows (``number`` counts from 1), and the checkpoint that it continues from."""

    number: int
    phase: Phase
    checkpoint: str


def next_phase(connection: sqlite3.Connection, spec: RunSpec, attempt: Attempt) -> NextPhase | None:
    """What follows the phase of an attempt, once the attempt has written the checkpoint at which it ends, or a later
    one where that was removed; None until then, and in the last phase. Raises sqlite3.Error."""
    begun = 0
    if attempt.resumed_from is not None:
        # The name counts as in the profile; the ledger's step is that of the metrics, which count from 0.
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
