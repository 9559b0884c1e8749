"""The queued runs, and which of them wait for other runs to succeed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from gputui.runs.spec import known_spec, spec_of
from gputui.store import queue
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs


class WaitingRuns(NamedTuple):
    """The queued runs in the order of the queue, and whether it is paused. ``predecessors`` says why a
    run waits for another one, by its id."""

    runs: tuple[Run, ...] = ()
    predecessors: Mapping[str, str] = {}
    is_paused: bool = False


def read_waiting_runs(connection: sqlite3.Connection) -> WaitingRuns:
    """Read the queue, without runs whose specification is damaged. Raises sqlite3.Error."""
    runs = tuple(run for run in queued_runs(connection) if known_spec(run) is not None)
    reasons = {run.run_id: why for run in runs if (why := waits_for_predecessor(connection, run)) is not None}
    return WaitingRuns(runs, reasons, queue.pause(connection) is not None)


def waits_for_predecessor(connection: sqlite3.Connection, run: Run) -> str | None:
    """The reason why a run that follows others does not start yet; None once all of them succeeded,
    or if it has started before. Raises sqlite3.Error."""
    for run_id in spec_of(run).after if not run.attempt else ():
        predecessor = get_run(connection, run_id)
        state = "was removed" if predecessor is None else predecessor.state
        if state is not RunState.SUCCEEDED:
            is_over = predecessor is None or predecessor.state.is_over
            ends = f", which {state}; gputui stop {run.run_id} ends that"
            return f"waits for {run_id}{ends if is_over else ' to succeed'}"
    return None
