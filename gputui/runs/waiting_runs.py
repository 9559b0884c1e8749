"""The queued runs, and which of them wait for other runs or for a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import NamedTuple

from gputui.runs.stored_spec import known_spec, spec_of
from gputui.store import queue
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs


class WaitingRuns(NamedTuple):
    """The queued runs in the order of the queue, and whether it is paused. ``not_yet`` says why a run
    waits for another one or for a time, by its id."""

    runs: tuple[Run, ...] = ()
    not_yet: Mapping[str, str] = {}
    is_paused: bool = False


def read_waiting_runs(connection: sqlite3.Connection, now: float) -> WaitingRuns:
    """Read the queue at ``now``, without runs whose specification is damaged. Raises sqlite3.Error."""
    runs = tuple(run for run in queued_runs(connection) if known_spec(run) is not None)
    reasons = {run.run_id: why for run in runs if (why := why_not_yet(connection, run, now)) is not None}
    return WaitingRuns(runs, reasons, queue.pause(connection) is not None)


def why_not_yet(connection: sqlite3.Connection, run: Run, now: float) -> str | None:
    """The reason why a run does not start yet that follows others or begins at a time; None once all of
    them succeeded, or ended, and the time has come, or if it has started before. Raises sqlite3.Error."""
    if run.attempt:
        return None
    spec = spec_of(run)
    for run_id in (*spec.after, *spec.after_any):
        predecessor = get_run(connection, run_id)
        is_over = predecessor is None or predecessor.state.is_over
        if run_id in spec.after_any and not is_over:
            return f"waits for {run_id} to end"
        if run_id in spec.after and not is_over:
            return f"waits for {run_id} to succeed"
        state = "was removed" if predecessor is None else predecessor.state
        if run_id in spec.after and state is not RunState.SUCCEEDED:
            return f"waits for {run_id}, which {state}; stop it to end the wait"
    if spec.begin_at is None or now >= spec.begin_at:
        return None
    begin = time.localtime(spec.begin_at)
    today = time.localtime(now)
    if begin[:3] == today[:3]:
        return time.strftime("begins at %H:%M", begin)
    return time.strftime("begins on %d %b at %H:%M", begin)
